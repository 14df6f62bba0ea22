"""What an honest but curious node works out of all that it sees: attacks on recorded runs.

An attack reads a view (`views`), knows no strategy, and returns guesses of cells; `score` compares
them with the tables. So a new strategy is attacked without a line written for it.
"""
