"""Mean functions of masked linear predictors: sums over rows, and nothing of a sample."""
