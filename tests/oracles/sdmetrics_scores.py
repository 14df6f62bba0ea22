"""Scores of SDMetrics for fixed tables, to hold `quality_score` against.

With SDMetrics 0.32.0 (MIT), which this project does not depend on, the numbers in
`tests/results/test_results_quality_score.py` are those of

    pip install sdmetrics==0.32.0 && python tests/oracles/sdmetrics_scores.py
"""

import numpy as np
import pandas as pd

NUMBERS = ("age", "paid", "visits")
LEVELS = ("town", "member", "grade")


def make_tables(n=700):
    """Return a real table and three synthetic ones: near, with other margins, without relations."""
    rng = np.random.default_rng(11)

    def draw(size, strength=0.7, shift=0.0):
        z = rng.normal(size=(size, 6)) + strength * rng.normal(size=(size, 1))
        return pd.DataFrame(
            {
                "age": np.round(40 + 12 * z[:, 0] + 10 * shift),
                "paid": np.where(z[:, 1] < -0.8 + shift, 0.0, np.exp(5 + z[:, 1])),
                "visits": np.floor(np.exp(z[:, 2] + shift)),
                "town": np.array(["Delft", "Gent", "Ulm", "Wels"])[
                    np.digitize(z[:, 3] + shift, [-1.0, 0.2, 1.4])
                ],
                "member": z[:, 4] > 0.5 - shift,
                "grade": np.digitize(z[:, 5] - shift, [-0.5, 0.5]) + 1,
            }
        )

    real = draw(n)
    return real, {"near": draw(n), "shifted": draw(n, shift=0.5), "unrelated": draw(n, 0.0)}


def scores(real, made):
    """Return SDMetrics' mean shape, its mean trend, and their mean."""
    from itertools import combinations

    from sdmetrics.column_pairs import ContingencySimilarity, CorrelationSimilarity
    from sdmetrics.single_column import KSComplement, TVComplement

    shapes = [KSComplement.compute(real[c], made[c]) for c in NUMBERS]
    shapes += [TVComplement.compute(real[c], made[c]) for c in LEVELS]
    trends = []
    for pair in map(list, combinations((*NUMBERS, *LEVELS), 2)):
        numbers = [c for c in pair if c in NUMBERS]
        if len(numbers) == 2:
            trends.append(CorrelationSimilarity.compute(real[pair], made[pair]))
        else:
            trends.append(
                ContingencySimilarity.compute(
                    real[pair].copy(), made[pair].copy(), continuous_column_names=numbers or None
                )
            )
    shape, trend = float(np.mean(shapes)), float(np.mean(trends))
    return shape, trend, (shape + trend) / 2


if __name__ == "__main__":
    observed, synthetic = make_tables()
    for name, table in synthetic.items():
        print(name, [round(value, 4) for value in scores(observed, table)])
