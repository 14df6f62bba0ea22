"""Studies of FALSE-VFL on the papers' data."""
