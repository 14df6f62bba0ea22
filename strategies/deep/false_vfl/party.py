"""The party half of FALSE-VFL: encode, tell how likely its columns are given h, go backward.

A pretraining step is three rounds. What a party keeps of one for the next is in its live objects;
the graph of the likelihood stays in the process, and is computed again where it is not there.
"""

import secrets
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flwr_vertical import Party, StepGroup, Summands, Uses, step
from flwr_vertical.errors import DataError
from flwr_vertical.policy.record import allows
from strategies.deep.false_vfl.columns import Held, KeptPart, OwnColumns
from strategies.deep.false_vfl.gaussian import draw_normals
from strategies.deep.false_vfl.model import FalseVFLPart
from strategies.deep.false_vfl.networks import NetworkSettings
from strategies.deep.false_vfl.party_model import PartyNets
from strategies.deep.false_vfl.server_model import draw

Array = npt.NDArray[Any]

EMBEDDINGS, LONE_EMBEDDINGS = "embeddings", "lone-embeddings"
"""Exchanges to which a node must agree: sums of embeddings by sample, and of samples that it alone
holds, which such a sum does not hide."""

TERM_LIMIT, GRADIENT_LIMIT = 2.0**18, 2.0**14
"""What a party sends at most of a log likelihood, and of a gradient by sample."""


class Networks(StepGroup):
    """The party's networks and their optimisers, made once in a run."""

    party: Party

    @step
    def prepare(
        self,
        networks: str,
        variant: str,
        seed: int,
        precision: str,
        encoding: str,
        learning_rate: float,
        weight_decay: float,
        n_draws: int,
    ) -> dict[str, Any]:
        """Agree to take part, and note the settings of the run.

        Parameters
        ----------
        networks : str
            `NetworkSettings` as text.
        variant, seed
            See `PartyNets`.
        precision : {"float32", "float64"}
            What networks compute in.
        encoding : {"none", "one-hot"}
            See `numeric_matrix`.
        learning_rate, weight_decay : float
            Adam's.
        n_draws : int
            Draws of h in a pretraining step.

        Returns
        -------
        dict
            ``lone``: whether samples that this party alone holds may take part. ``drawn``: the
            first of the numbers that seed and precision give, which must be the server's.

        Raises
        ------
        PolicyError
            If the node does not agree.
        DataError
            If its table cannot be used.
        """
        agreed = self._consent()
        self.state["networks"], self.state["variant"], self.state["seed"] = networks, variant, seed
        self.state["precision"], self.state["encoding"] = precision, encoding
        self.state["learning-rate"], self.state["weight-decay"] = learning_rate, weight_decay
        self.state["draws"] = n_draws
        self.get(changes=True)  # says now whether the table can be used
        return agreed | {"drawn": self._drawn(seed)}

    @step
    def keep(self, model: str) -> dict[str, Any]:
        """Keep this party's part of the model on its own disk, for later predictions.

        Parameters
        ----------
        model : str
            Name of the model.
        """
        settings = NetworkSettings.from_text(str(self.state["networks"]))
        scales = self.other(OwnColumns).scales
        part = FalseVFLPart.of(model, settings, self.get(changes=False), scales)
        self.party.save_model(part)
        return {}

    @step
    def open_networks(self, model: str, seed: int) -> dict[str, Any]:
        """Take up what an earlier run left here, to predict with it.

        Parameters
        ----------
        model : str
            Name of the model.
        seed : int
            As in `prepare`.

        Returns
        -------
        dict
            As of `prepare`.
        """
        agreed = self._consent()
        self.state["model"] = model
        part = self.other(KeptPart).part
        assert part is not None
        self.state["precision"], self.state["variant"] = part.precision, part.variant
        self.get(changes=True)
        return agreed | {"drawn": self._drawn(seed)}

    def _consent(self) -> dict[str, Any]:
        """Refuse unless the node agrees to embeddings; say whether it does to lone ones.

        However often a row is encoded, it tells no more than it holds: that is what the ledger has.
        """
        what = "sums by sample of its embeddings, of likelihoods of its columns and of gradients"
        self.party.open_exchange(EMBEDDINGS, what)
        return {"lone": allows(self.party.policy.exchanges, LONE_EMBEDDINGS)}

    def _drawn(self, seed: int) -> Array:
        drawn: Array = draw_normals(seed, "check", (8,), self.other(OwnColumns).dtype).numpy()
        return drawn

    def get(self, *, changes: bool) -> PartyNets:
        """Return the networks; `changes` says whether the step trains them."""
        found: PartyNets = self.party.live.get("networks", self._new, changes=changes)
        return found

    def optimiser(self, part: str) -> torch.optim.Adam:
        """Return the optimiser of the encoder, or of the decoder and the missing indicator."""
        found: torch.optim.Adam = self.party.live.get(part, lambda: self._new_optimiser(part))
        return found

    @property
    def variant(self) -> str:
        """``"I"`` or ``"II"``."""
        return str(self.state["variant"])

    @property
    def n_draws(self) -> int:
        """Draws of h in a pretraining step."""
        return int(self.state["draws"])

    def _new(self) -> PartyNets:
        part = self.other(KeptPart).part
        if part is not None:
            return part.nets(self.name)
        own = self.other(OwnColumns)
        settings = NetworkSettings.from_text(str(self.state["networks"]))
        seed = int(self.state["seed"])
        return PartyNets(own.n_columns, settings, self.variant, seed, self.name).to(own.dtype)

    def _new_optimiser(self, part: str) -> torch.optim.Adam:
        nets = self.get(changes=True)
        parameters = list(nets.encoder.parameters())
        if part == "decoder":
            parameters = [*nets.decoder.parameters()]
            if nets.indicator is not None:
                parameters += nets.indicator.parameters()
        rate, decay = float(self.state["learning-rate"]), float(self.state["weight-decay"])
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)


