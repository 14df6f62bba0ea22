"""Audits of epsilon: every mechanism with noise, many times on two tables that differ in a row."""
