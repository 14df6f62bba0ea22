"""Imputation of missing cells and of rows that a party lacks."""