class PretrainingSteps(StepGroup):
    """The three rounds of a pretraining step, party side."""

    party: Party

    @step
    def encode(
        self,
        batch: Array,
        in_mean: Array | None = None,
        in_precision: Array | None = None,
    ) -> Summands:
        """Take the step that the last batch's gradient asks for, then encode a batch.

        Parameters
        ----------
        batch : numpy.ndarray of shape (n_rows,), int64
            Aligned rows.
        in_mean, in_precision : numpy.ndarray of shape (n_held of the last batch, h_dim), optional
            Gradients of the loss in what this party sent of that batch.

        Returns
        -------
        Summands
            ``mean`` and ``precision``, shape (n_rows, h_dim): 0 for rows that the party lacks.
        """
        if in_mean is not None and in_precision is not None:
            self._learn(in_mean, in_precision)
        self.state["batch"] = np.asarray(batch)
        held = self.other(OwnColumns).held(batch)
        nets = self.other(Networks).get(changes=False)
        with torch.no_grad():
            mean, precision = nets.encode(held.x)
        return Summands(
            {
                "mean": scatter(mean, held.places, len(batch)),
                "precision": scatter(precision, held.places, len(batch)),
            }
        )

    @step
    def log_terms(self, mean: Array, log_sigma: Array, seed: int) -> Summands:
        """Tell how likely the own columns of the batch are under draws of h.

        Parameters
        ----------
        mean, log_sigma : numpy.ndarray of shape (n_given, h_dim)
            Of the posterior of h, of the rows that the party holds; of all rows in variant II.
        seed : int
            The draws follow from it.

        Returns
        -------
        Summands
            ``terms``, shape (n_rows, n_draws).
        """
        self.party.live.put("posterior", {"mean": mean, "log_sigma": log_sigma, "seed": seed})
        graph = self._build()
        # Whether the graph in the process is the one of this very message.
        self.state["graph"] = mark = secrets.token_hex(8)
        self.cache["graph"] = (mark, graph)
        return Summands({"terms": graph.sent()})

    @step
    def go_backward(self, weights: Array) -> Summands:
        """Train the decoder by the weights of the draws; tell the gradients in the posterior.

        Parameters
        ----------
        weights : numpy.ndarray of shape (n_given, n_draws)
            Normalised importance weights, of the rows that `log_terms` was given.

        Returns
        -------
        Summands
            ``in_mean`` and ``in_log_sigma``, shape (n_rows, h_dim): gradients of the weighted sum
            of this party's terms in the posterior of each row.
        """
        mark, graph = self.cache.pop("graph", (None, None))
        if graph is None or mark != self.state["graph"]:
            graph = self._build()
        optimiser = self.other(Networks).optimiser("decoder")
        optimiser.zero_grad(set_to_none=True)
        n_rows = len(self.state["batch"])
        given = torch.from_numpy(np.array(weights)).to(graph.terms.dtype)
        loss = -(given * graph.terms).sum() / n_rows
        torch.autograd.backward([loss])
        optimiser.step()
        told = {}
        for name, leaf in (("in_mean", graph.mean), ("in_log_sigma", graph.log_sigma)):
            gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad * n_rows
            # Beyond the limit of the private sum a gradient is cut, as clipping by value does.
            gradient = gradient.clamp(-GRADIENT_LIMIT, GRADIENT_LIMIT)
            told[name] = scatter(gradient, graph.rows, n_rows)
        self._check_finite(told, "gradient")
        return Summands(told)

    def _learn(self, in_mean: Array, in_precision: Array) -> None:
        """Train the encoder on the last batch, by computing its forward pass again."""
        networks = self.other(Networks)
        held = self.other(OwnColumns).held(self.state["batch"])
        optimiser = networks.optimiser("encoder")
        optimiser.zero_grad(set_to_none=True)
        mean, precision = networks.get(changes=True).encode(held.x)
        torch.autograd.backward(
            [mean, precision],
            [torch.from_numpy(np.array(g)).to(mean.dtype) for g in (in_mean, in_precision)],
        )
        optimiser.step()

    def _build(self) -> "Graph":
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
        graph.forward(int(posterior["seed"]), networks.n_draws, self.name, own.dtype)
        self._check_finite({"terms": graph.terms.detach().numpy()}, "log likelihood")
        return graph

    def _check_finite(self, arrays: dict[str, Array], what: str) -> None:
        for array in arrays.values():
            if not np.isfinite(array).all():
                raise DataError(
                    f"party {self.name!r}: its {what} is not finite: the training has diverged. "
                    "Lower pretrain_learning_rate, and look for extreme values in its columns"
                )


