"""Grades of synthetic tables: what attacks on them find, and how useful they are.

- `attacks.grade`, `record.Grade`: attacks and quality as letters, words and tables
- `quality_score` and `quality`: utility alone
- `risks`: the attacks; `audit`: a lower bound of epsilon from many runs
"""
