"""The five classifiers of Experiment 3, with the paper's settings, on completed tables.

Liu, He, Tan et al., Section 4.4. They are trained on the joint table in one place, since what is
compared is the table. Inputs are integer codes, standardised by the training rows. Where
scikit-learn has the method, it is scikit-learn's; LR and FinalNet run the paper's batches.
"""

from collections.abc import Sequence

import numpy as np
import torch
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score
from sklearn.svm import LinearSVC
from torch import Tensor, nn

from flwr_vertical.arrays import Array
from simulations.replications import Metrics
from strategies.neural.networks import descend

_BATCH, _ITERATIONS = 64, 1000
_HIDDEN, _PENALTY = 128, 1e-4

CLASSIFIERS = ("LR", "SVM", "GBDT", "RF", "FinalNet")


class FinalNet(nn.Module):
    """One block of factorised interactions, ``u + u * v`` with u and v linear in x.

    Zhu, Jia, Cai et al., "FINAL: factorized interaction layer for CTR prediction" (SIGIR 2023).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, 2 * _HIDDEN)
        self.second = nn.Linear(_HIDDEN, 2 * _HIDDEN)
        self.last = nn.Linear(_HIDDEN, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return log-odds; shape (n, 1)."""
        for layer in (self.first, self.second):
            u, v = layer(x).chunk(2, dim=1)
            x = u + u * v
        found: Tensor = self.last(x)
        return found


def _net_scores(name: str, x: Array, y: Array, test: Array, seed: int) -> Array:
    inputs, targets = torch.tensor(x).float(), torch.tensor(y).float()[:, None]
    rate, penalty = (1e-3, _PENALTY) if name == "FinalNet" else (0.01, 0.0)
    rng = np.random.default_rng(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = FinalNet(x.shape[1]) if name == "FinalNet" else nn.Linear(x.shape[1], 1)
        optimiser = torch.optim.Adam(net.parameters(), lr=rate, weight_decay=penalty)
        for _ in range(_ITERATIONS):
            rows = torch.as_tensor(rng.integers(len(x), size=_BATCH))
            loss = nn.functional.binary_cross_entropy_with_logits(net(inputs[rows]), targets[rows])
            descend(optimiser, [loss])
        with torch.no_grad():
            found: Array = net(torch.as_tensor(test).float())[:, 0].numpy().astype(np.float64)
    return found


def scores(name: str, x: Array, y: Array, test: Array, seed: int) -> Array:
    """Train a classifier on labels 0 and 1; return scores of test rows, positive for class 1."""
    if name in ("LR", "FinalNet"):
        return _net_scores(name, x, y, test, seed)
    if name == "SVM":
        margin = LinearSVC(C=1.0, dual="auto", random_state=seed).fit(x, y)
        return np.asarray(margin.decision_function(test))
    if name == "GBDT":
        model = GradientBoostingClassifier(
            n_estimators=20, max_depth=6, learning_rate=0.1, subsample=0.2, random_state=seed
        )
    else:
        model = RandomForestClassifier(n_estimators=100, max_depth=3, random_state=seed)
    return np.asarray(model.fit(x, y).predict_proba(test)[:, 1] - 0.5)


def evaluate(
    x: Array, y: Array, test: Array, truth: Array, seed: int, names: Sequence[str] = CLASSIFIERS
) -> Metrics:
    """Return accuracy, AUC and F1 of some classifiers."""
    center, spread = x.mean(axis=0), x.std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    # Attributes that are almost constant in few rows would blow up other values.
    x, test = (np.clip((part - center) / scale, -10.0, 10.0) for part in (x, test))
    out: Metrics = {}
    for name in names:
        if len(np.unique(y)) < 2:
            out |= {f"{name} {measure}": float("nan") for measure in ("acc", "auc", "f1")}
            continue
        found = scores(name, x, y, test, seed)
        out[f"{name} acc"] = float(accuracy_score(truth, found > 0))
        out[f"{name} auc"] = float(roc_auc_score(truth, found))
        out[f"{name} f1"] = float(f1_score(truth, found > 0, zero_division=0.0))
    return out