class Graph:
    """The log likelihood of a batch, with the posterior's parameters as leaves.

    Parameters
    ----------
    nets : PartyNets
    held : Held
        Of the batch.
    n_rows : int
        Of the batch.
    mean, log_sigma : numpy.ndarray of shape (n_given, h_dim)
    """

    terms: Tensor

    def __init__(
        self, nets: PartyNets, held: Held, n_rows: int, mean: Array, log_sigma: Array
    ) -> None:
        self._nets, self._held, self._n_rows = nets, held, n_rows
        self.mean, self.log_sigma = (
            torch.from_numpy(np.array(values)).to(held.x.dtype).requires_grad_()
            for values in (mean, log_sigma)
        )
        self.rows = held.places if nets.indicator is None else torch.arange(n_rows)
        if len(self.mean) != len(self.rows):
            raise DataError(
                f"expected the posterior of {len(self.rows)} rows, got that of {len(self.mean)}"
            )

    def forward(self, seed: int, n_draws: int, name: str, dtype: torch.dtype) -> None:
        """Compute `terms`, shape (n_given, n_draws)."""
        shape = self._n_rows, n_draws
        noise = draw_normals(seed, "h", (*shape, self.mean.shape[1]), dtype)[self.rows]
        h = draw(self.mean, self.log_sigma, noise)
        x, known, places = self._held
        if self._nets.indicator is None:
            self.terms = self._nets.log_terms(x, known, torch.arange(len(x)), h)
            return
        of_x = draw_normals(seed, f"x of {name}", (*shape, x.shape[1]), dtype)
        self.terms = self._nets.log_terms(x, known, places, h, of_x)

    def sent(self) -> Array:
        """Return the terms of all rows of the batch, 0 where the party has nothing to say."""
        terms = self.terms.detach().clamp(-TERM_LIMIT, TERM_LIMIT)
        return scatter(terms, self.rows, self._n_rows)


class ScoringSteps(StepGroup):
    """The second stage and predictions, party side: nothing is trained here any more."""

    party: Party

    @step
    def score(
        self,
        seeds: list[int],
        n_draws: int,
        mean: Array | None = None,
        log_sigma: Array | None = None,
    ) -> Summands:
        """Tell how likely the own columns of the batch are, for several seeds in one message.

        Parameters
        ----------
        seeds : list of int
        n_draws : int
            Draws of h for each of them.
        mean, log_sigma : numpy.ndarray of shape (n_given, h_dim), optional
            As in `PretrainingSteps.log_terms`; without them, those of the last message.

        Returns
        -------
        Summands
            ``terms``, shape (n_seeds, n_rows, n_draws).
        """
        live = self.party.live
        if mean is not None and log_sigma is not None:
            live.put("posterior", {"mean": mean, "log_sigma": log_sigma, "seed": 0})
        posterior = live.get("posterior", dict, changes=False)
        own = self.other(OwnColumns)
        batch = self.state["batch"]
        nets = self.other(Networks).get(changes=False)
        held, told = own.held(batch), []
        with torch.no_grad():
            graph = Graph(nets, held, len(batch), posterior["mean"], posterior["log_sigma"])
            for seed in seeds:
                graph.forward(int(seed), n_draws, self.name, own.dtype)
                told.append(graph.sent())
        return Summands({"terms": np.stack(told)})


class FalseVFLParty(Party):
    """A party of FALSE-VFL."""

    kept = Uses(KeptPart)
    columns = Uses(OwnColumns)
    networks = Uses(Networks)
    pretraining = Uses(PretrainingSteps)
    scoring = Uses(ScoringSteps)


def scatter(values: Tensor, places: Tensor, n_rows: int) -> Array:
    """Put rows at their places, among zeros; shape (n_rows, ...)."""
    full = values.new_zeros((n_rows, *values.shape[1:]))
    array: Array = full.index_copy(0, places, values).numpy()
    return array
