"""The party half of FALSE-VFL.

A pretraining step is three rounds: encode, tell how likely the own columns are, go backward. What a
party keeps of one for the next is in its live objects; the graph of the likelihood stays in the
process, and is computed again where it is not there.
"""

import secrets
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from flwr_vertical import Party, StepGroup, Summands, Uses, step
from flwr_vertical.arrays import AnyArray
from flwr_vertical.errors import DataError
from flwr_vertical.protocol.arguments import Is, OneOf, Shape, Within, check_fits
from strategies.false_vfl.networks import FalseVFLPart, NetworkSettings, PartyNetworks, draw
from strategies.false_vfl.posterior import draw_normals, shared_normals
from strategies.false_vfl.rounds import GRADIENT_LIMIT, MEAN_LIMIT, TERM_LIMIT
from strategies.neural.hardware import precision_on, to_numpy, to_tensor
from strategies.neural.networks import descend, draw_weights
from strategies.neural.party import (
    Batch,
    Device,
    HeldRows,
    KeptPart,
    ModelName,
    NetworkSteps,
    OwnColumns,
    OwnRows,
    Precision,
    Seed,
    Sizes,
    scatter,
)

WEIGHTS, NOISE = "false-vfl weights", "false-vfl noise"
"""What a party draws its own random numbers for."""

MOST_SEEDS, MOST_DRAWS = 2**16, 2**16
"""Of a message at most: what a node has memory for."""


class KeptNetworks(KeptPart):
    """The networks that an earlier run left here."""

    kind = FalseVFLPart


class Networks(NetworkSteps):
    """The party's networks and their optimisers, made once in a run."""

    opened = "sums by sample of its embeddings, of likelihoods of its columns and of gradients"
    sizes_type = NetworkSettings

    @step
    def prepare(
        self,
        networks: Sizes,
        variant: Annotated[str, Is("variant")],
        seed: Seed,
        precision: Precision,
        learning_rate: Annotated[float, Is("pretrain_learning_rate")],
        weight_decay: Annotated[float, Is("weight_decay")],
        n_draws: Annotated[int, Is("importance_samples")],
        device: Device,
    ) -> dict[str, Any]:
        """Agree to take part, and note the settings of the run.

        Message: networks: `NetworkSettings` as text; variant: see `PartyNetworks`; seed: what the
        numbers follow from that are checked; precision: what networks compute in;
        learning_rate, weight_decay: adam's; n_draws: draws of h in a pretraining step; device:
        where to compute; returns ``lone``: whether samples that this party alone
        holds may take part. ``drawn``: the first of the numbers that seed and precision give,
        which must be the server's. ``precision``: what this node computes in, see `precision_on`.
        """
        agreed = self._consent()
        self._note(networks, precision, device)
        self.state["variant"], self.state["draws"] = variant, n_draws
        self.state["learning-rate"], self.state["weight-decay"] = learning_rate, weight_decay
        self.get(changes=True)  # says now whether the table can be used
        return agreed | self._means(seed)

    @step
    def keep(self, model: ModelName) -> dict[str, Any]:
        """Keep this party's part of the model on its own disk, for later predictions.

        Message: model: name of the model.
        """
        settings = NetworkSettings.from_text(str(self.state["networks"]))
        nets, scales = self.get(changes=False), self.other(OwnColumns).scales
        part = FalseVFLPart.of(model, settings, nets, scales, variant=self.variant)
        self.party.save_model(part)
        return {}

    @step
    def open_networks(
        self, model: ModelName, seed: Seed, device: Annotated[str, OneOf(("auto",))]
    ) -> dict[str, Any]:
        """Take up what an earlier run left here, to predict with it.

        Message: model: name of the model; seed, device: as in `prepare`; returns as of `prepare`.
        """
        agreed = self._consent()
        part = self._take_up(model, device)
        assert isinstance(part, FalseVFLPart)
        self.state["variant"] = part.variant
        self.get(changes=True)
        return agreed | self._means(seed)

    def _means(self, seed: int) -> dict[str, Any]:
        """Return what this node draws from a seed, and what it computes in."""
        own = self.other(OwnColumns)
        drawn = draw_normals(seed, "check", (8,), own.dtype).numpy()
        return {"drawn": drawn, "precision": precision_on(own.device, str(self.state["precision"]))}

    def get(self, *, changes: bool) -> PartyNetworks:
        """Return the networks; `changes` says whether the step trains them."""
        return self.party.live.get("networks", self._new, changes=changes)

    def optimiser(self, part: str) -> torch.optim.Adam:
        """Return the optimiser of the encoder, or of the decoder and the missing indicator."""
        return self.party.live.get(part, lambda: self._new_optimiser(part))

    @property
    def variant(self) -> str:
        """``"I"`` or ``"II"``."""
        return str(self.state["variant"])

    @property
    def n_draws(self) -> int:
        """Draws of h in a pretraining step."""
        return int(self.state["draws"])

    def _new(self) -> PartyNetworks:
        part = self.other(KeptPart).part
        own = self.other(OwnColumns)
        if isinstance(part, FalseVFLPart):
            return part.nets(self.name).to(own.device)
        settings = NetworkSettings.from_text(str(self.state["networks"]))
        nets = PartyNetworks(own.n_columns, settings, self.variant, 0, self.name)
        draw_weights(nets, self.party.own_bytes(WEIGHTS))
        return nets.to(own.device, own.dtype)

    def noise_seed(self, seed: int) -> int:
        """Return the seed of what variant II draws of blocks that the party lacks."""
        return int.from_bytes(self.party.own_bytes(NOISE, str(seed).encode()), "little")

    def _new_optimiser(self, part: str) -> torch.optim.Adam:
        nets = self.get(changes=True)
        parameters = list(nets.encoder.parameters())
        if part == "decoder":
            parameters = [*nets.decoder.parameters()]
            if nets.indicator is not None:
                parameters += nets.indicator.parameters()
        rate, decay = float(self.state["learning-rate"]), float(self.state["weight-decay"])
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)


