"""Predictions by a forest whose routing stays with the parties: the server gets summed votes.

=============  =====================================================================================
round          what travels
=============  =====================================================================================
open_forest    up: public keys; of the arbiter, too
(group seed)   see `GroupKey`; one round
enter          down: what opens the group seed
descend        once a level: sealed for the other parties, the sides of all rows
tally          up: shares of votes, sealed for the arbiter
round_votes    the arbiter's: rounded votes, under a pad
=============  =====================================================================================
"""

import hashlib
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from flwr_vertical import Federation, Party, Result, Uses, step
from flwr_vertical.alignment import Alignment
from flwr_vertical.crypto.sealing import open_sealed, seal
from flwr_vertical.errors import ConfigError, DataError, ProtocolError
from flwr_vertical.products import GroupKey, GroupKeySteps, PairKeys, PairKeySteps
from flwr_vertical.products.streams import stream
from flwr_vertical.protocol.messages import ARBITER
from flwr_vertical.results import Progress
from strategies.regression.prediction.fitted import BuildsOnAFit, check_parties
from strategies.regression.problem import sample_index
from strategies.trees.arbiter import ParcelSteps
from strategies.trees.binning import Codes
from strategies.trees.model import prediction_table
from strategies.trees.objectives import Array, Objective
from strategies.trees.routing import count_sides
from strategies.trees.votes.arbiter import ForestArbiter
from strategies.trees.votes.batch import LEFT, MISSING_LEFT, NUMBER, PARTY, RIGHT, TREE, Lines
from strategies.trees.votes.disclosure import PREDICT_DISCLOSURE
from strategies.trees.votes.kept import coefficients_of
from strategies.trees.votes.model import VotesModel, VotesPart
from strategies.trees.votes.releasing import ReleaseSteps, bits_of, check_bits_of, opened_votes
from strategies.trees.votes.sides import Comers

_AT = "votes.descent"


class Descent:
    """Where rows have come to.

    Attributes
    ----------
    at : numpy.ndarray of shape (n_trees, n_samples), int32
        Lines of the model's table.
    """

    def __init__(self) -> None:
        self.at: Lines = np.zeros((0, 0), dtype=np.int32)

    def pack(self) -> dict[str, Any]:
        """Return what a snapshot holds."""
        return {"at": self.at}

    def unpack(self, tree: dict[str, Any]) -> None:
        """Take up what `pack` returned."""
        self.at = np.array(tree["at"])


