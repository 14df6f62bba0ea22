"""Stage 2 on tables in one place: the library's networks without messages, for local baselines too.

`strategies.fedpsg.gan.halves` has both halves of a training step. A federation carries what they
exchange; here it is handed over in memory, so that a step takes a few milliseconds and Tables 1 to
5 with 10,000 steps a cell can be had. With one party it is the local imputation of Tables 4 and 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from flwr_vertical import Table
from flwr_vertical.tables.codes import fit_levels, from_codes, to_codes
from simulations.fedpsg.data import is_level
from strategies.fedpsg.gan.encoding import Encoding
from strategies.fedpsg.gan.halves import GanNets, GanShape, TopNets
from strategies.fedpsg.gan.networks import draw_shown
from strategies.fedpsg.gan.training import one_hot

_IMPUTED_AT_ONCE = 8192


@dataclass(frozen=True)
class Imputation:
    """Settings of the networks, as of `strategies.fedpsg.FedPSGAR`."""

    imputer: str = "gain"
    generator: str = "local"
    iterations: int = 10_000
    batch: int = 128
    learning_rate: float = 1e-3
    alpha: float = 100.0
    hidden: float = 0.0


def impute(
    tables: Mapping[str, pd.DataFrame], labels: "pd.Series[float]", settings: Imputation, seed: int
) -> dict[str, pd.DataFrame]:
    """Fill missing cells of all parties' tables by networks trained together."""
    data = {name: _Encoded(frame) for name, frame in tables.items()}
    count, n_labels = len(labels), 0
    at_party, at_top = torch.zeros(count, 0), torch.zeros(count, 1)
    if settings.imputer == "cgain":
        at_party = at_top = torch.as_tensor(one_hot(np.asarray(labels, dtype=np.float64)))
        n_labels = at_top.shape[1]
    rng = np.random.default_rng(seed)
    shape = GanShape(
        settings.imputer, settings.generator == "joint" and len(data) > 1, n_labels,
        int(rng.integers(2**31)), settings.learning_rate, settings.alpha, settings.hidden,
    )  # fmt: skip
    nets = {
        name: GanNets(shape, name, torch.as_tensor(part.encoding.is_level), part.hideable)
        for name, part in data.items()
    }
    top = TopNets(shape, {name: part.encoding.width for name, part in data.items()})
    for _ in range(settings.iterations):
        rows = torch.as_tensor(rng.integers(0, count, size=settings.batch))
        _step(nets, top, data, at_party, at_top, rows, int(rng.integers(2**62)))
    with torch.no_grad():
        for start in range(0, count, _IMPUTED_AT_ONCE):
            rows = torch.arange(start, min(start + _IMPUTED_AT_ONCE, count))
            _fill(nets, data, at_party, rows, int(rng.integers(2**62)))
    return {name: part.frame() for name, part in data.items()}


class _Encoded:
    """A party's table as the networks take it."""

    def __init__(self, frame: pd.DataFrame) -> None:
        # Numbers are numbers here, although few different ones may occur.
        kinds = {str(name): "continuous" for name in frame if not is_level(frame[name])}
        self.table = Table.of(frame, kinds)
        self.levels = fit_levels([self.table])
        self.codes = to_codes(self.table, self.levels, "")
        counts = [len(self.levels.get(name, ())) for name in self.table.columns]
        self.encoding = Encoding.fit(self.codes, counts)
        x, mask = self.encoding.encode(self.codes)
        self.x, self.mask = torch.as_tensor(x).float(), torch.as_tensor(mask).float()
        gone = np.repeat(np.isnan(self.codes).any(axis=0), self.encoding.widths)
        self.hideable = torch.as_tensor(gone).float()

    def frame(self) -> pd.DataFrame:
        return from_codes(self.codes, self.table, self.levels, self.table.frame.index)


def _step(
    nets: Mapping[str, GanNets],
    top: TopNets,
    data: Mapping[str, _Encoded],
    at_party: Tensor,
    at_top: Tensor,
    rows: Tensor,
    seed: int,
) -> None:
    """Train on one batch; what `GanTraining.step` and the parties' steps do between them."""
    x = {name: (part.x[rows], part.mask[rows]) for name, part in data.items()}
    joint = next(iter(nets.values())).shape.joint
    own = {name: nets[name].embed(*x[name]) for name in nets} if joint else {}
    total = torch.stack([e.detach() for e in own.values()]).sum(dim=0) if joint else None
    made = {}
    for name, of in nets.items():
        others = None if total is None else total - own[name].detach()
        made[name] = of.forward(*x[name], seed, at_party[rows], others)
    shown = [
        draw_shown(seed, name, x[name][1], data[name].hideable, of.shape.hidden)
        for name, of in nets.items()
    ]
    back, _ = top.update(
        torch.stack([f.top.detach() for f in made.values()]).sum(dim=0),
        torch.stack([f.loss.detach() for f in made.values()]).sum(dim=0),
        torch.cat(shown, dim=1),
        at_top[rows],
        seed,
    )
    if not joint:
        for name, of in nets.items():
            of.update(made[name], back)
        return
    gradients = {name: of.gradient_of_others(made[name], back) for name, of in nets.items()}
    all_of_them = torch.stack(list(gradients.values())).sum(dim=0)
    for name, of in nets.items():
        of.update(made[name], back, own[name], all_of_them - gradients[name])


def _fill(
    nets: Mapping[str, GanNets],
    data: Mapping[str, _Encoded],
    at_party: Tensor,
    rows: Tensor,
    seed: int,
) -> None:
    x = {name: (part.x[rows], part.mask[rows]) for name, part in data.items()}
    joint = next(iter(nets.values())).shape.joint
    own = {name: of.embed(*x[name]) for name, of in nets.items()} if joint else {}
    for name, of in nets.items():
        others = torch.zeros(len(rows), 0)
        if joint:
            others = torch.stack([e for k, e in own.items() if k != name]).sum(dim=0)
        values, _ = of.generated(*x[name], seed, at_party[rows], others)
        decoded = data[name].encoding.decode(values.numpy().astype(np.float64))
        kept = data[name].codes[rows.numpy()]
        data[name].codes[rows.numpy()] = np.where(np.isnan(kept), decoded, kept)
