"""`Strategy`: the server half of a method, and how it starts."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from flwr.serverapp import Grid

from flwr_vertical.alignment import Aligner, Alignment, check_overlap, make_aligner
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.protocol.books import describe, journaled
from flwr_vertical.protocol.federation import Federation
from flwr_vertical.protocol.party import Arbiter, Party
from flwr_vertical.protocol.storage import data_digest
from flwr_vertical.results import Progress, Result
from flwr_vertical.tables import checked_ids

logger = logging.getLogger("flwr_vertical")

_SUM_DISCLOSURE = {
    "plain": (("server", "every party's own term of every sum: 'plain' hides nothing from it"),),
    "masked": (
        ("server", "every sum over the parties, and no party's term of it"),
        ("each of two parties", "the other's term, wherever it learns a sum (only with two)"),
    ),
    "ckks": (
        ("arbiter", "every sum over the parties, and no party's term of it"),
        ("server", "ciphertexts, and what the arbiter releases of the sums"),
    ),
}


class Strategy(ABC):
    """The server half of a vertical method.

    A subclass names its other halves and writes `run` as a straight-line program over a
    `Federation`. Its attributes are settings; what changes during a run lives in `run`.

    Attributes
    ----------
    name : str
        Short name, as in the run config.
    party : type[Party]
        The party half.
    arbiter : type[Arbiter]
        The arbiter half; matters to strategies that release something else than sums.
    disclosure : tuple[tuple[str, str], ...]
        Who learns what, beside what alignment and private sums disclose by themselves: rows of
        the disclosure table.
    default_alignment : str
        How samples are aligned unless the run says otherwise.
    """

    name: ClassVar[str]
    party: ClassVar[type[Party]]
    arbiter: ClassVar[type[Arbiter]] = Arbiter
    disclosure: ClassVar[tuple[tuple[str, str], ...]] = ()
    default_alignment: ClassVar[str] = "private-id"

    @property
    def needs_arbiter(self) -> str | None:
        """What needs an arbiter whatever the mode of the sums, for messages; None if nothing."""
        return None

    def settings(self) -> dict[str, Any]:
        """Return the constructor's settings, for the result and the report."""
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}

    @abstractmethod
    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Carry out the method and fill in the result.

        Parameters
        ----------
        federation : Federation
            The open federation; ``federation.labels`` is an array of shape (n_samples,) with
            NaN where a sample has no label, or None.
        alignment : Alignment
            Row index and mask.
        result : Result
            To be filled: metrics, history, coefficients, model.
        progress : Progress
            To be told about every step of long work.
        """

    def start(
        self,
        *,
        grid: Grid,
        labels: "pd.Series[Any] | None" = None,
        label_holder: str | None = None,
        aggregation: str = "masked",
        alignment: str | Aligner | None = None,
        align_rows: str = "union",
        normalise_ids: str | Sequence[str] = (),
        seed: int = 0,
        fraction_bits: int = 32,
        timeout: float = 3600.0,
        retries: int = 2,
        parties: Sequence[str] | None = None,
        min_nodes: int | None = None,
        patience: float = 60.0,
        progress: bool | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        save: Callable[[Result], Any] | None = None,
    ) -> Result:
        """Run the strategy over a grid.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
            Carries the messages; Flower hands one to ``@app.main()``.
        labels : pandas.Series, optional
            Labels held by the server, indexed by sample ID; NaN = unlabelled.
        label_holder : str, optional
            A party that hands its label column to the server instead.
        aggregation : {"masked", "plain", "ckks"}, default "masked"
            Mode of the private sum.
        alignment : {"private-id", "blind-rsa", "plain"} or Aligner, optional
            How samples are aligned (default: the strategy's `default_alignment`).
        align_rows : {"union", "intersection", "labelled"}, default "union"
            Which samples take part.
        normalise_ids : sequence of str, or str with commas
            ``"strip"``, ``"casefold"``, ``"nfc"``: how text IDs are made comparable.
        seed : int, default 0
            Seed of simulation randomness; never of masks or privacy noise.
        fraction_bits, timeout, retries, parties, min_nodes, patience
            See `Federation`.
        progress : bool, optional
            Show progress (default: yes; a bar on a terminal, log lines elsewhere).
        checkpoint : path-like, optional
            A folder for the journal of this run. Nodes keep checkpoints then, under the
            ``run-name`` of the run config. A node that is lost is waited for; a run that fails can
            be resumed. After a run that succeeds nothing of it is left.
        resume : bool, default False
            Go on with the run that broke off, whose journal is in that folder.
        save : Callable[[Result], Any], optional
            Called with the result before journal and checkpoints are given up.

        Returns
        -------
        Result
            What the server holds afterwards. Tables stay at the parties.
        """
        alignment = self.default_alignment if alignment is None else alignment
        aligner = make_aligner(alignment, align_rows, normalise_ids)
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise ConfigError(f"seed must be an integer of at least 0, got {seed!r}")
        if resume and checkpoint is None:
            raise ConfigError("resume=True needs checkpoint: the folder of the run to go on with")
        settings = {
            **self.settings(),
            "aggregation": aggregation,
            "alignment": alignment if isinstance(alignment, str) else type(alignment).__name__,
            "align_rows": aligner.rows,
            "normalise_ids": list(aligner.normalise),
            "seed": int(seed),
            "fraction_bits": fraction_bits,
        }
        identity = {}
        if checkpoint is not None:
            identity = self._identity(settings, aligner, labels, label_holder, parties)
        with journaled(checkpoint, resume, identity) as journal:
            federation = Federation(
                grid,
                aggregation=aggregation,
                arbiter=self.arbiter,
                fraction_bits=fraction_bits,
                timeout=timeout,
                retries=retries,
                parties=parties,
                min_nodes=min_nodes,
                patience=patience,
                needs_arbiter=self.needs_arbiter,
                journal=journal,
            )
            result = Result(
                strategy=self.name,
                settings=settings,
                ledger=federation.ledger,
                disclosure=[
                    *aligner.disclosure,
                    *(
                        (("server", f"the labels that {label_holder} holds"),)
                        if label_holder
                        else ()
                    ),
                    *_SUM_DISCLOSURE[aggregation],
                    *self.disclosure,
                ],
            )
            with Progress(self.name, enabled=True if progress is None else progress) as shown:
                federation.open()
                label_ids = None if labels is None else label_index(labels)
                aligned = aligner.align(federation, label_ids, label_holder)
                check_overlap(aligned)
                federation.labels = align_labels(federation, aligned, labels, label_holder)
                federation.rng = np.random.default_rng(seed)
                result.parties = list(federation.parties)
                result.mask = aligned.mask
                result.labels = labels
                self.run(federation, aligned, result, shown)
            federation.close()
            if save is not None:
                save(result)
        return result

    def _identity(
        self,
        settings: dict[str, Any],
        aligner: Aligner,
        labels: "pd.Series[Any] | None",
        label_holder: str | None,
        parties: Sequence[str] | None,
    ) -> dict[str, str]:
        """Return what a run that is resumed must have in common with the one that broke off."""
        if labels is not None:
            label_index(labels)  # says in words what cannot be used
        known = settings | {f"alignment {key}": value for key, value in vars(aligner).items()}
        return {
            **{key: describe(value) for key, value in known.items()},
            "strategy": self.name,
            "labels": "none" if labels is None else f"those with digest {data_digest(labels)}",
            "label_holder": describe(label_holder),
            "parties": describe(None if parties is None else sorted(parties)),
        }


def align_labels(
    federation: Federation,
    alignment: Alignment,
    labels: "pd.Series[Any] | None",
    label_holder: str | None,
) -> Any:
    """Bring the labels into the aligned order.

    Returns
    -------
    numpy.ndarray of shape (n_samples,) or None
        NaN where a sample has no label; None if there are no labels at all.
    """
    if label_holder is not None:
        reply = federation.call("labels", parties=[label_holder])[label_holder]
        aligned = np.full(alignment.n_samples, np.nan)
        positions = reply["positions"]
        aligned[positions[positions >= 0]] = reply["labels"][positions >= 0]
        return aligned
    if labels is None:
        return None
    assert alignment.label_rows is not None
    belongs = alignment.label_rows >= 0
    if len(labels) and not belongs.any():
        raise DataError("no label belongs to a sample of any party; check the labels' sample IDs")
    aligned = np.full(alignment.n_samples, np.nan)
    aligned[alignment.label_rows[belongs]] = labels.to_numpy(dtype=float)[belongs]
    return aligned


def label_index(labels: "pd.Series[Any]") -> "pd.Index[Any]":
    """Return the sample IDs of labels, checked; so are the labels."""
    if not isinstance(labels, pd.Series):
        raise DataError(
            f"labels must be a pandas Series indexed by sample ID, got {type(labels).__name__}"
        )
    try:
        labels.to_numpy(dtype=float)
    except (TypeError, ValueError):
        raise DataError(
            f"labels must be numbers, NaN where a sample has none, got dtype {labels.dtype}; code "
            "classes as 0, 1, ..."
        ) from None
    return checked_ids(labels.index, "the table of labels")