class VotesPredictParty(Party):
    """Has its part of the forest from the run named ``fitted``; no step takes any."""

    pair_keys = Uses(PairKeySteps, sends="sides of splits")
    group_key = Uses(GroupKeySteps)
    parcels = Uses(ParcelSteps)
    releasing = Uses(ReleaseSteps)

    @step(repeatable=False)  # key pairs are drawn
    def open_forest(self, model: str, nonce: bytes) -> dict[str, Any]:
        """Look for what this party kept, and make the key pairs of this run.

        Returns
        -------
        dict[str, Any]
            ``grid``: how many bits of a row a prediction may tell; keys as in `TreeParty.prepare`.

        Raises
        ------
        DataError
            If it kept no such model.
        """
        self.codes(self._part(model))
        return {
            "grid": self.policy.grid,
            **self.pair_keys.pair_key(nonce),
            **{f"parcel_{key}": value for key, value in self.parcels.new_key(nonce).items()},
        }

    @step
    def enter(
        self, model: str, owner: str, sealed: bytes, arbiter: list[bytes], **keys: Any
    ) -> None:
        """Take the group seed, and put all rows at the roots.

        Parameters
        ----------
        model : str
            Name of the model.
        owner, sealed, **keys
            See `GroupKeySteps.take`.
        arbiter : list of bytes
            Public key, identity and signature of the arbiter.
        """
        self.group_key.take(owner, sealed, keys)
        if not self.parcels.has_key:
            self.parcels.take_arbiter(keys["nonce"], *arbiter)
        part = self._part(model)
        roots = np.flatnonzero(part.table[:, NUMBER] == 0).astype(np.int32)
        descent = Descent()
        descent.at = np.tile(roots[:, None], (1, self.n_samples))
        self.live.put(_AT, descent)

    @step(repeatable=False)  # nonces of what is sealed are drawn
    def descend(
        self, model: str, names: list[str], level: int, sides: list[bytes] | None = None
    ) -> dict[str, Any]:
        """Follow the splits of the level above, and tell the sides of own ones.

        Parameters
        ----------
        model : str
            Name of the model.
        names : list of str
            Parties that take part; rows pass the splits of others as if they lacked the cell.
        level : int
        sides : list of bytes, optional
            What each party sealed, of the level above.

        Returns
        -------
        dict[str, Any]
            ``open``: whether rows have come to splits; ``sides``, sealed for the other parties: a
            bit for each row and tree.
        """
        part = self._part(model)
        at = self._followed(part, names, level, sides)
        if not (part.table[at, PARTY] >= 0).any():
            return {"open": False}
        layout, codes, own = part.bins.layout, self.codes(part), part.parties.index(self.name)
        comes = part.table[at, PARTY] == own
        trees, rows = np.nonzero(comes)
        column, place = part.splits.T
        comers = Comers.of(layout, codes, rows, at[trees, rows], column, place)
        left = np.zeros(at.shape, dtype=bool)
        left[trees, rows] = comers.sides(part.table[:, MISSING_LEFT] > 0)
        told = np.packbits(left).tobytes()
        content = hashlib.blake2b(np.packbits(comes).tobytes() + told, digest_size=16).digest()
        count_sides(self, comes.sum(axis=0), layout, content, receiver="other parties")
        return {"open": True, "sides": seal(self._key, told, _place(self.name, level))}

    @step
    def tally(
        self,
        model: str,
        names: list[str],
        level: int,
        bits: int,
        sides: list[bytes] | None = None,
    ) -> dict[str, Any]:
        """Seal the own share of the votes for the arbiter, and erase all keys.

        Parameters
        ----------
        model, names, level, sides
            As in `descend`.
        bits : int
            Of each class.
        """
        part = self._part(model)
        at = self._followed(part, names, level, sides)
        n_trees = len(at) // part.n_classes
        votes = np.zeros((part.n_classes, self.n_samples), dtype=np.uint64)
        values = part.leaf * coefficients_of(part.table, n_trees, part.target_bits)
        for lines in at:
            votes[int(part.table[lines[0], TREE]) % part.n_classes] += values[lines]
        content = hashlib.blake2b(model.encode() + np.ascontiguousarray(at).tobytes()).digest()
        rows = np.arange(self.n_samples)
        told = self.releasing.release(
            part.parties.index(self.name), votes, rows, int(bits), content
        )
        self.live.drop(_AT)
        return told

    @step
    def finish_predictions(self) -> None:
        """Erase all keys of the run."""
        self.group_key.erase_group_seed()
        self.parcels.forget()

    def codes(self, part: VotesPart) -> Codes:
        """Return codes in aligned order; rows that this party lacks are missing in all columns."""
        if "votes.codes" not in self.cache:
            own = part.codes(self.table, self.name)
            bins = np.array(part.bins.layout.n_bins, dtype=np.uint8)
            codes = np.tile(bins, (self.n_samples, 1))
            held = self.positions >= 0
            codes[self.positions[held]] = own[held]
            self.cache["votes.codes"] = codes
        found: Codes = self.cache["votes.codes"]
        return found

    def _part(self, model: str) -> VotesPart:
        if "votes.part" not in self.cache:
            part = self.load_model(VotesPart)
            if part is None or part.model != model:
                raise DataError(
                    f"party {self.name!r} kept no forest of the model that is asked for; name the "
                    "run of that fit as 'fitted'"
                )
            self.cache["votes.part"] = part
        found: VotesPart = self.cache["votes.part"]
        return found

    def _followed(
        self, part: VotesPart, names: list[str], level: int, sides: list[bytes] | None
    ) -> Lines:
        """Send rows down the splits that were told, and past those of parties that are absent."""
        descent: Descent = self.live.get(_AT, Descent)
        at, table = descent.at, part.table
        if sides is not None:
            owner, left = table[at, PARTY], np.zeros(at.shape, dtype=bool)
            for name, sealed in zip(names, sides, strict=True):
                told = open_sealed(self._key, sealed, _place(name, level - 1), name)
                if len(told) != (at.size + 7) // 8:
                    raise ProtocolError(
                        f"party {name!r} told the sides of another number of rows or trees than "
                        f"party {self.name!r} has; are their models of the same fit?"
                    )
                bits = np.unpackbits(np.frombuffer(told, dtype=np.uint8), count=at.size)
                left |= bits.astype(bool).reshape(at.shape) & (owner == part.parties.index(name))
            at = np.where(owner >= 0, np.where(left, table[at, LEFT], table[at, RIGHT]), at)
        absent = [k for k, name in enumerate(part.parties) if name not in names]
        while (passes := np.isin(table[at, PARTY], absent)).any():
            side = np.where(table[at, MISSING_LEFT] > 0, table[at, LEFT], table[at, RIGHT])
            at = np.where(passes, side, at)
        descent.at = at.astype(np.int32)
        return descent.at

    @property
    def _key(self) -> bytes:
        return stream(self.group_key.seed, "votes sides", (4,)).tobytes()


