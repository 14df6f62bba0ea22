"""The rounds of both stages at a party: encode, tell how likely its columns are, go backward.

A pretraining step is three rounds. What a party keeps of one for the next is in its live objects;
the graph of the likelihood stays in the process, and is computed again where it is not there.
"""

import secrets

import numpy as np
import torch

from flwr_vertical import Party, StepGroup, Summands, step
from flwr_vertical.arrays import AnyArray
from flwr_vertical.errors import DataError
from strategies.false_vfl.decoder_pass import GRADIENT_LIMIT, MEAN_LIMIT, Graph, scatter
from strategies.false_vfl.hardware import to_numpy, to_tensor
from strategies.false_vfl.party_data import OwnColumns
from strategies.false_vfl.party_networks import Networks


class PretrainingSteps(StepGroup):
    """The three rounds of a pretraining step, party side."""

    party: Party

    @step
    def encode(
        self,
        batch: AnyArray,
        in_mean: AnyArray | None = None,
        in_precision: AnyArray | None = None,
        remember: bool = False,
        recall: bool = False,
    ) -> Summands:
        """Take the step that the last batch's gradient asks for, then encode a batch.

        Message: batch (n_rows,): aligned rows; in_mean, in_precision (n_held of the last batch,
        h_dim): gradients of the loss in what this party sent of that batch; remember, recall:
        whether to note the networks as the best ones, before anything else; whether to go back to
        those noted; returns ``mean`` and ``precision``, shape (n_rows, h_dim): 0 for rows that the
        party lacks.
        """
        networks = self.other(Networks)
        if remember:
            best = networks.get(changes=False).state_dict()
            self.party.live.put("best", {name: value.clone() for name, value in best.items()})
        if recall:
            best = self.party.live.get("best", dict, changes=False)
            networks.get(changes=True).load_state_dict(best)
        if in_mean is not None and in_precision is not None:
            self._learn(in_mean, in_precision)
        self.state["batch"] = np.asarray(batch)
        held = self.other(OwnColumns).held(batch)
        with torch.no_grad():
            mean, precision = networks.get(changes=False).encode(held.x)
        self._check({"mean": to_numpy(mean)}, "embedding", MEAN_LIMIT)
        return Summands(
            {
                "mean": scatter(mean, held.places, len(batch)),
                "precision": scatter(precision, held.places, len(batch)),
            }
        )

    @step
    def log_terms(self, mean: AnyArray, log_sigma: AnyArray, seed: int) -> Summands:
        """Tell how likely the own columns of the batch are under draws of h.

        Message: mean, log_sigma (n_given, h_dim): of the posterior of h, of the rows that the
        party holds; of all rows in variant II; seed: the draws follow from it; returns ``terms``,
        shape (n_rows, n_draws).
        """
        self.party.live.put("posterior", {"mean": mean, "log_sigma": log_sigma, "seed": seed})
        graph = self._build()
        # Whether the graph in the process is the one of this very message.
        self.state["graph"] = mark = secrets.token_hex(8)
        self.cache["graph"] = (mark, graph)
        return Summands({"terms": graph.sent()})

    @step
    def go_backward(self, weights: AnyArray) -> Summands:
        """Train the decoder by the weights of the draws; tell the gradients in the posterior.

        Message: weights (n_given, n_draws): normalised importance weights, of the rows that
        `log_terms` was given; returns ``in_mean`` and ``in_log_sigma``, shape (n_rows, h_dim):
        gradients of the weighted sum of this party's terms in the posterior of each row.
        """
        mark, graph = self.cache.pop("graph", (None, None))
        if graph is None or mark != self.state["graph"]:
            graph = self._build()
        optimiser = self.other(Networks).optimiser("decoder")
        optimiser.zero_grad(set_to_none=True)
        n_rows = len(self.state["batch"])
        given = to_tensor(weights, graph.terms)
        loss = -(given * graph.terms).sum() / n_rows
        torch.autograd.backward([loss])
        optimiser.step()
        told = {}
        for name, leaf in (("in_mean", graph.mean), ("in_log_sigma", graph.log_sigma)):
            gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad * n_rows
            # Beyond the limit of the private sum a gradient is cut, as clipping by value does.
            gradient = gradient.clamp(-GRADIENT_LIMIT, GRADIENT_LIMIT)
            told[name] = scatter(gradient, graph.rows, n_rows)
        self._check(told, "gradient")
        return Summands(told)

    def _learn(self, in_mean: AnyArray, in_precision: AnyArray) -> None:
        """Train the encoder on the last batch, by computing its forward pass again."""
        networks = self.other(Networks)
        held = self.other(OwnColumns).held(self.state["batch"])
        optimiser = networks.optimiser("encoder")
        optimiser.zero_grad(set_to_none=True)
        mean, precision = networks.get(changes=True).encode(held.x)
        torch.autograd.backward(
            [mean, precision],
            [to_tensor(g, mean) for g in (in_mean, in_precision)],
        )
        optimiser.step()

    def _build(self) -> Graph:
        posterior = self.party.live.get("posterior", dict, changes=False)
        batch = self.state["batch"]
        networks, own = self.other(Networks), self.other(OwnColumns)
        graph = Graph(
            networks.get(changes=True),
            own.held(batch),
            len(batch),
            posterior["mean"],
            posterior["log_sigma"],
        )
        seed = int(posterior["seed"])
        graph.forward(seed, networks.n_draws, networks.noise_seed(seed), own.dtype)
        self._check({"terms": to_numpy(graph.terms)}, "log likelihood")
        return graph

    def _check(self, arrays: dict[str, AnyArray], what: str, limit: float = np.inf) -> None:
        """Raise `DataError` if there is a number that is none, or beyond a limit."""
        for array in arrays.values():
            largest = float(np.abs(array).max(initial=0.0))  # NaN if there is one
            if not (np.isfinite(largest) and largest <= limit):
                raise DataError(
                    f"party {self.name!r}: its {what} reaches {largest:.3g}: the training has "
                    "diverged. Lower pretrain_learning_rate, and look for extreme values in its "
                    "columns"
                )


class ScoringSteps(StepGroup):
    """The second stage and predictions, party side: nothing is trained here any more."""

    party: Party

    @step
    def score(
        self,
        seeds: list[int],
        n_draws: int,
        mean: AnyArray | None = None,
        log_sigma: AnyArray | None = None,
    ) -> Summands:
        """Tell how likely the own columns of the batch are, for several seeds in one message.

        Message: n_draws: draws of h for each of them; mean, log_sigma (n_given, h_dim): as in
        `PretrainingSteps.log_terms`; without them, those of the last message; returns ``terms``,
        shape (n_seeds, n_rows, n_draws).
        """
        live = self.party.live
        if mean is not None and log_sigma is not None:
            live.put("posterior", {"mean": mean, "log_sigma": log_sigma, "seed": 0})
        posterior = live.get("posterior", dict, changes=False)
        own = self.other(OwnColumns)
        batch = self.state["batch"]
        networks = self.other(Networks)
        nets = networks.get(changes=False)
        held, told = own.held(batch), []
        with torch.no_grad():
            graph = Graph(nets, held, len(batch), posterior["mean"], posterior["log_sigma"])
            for seed in seeds:
                graph.forward(int(seed), n_draws, networks.noise_seed(int(seed)), own.dtype)
                told.append(graph.sent())
        return Summands({"terms": np.stack(told)})
