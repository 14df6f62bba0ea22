"""VertiGAN: synthetic joint samples by a generator with a branch at each party.

Jiang, Zhang, Zhou and Grossklags, "Distributed GAN-based privacy-preserving publication of
vertically-partitioned data" (PoPETs 2023), to which FedPSG-AR is compared as A-infinity-B-GM.

A step takes one round: parties move their critics five times and their branches once, and the
server its trunk. The sum of the parties' gradients is that of one generator with as many outputs.

Where this differs from the paper: it trains with noise (DP-SGD), here there is none, and nothing of
this is differentially private; networks are multilayer perceptrons of the encoded columns.

Known of the method (Yuan, Yang, Zhang, Ma and Guo, "VFLGAN", 2024): critics see one party's columns
each, so nothing makes the synthetic columns of different parties go together as the real ones do.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from flwr_vertical import Alignment, Federation, Progress, Result, Strategy, setting
from flwr_vertical.errors import DataError
from flwr_vertical.protocol.declaration import BITS, FACTS, Protocol, Repeat, Round
from strategies.vertigan.party import NETWORKS, VertiGANParty

MAKE_ROWS = 8192
NOTED_EVERY = 50


class VertiGAN(Strategy):
    """Synthetic samples of every party's columns, from a generator that all train together.

    Learns from samples that all parties have, without a missing cell. Each node must allow it: what
    is learnt without noise can disclose samples. So a node's privacy ledger counts its rows as told
    whole.

    Notes
    -----
    Row i of all synthetic tables belongs together. Each party's columns follow its own; that
    columns of different parties go together is not learnt. Put labels into a party's table.

    Examples
    --------
    >>> from strategies.vertigan import VertiGAN
    >>> VertiGAN(iterations=3000, rows=500).settings()["batch"]
    128
    """

    rows: int = setting(0, "How many synthetic samples; 0 for as many as are aligned.", at_least=0)
    iterations: int = setting(3000, "Training steps.", at_least=1)
    batch: int = setting(128, "Samples in a step.", at_least=2)
    learning_rate: float = setting(3e-4, "Of Adam; critics learn ten times as fast.", above=0)

    name: ClassVar[str] = "vertigan"
    party = VertiGANParty
    protocol = Protocol(
        Round("start", "how many samples that all parties have are complete", tells=(FACTS, BITS)),
        Repeat(
            Round("train", "summed, gradients by synthetic samples", tells=BITS),
            at_most="iterations",
        ),
        Repeat(Round("make"), at_most=f"ceil((rows or n_samples) / {MAKE_ROWS})"),
        Round("finish"),
    )
    requires = ("torch",)
    demo: ClassVar[Mapping[str, Any]] = MappingProxyType({"demo.missing-cells": 0.0})
    exchanges_asked: ClassVar[tuple[str, ...]] = (NETWORKS,)
    disclosure = (
        ("server", "how many of the samples that all parties have are complete at each"),
        (
            "server",
            "in each training step, for each synthetic sample, the gradient by 128 numbers of "
            "what critics say of it, summed over parties: it follows from all samples together, "
            "without noise",
        ),
        ("every party", "which of its samples all parties have; 128 numbers of each synthetic one"),
        (
            "a reader of the synthetic tables",
            "what networks remember of the samples that they were trained on; names of levels, and "
            "each numeric column's range",
        ),
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Train the generator, and have every party write its synthetic table."""
        import torch

        from strategies.vertigan.networks import CRITIC_STEPS, NOISE, Trunk

        rows = np.flatnonzero(~np.asarray(alignment.mask).any(axis=1))
        if not len(rows):
            raise DataError(
                "no sample is held by all parties, and 'vertigan' learns from such samples; align "
                "other tables, or leave out a party"
            )
        progress.total = self.iterations + 3
        arguments = {"rows": rows, "learning_rate": self.learning_rate}
        told = federation.call("start", arguments)
        progress.step("start")
        result.metrics["rows_learnt_from"] = float(min(int(of["rows"]) for of in told.values()))
        trunk = Trunk(int(federation.rng.integers(2**31)), self.learning_rate)

        def noise(*shape: int) -> Any:
            drawn = federation.rng.normal(size=(*shape, NOISE)).astype(np.float32)
            return torch.as_tensor(drawn)

        def body(i: int) -> None:
            with torch.no_grad():
                of_critics = trunk.hidden(noise(CRITIC_STEPS, self.batch))
            last = trunk.hidden(noise(1, self.batch))
            given = torch.cat([of_critics, last.detach()]).numpy()
            total = federation.sum("train", {"hidden": given})
            gradient = torch.as_tensor(np.array(total["gradient"])).float()
            trunk.update(last, gradient[None])
            if i % NOTED_EVERY == 0 or i == self.iterations - 1:
                size = float(gradient.norm())
                result.history.append({"iteration": i + 1, "gradient": size})
            progress.step("train", detail=f"step {i + 1}")

        federation.loop(self.iterations, body, {"trunk": trunk, "history": result.history})
        count = self.rows or len(alignment.mask)
        for start in range(0, count, MAKE_ROWS):
            with torch.no_grad():
                hidden = trunk.hidden(noise(min(MAKE_ROWS, count - start)))
            federation.call("make", {"hidden": hidden.numpy(), "start": start})
        progress.step("make")
        federation.call("finish")
        progress.step("finish")
        result.metrics["rows"] = float(count)