class ForestPredict(BuildsOnAFit):
    """Predict samples with a forest that `VerticalForest` grew, and open summed votes alone.

    Which side of a split a row is on goes from its owner to the other parties. The two parties that
    hold the halves of the leaves, the first two of the fit by name, must take part, and an arbiter.
    A sample that another party lacks, or whose party has left, takes at its splits the side that
    was learned for missing cells.
    """

    name: ClassVar[str] = "forest-predict"
    party = VotesPredictParty
    arbiter = ForestArbiter
    disclosure = PREDICT_DISCLOSURE

    @property
    def needs_arbiter(self) -> str | None:
        """What needs an arbiter."""
        return "votes that are rounded"

    @classmethod
    def server_part(cls, fitted: Result) -> VotesModel:
        """Return what the server kept of a fit."""
        if not isinstance(fitted.predictor, VotesModel):
            raise ConfigError(
                f"a result of {fitted.strategy!r} holds no forest whose routing stays with the "
                "parties; expected that of a fit by 'forest'"
            )
        return fitted.predictor

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Have the parties send all samples down all trees, and open the votes."""
        model: VotesModel = self.fitted_part()
        names = list(federation.parties)
        check_parties(names, model.parties, result)
        _check_halves(model, names)
        keys, grid = self._enter(federation, model, names)
        check_bits_of(grid, model.n_classes)
        common: dict[str, Any] = {"model": model.name, "names": names}
        sides: dict[str, list[bytes]] = {}
        level = 0
        for level in range(model.depth):
            told = federation.call("descend", {**common, "level": level, **sides})
            sides = {}
            if not told[names[0]]["open"]:
                break
            sides = {"sides": [told[name]["sides"] for name in names]}
            progress.step("level")
        if sides:
            level += 1
        bits = bits_of(grid, model.n_classes)
        asked = {**common, "level": level, "bits": bits, **sides}
        replies = federation.call("tally", asked)
        raw = model.raw(opened_votes(federation, replies, keys, bits, model.n_classes), bits)
        federation.call("finish_predictions", parties=names)
        federation.call("finish", parties=[ARBITER])
        found = prediction_table(model.loss, raw)
        rows = np.arange(alignment.n_samples)
        result.predictions = found.set_axis(sample_index(alignment, result.labels, rows))
        if federation.labels is not None:
            labels = np.asarray(federation.labels, dtype=float)
            guessed = found["prediction"].to_numpy()
            result.metrics |= figures(model.loss, labels, raw, guessed)

    def _enter(
        self, federation: Federation, model: VotesModel, names: list[str]
    ) -> tuple[dict[str, Any], int]:
        """Exchange keys; return those of the parties, and the bits that a row may tell."""
        pairs = PairKeys(federation)
        asked = {"model": model.name, "nonce": pairs.nonce}
        told = federation.call("open_forest", asked, parties=names)
        told |= federation.call("prepare", {"nonce": pairs.nonce}, parties=[ARBITER])
        pairs.collect({name: told[name] for name in names})
        arguments = GroupKey(federation, pairs).arguments()
        own = told[ARBITER]
        box = [own["public"], own.get("identity", b""), own.get("signature", b"")]
        federation.call("enter", {"model": model.name, "arbiter": box}, per_party=arguments)
        keys = {
            "nonce": pairs.nonce,
            "names": names,
            "publics": [told[n]["parcel_public"] for n in names],
            "identities": [told[n].get("parcel_identity", b"") for n in names],
            "signatures": [told[n].get("parcel_signature", b"") for n in names],
        }
        return keys, min(int(told[name]["grid"]) for name in names)


def figures(
    loss: Objective, labels: Array, raw: Array, guessed: npt.NDArray[np.float64]
) -> dict[str, float]:
    """Return loss, and accuracy or root mean square error, over samples with a label."""
    known = ~np.isnan(labels)
    if not known.any():
        return {}
    found = {"loss": loss.loss(labels[known], raw[:, known])}
    wrong = guessed[known] - labels[known]
    if loss.name == "mean":
        return found | {"rmse": float(np.sqrt(np.mean(wrong**2)))}
    return found | {"accuracy": float(np.mean(wrong == 0))}


def _check_halves(model: VotesModel, names: list[str]) -> None:
    if gone := [name for name in model.parties[:2] if name not in names]:
        raise ConfigError(
            f"party {gone[0]!r} takes no part, and holds one half of what the leaves say; parties "
            f"{model.parties[:2]} are needed. A forest grown with routing='server' needs any one"
        )


def _place(name: str, level: int) -> bytes:
    return b"votes level " + level.to_bytes(4, "big") + name.encode()
