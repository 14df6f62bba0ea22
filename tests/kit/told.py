"""What a party tells of its columns, over all runs of a test, and how much of it is one row's."""

import numpy as np

from flwr_vertical.products.told_rows import ToldRows


def record_told(monkeypatch, party, n_rows):
    """Return a list that gets the columns that a party tells of, 0 in rows that it does not."""
    told, judge = [], ToldRows._judged

    def judged(self, held, own, *more, scope="", **options):
        withheld = judge(self, held, own, *more, scope=scope, **options)
        if self._name == party and not scope:
            rows, columns = self.own_rows(held), np.zeros((n_rows, held.values.shape[1]))
            columns[rows[own == 0]] = held.values[:][own == 0]
            told.append(columns[:, ~withheld[0]])
        return withheld

    monkeypatch.setattr(ToldRows, "_judged", judged)
    return told


def largest_share(told):
    """Return the largest share of a row's flag that 1 and these columns tell."""
    columns = np.column_stack([np.ones(len(told[0])), *told])
    u, s, _ = np.linalg.svd(columns / np.linalg.norm(columns, axis=0), full_matrices=False)
    return float((u[:, s > 1e-7 * s[0]] ** 2).sum(axis=1).max())