class Graph:
    """The log likelihood of a batch, with the posterior's parameters as leaves.

    Shapes: posterior: ``mean`` and ``log_sigma`` (n_given, h_dim).
    """

    terms: Tensor

    def __init__(
        self, party: str, nets: PartyNetworks, held: HeldRows, n_rows: int, posterior: Any
    ) -> None:
        self._nets, self._held, self._n_rows = nets, held, n_rows
        everywhere = torch.arange(n_rows, device=held.x.device)
        self.rows = held.places if nets.indicator is None else everywhere
        given = [posterior.get(name, ()) for name in ("mean", "log_sigma")]
        for name, values in zip(("mean", "log_sigma"), given, strict=True):
            check_fits(party, name, values, Shape(len(self.rows), nets.h_dim))
        self.mean, self.log_sigma = (to_tensor(values, held.x).requires_grad_() for values in given)

    def forward(self, seed: int, n_draws: int, noise_seed: int, dtype: torch.dtype) -> None:
        """Compute `terms`, shape (n_given, n_draws)."""
        shape = self._n_rows, n_draws
        noise = shared_normals(seed, "h", (*shape, self.mean.shape[1]), dtype)
        x, known, places = self._held
        h = draw(self.mean, self.log_sigma, noise[self.rows.cpu()].to(x.device))
        if self._nets.indicator is None:
            self.terms = self._nets.log_terms(x, known, torch.arange(len(x), device=x.device), h)
            return
        of_x = draw_normals(noise_seed, "x", (*shape, x.shape[1]), dtype).to(x.device)
        self.terms = self._nets.log_terms(x, known, places, h, of_x)

    def sent(self) -> AnyArray:
        """Return the terms of all rows of the batch, 0 where the party has nothing to say."""
        terms = self.terms.detach().clamp(-TERM_LIMIT, TERM_LIMIT)
        return scatter(terms, self.rows, self._n_rows)


class PretrainingSteps(StepGroup):
    """The three rounds of a pretraining step, party side."""

    party: Party

    @step
    def encode(
        self,
        batch: Batch,
        in_mean: OwnRows | None = None,
        in_precision: OwnRows | None = None,
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
            best = self.party.live.get("best", dict[str, Any], changes=False)
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
    def log_terms(self, mean: OwnRows, log_sigma: OwnRows, seed: Seed) -> Summands:
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
    def go_backward(self, weights: OwnRows) -> Summands:
        """Train the decoder by the weights of the draws; tell the gradients in the posterior.

        Message: weights (n_given, n_draws): normalised importance weights, of the rows that
        `log_terms` was given; returns ``in_mean`` and ``in_log_sigma``, shape (n_rows, h_dim):
        gradients of the weighted sum of this party's terms in the posterior of each row.
        """
        mark, graph = self.cache.pop("graph", (None, None))
        if graph is None or mark != self.state["graph"]:
            graph = self._build()
        check_fits(self.name, "weights", weights, Shape(*graph.terms.shape))
        n_rows = len(self.state["batch"])
        loss = -(to_tensor(weights, graph.terms) * graph.terms).sum() / n_rows
        descend(self.other(Networks).optimiser("decoder"), [loss])
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
        mean, precision = networks.get(changes=True).encode(held.x)
        for name, values in (("in_mean", in_mean), ("in_precision", in_precision)):
            check_fits(self.name, name, values, Shape(*mean.shape))
        told = [to_tensor(g, mean) for g in (in_mean, in_precision)]
        descend(networks.optimiser("encoder"), [mean, precision], told)

    def _build(self) -> Graph:
        posterior = self.party.live.get("posterior", dict[str, Any], changes=False)
        batch = self.state["batch"]
        networks, own = self.other(Networks), self.other(OwnColumns)
        nets = networks.get(changes=True)
        graph = Graph(self.name, nets, own.held(batch), len(batch), posterior)
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
        seeds: Annotated[list[int], Within(1, MOST_SEEDS)],
        n_draws: Annotated[int, Within(1, MOST_DRAWS)],
        mean: OwnRows | None = None,
        log_sigma: OwnRows | None = None,
    ) -> Summands:
        """Tell how likely the own columns of the batch are, for several seeds in one message.

        Message: n_draws: draws of h for each of them; mean, log_sigma (n_given, h_dim): as in
        `PretrainingSteps.log_terms`; without them, those of the last message; returns ``terms``,
        shape (n_seeds, n_rows, n_draws).
        """
        live = self.party.live
        if mean is not None and log_sigma is not None:
            live.put("posterior", {"mean": mean, "log_sigma": log_sigma, "seed": 0})
        posterior = live.get("posterior", dict[str, Any], changes=False)
        own = self.other(OwnColumns)
        batch = self.state["batch"]
        networks = self.other(Networks)
        nets = networks.get(changes=False)
        held, told = own.held(batch), []
        with torch.no_grad():
            graph = Graph(self.name, nets, held, len(batch), posterior)
            for seed in seeds:
                graph.forward(int(seed), n_draws, networks.noise_seed(int(seed)), own.dtype)
                told.append(graph.sent())
        return Summands({"terms": np.stack(told)})


class FalseVFLParty(Party):
    """A party of FALSE-VFL."""

    kept = Uses(KeptNetworks)
    columns = Uses(OwnColumns)
    networks = Uses(Networks)
    pretraining = Uses(PretrainingSteps)
    scoring = Uses(ScoringSteps)
