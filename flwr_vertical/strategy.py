"""`Strategy`: the server half of a method, and how it starts."""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import pandas as pd
from flwr.serverapp import Grid

from flwr_vertical.alignment.base import Aligner, Alignment, check_overlap
from flwr_vertical.alignment.registry import make_aligner
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.node.party import Arbiter, Party
from flwr_vertical.node.row_index import to_aligned
from flwr_vertical.node.storage import data_digest
from flwr_vertical.optional import how_to_install
from flwr_vertical.predictions import Predictions
from flwr_vertical.protocol.declaration import Protocol
from flwr_vertical.result import Result
from flwr_vertical.results import Progress
from flwr_vertical.server.federation import Federation
from flwr_vertical.server.journal import Journal
from flwr_vertical.server.label_memory import digest_of_labels
from flwr_vertical.server.run_record import describe, journaled
from flwr_vertical.server.settings import RunOptions, RunSettings
from flwr_vertical.settings import Settings, settings_of
from flwr_vertical.tables import label_index
from flwr_vertical.tables.ids import with_joined_ids
from flwr_vertical.version import __version__

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


class Strategy(Settings, ABC):
    """The server half of a vertical method.

    A subclass names its other halves and writes `run` as a straight-line program over a
    `Federation`. It is a frozen record of its settings: each is an annotated field made by
    `setting`, from which constructor, checks, documentation, run config and tables follow. What
    changes during a run lives in `run`.

    Attributes
    ----------
    name : str
        Short name, as in the run config.
    party : type[Party]
        The party half.
    arbiter : type[Arbiter]
        The arbiter half; matters to strategies that release something else than sums.
    protocol : Protocol, optional
        What it exchanges after the alignment: nodes answer nothing else. Without one, nodes need
        their owners' consent, and count all that leaves by its size.
    disclosure : tuple[tuple[str, str], ...]
        Who learns what, beside what alignment and private sums disclose by themselves: rows of
        the disclosure table.
    default_alignment : str
        How samples are aligned unless the run says otherwise.
    needs_labels : bool
        Whether there is nothing to do without labels.
    needs_parties : int
        The fewest parties that it can work with.
    needs_common_samples : bool
        Whether each party must share a sample with another one.
    uses_labels : bool
        Whether labels are used where there are any; those that need labels need not say so.
    uses_weights : bool
        Whether it takes weights of the samples and an offset of their linear predictors.
    predictions : type[Predictions], optional
        How the strategy ``predict`` predicts new rows with models of this one.
    result_type : type[Result]
        What a run returns.
    requires : tuple[str, ...]
        Packages that server and parties need beside the core's, such as ``("torch",)``.
    demo : Mapping[str, bool | int | float | str]
        Keys of the run config in which a demonstration of the method differs from the defaults,
        such as ``{"demo.dataset": "diabetes", "labels": "demo"}``.

    Examples
    --------
    >>> from flwr_vertical import setting
    >>> class Scaled(Strategy):
    ...     '''Scale every column.'''
    ...     scale: float = setting(1.0, "What columns are multiplied by.", above=0)
    ...     name = "scaled"
    ...     def run(self, federation, alignment, result, progress): ...
    >>> Scaled(2)
    Scaled(scale=2.0)
    """

    name: ClassVar[str]
    party: ClassVar[type[Party]]
    arbiter: ClassVar[type[Arbiter]] = Arbiter
    protocol: ClassVar[Protocol | None] = None
    disclosure: ClassVar[tuple[tuple[str, str], ...]] = ()
    default_alignment: ClassVar[str] = "private-id"
    needs_labels: ClassVar[bool] = False
    needs_parties: ClassVar[int] = 1
    needs_common_samples: ClassVar[bool] = True
    uses_labels: ClassVar[bool] = False
    uses_weights: ClassVar[bool] = False
    predictions: ClassVar[type[Predictions] | None] = None
    result_type: ClassVar[type[Result]] = Result
    requires: ClassVar[tuple[str, ...]] = ()
    demo: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    @classmethod
    def _subject(cls) -> str:
        return f"strategy {getattr(cls, 'name', cls.__name__)!r}: "

    @classmethod
    def check_requirements(cls) -> None:
        """Raise `ConfigError` if a package that the strategy needs is not installed."""
        missing = [name for name in cls.requires if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(cls._subject() + how_to_install(missing))

    def check_label_holder(self, label_holder: str | None) -> None:
        """Raise `ConfigError` if a party is to hand over labels that nothing would use."""
        if label_holder and not (self.needs_labels or self.uses_labels):
            raise ConfigError(
                f"{self.name} uses no labels: take out label-holder and label-column, so that they "
                f"stay a column of the table of {label_holder!r}"
            )

    @property
    def needs_arbiter(self) -> str | None:
        """What needs an arbiter whatever the mode of the sums, for messages; None if nothing."""
        return None

    @property
    def earlier(self) -> Result | None:
        """An earlier result that it builds on: a simulation hands on what its parties kept."""
        return None

    def building_on(self, earlier: "Result | Path") -> Self:
        """Return the strategy for a run that names an earlier one (``fitted``).

        Parameters
        ----------
        earlier : Result or Path
            That run's result, or the folder where the server would have saved it.
        """
        return self

    def at_node(self, load_model: Callable[[], bytes | None]) -> Self:
        """Return the strategy at a party, for strategies that read what an earlier run left there.

        Parameters
        ----------
        load_model : Callable
            Returns the party's part of the model of the run named ``fitted``, None if none is.
        """
        return self

    def protocol_of_run(self) -> Protocol | None:
        """Return the protocol with the settings filled in; None if it is not declared."""
        declared = type(self).protocol
        return None if declared is None else declared.given(self.settings())

    def settings(self) -> dict[str, Any]:
        """Return the constructor's settings, for the result and the report: plain values."""
        if self.by_hand:
            return {key: value for key, value in vars(self).items() if not key.startswith("_")}
        return {
            item.name: item.to_plain(getattr(self, item.name)) for item in settings_of(type(self))
        }

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
        beside: "Mapping[str, pd.Series[Any]] | None" = None,
        save: Callable[[Result], Any] | None = None,
        watch: Callable[[Federation, Progress], Any] | None = None,
        run: RunSettings | None = None,
        **options: Unpack[RunOptions],
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
        beside : Mapping[str, pandas.Series], optional
            ``weights`` and ``offset``, beside labels of the server.
        save : Callable[[Result], Any], optional
            Called with the result before journal and checkpoints are given up.
        watch : Callable[[Federation, Progress], Any], optional
            Given what another thread may read while the run lasts, before it begins.
        run : RunSettings, optional
            Settings of the run.
        **options
            Fields of `RunSettings` by name: ``aggregation="ckks"``.

        Returns
        -------
        Result
            What the server holds afterwards. Tables stay at the parties.
        """
        run = RunSettings.of(run, options)
        aligner, settings, identity = self.plan(run, labels, label_holder, beside)
        protocol = self.protocol_of_run()
        with journaled(run.checkpoint, run.resume, identity) as journal:
            federation = Federation(
                grid, run, arbiter=self.arbiter, needs_arbiter=self.needs_arbiter, journal=journal,
                protocol="" if protocol is None else protocol.of_strategy,
            )  # fmt: skip
            result = self.result_type(
                strategy=self.name, settings=settings, call=repr(self), version=__version__,
                ledger=federation.ledger, disclosure=[
                    *aligner.disclosure,
                    *[("server", f"the labels that {label_holder} holds")] * bool(label_holder),
                    *_SUM_DISCLOSURE[run.aggregation],
                    *self.disclosure,
                ],
            )  # fmt: skip
            with Progress(self.name, enabled=run.progress in (None, True)) as shown:
                federation.on_round = shown.round
                if watch is not None:
                    watch(federation, shown)
                federation.open()
                label_ids = None if labels is None else label_index(labels)
                aligned = aligner.align(federation, label_ids, label_holder)
                if protocol is None:
                    result.notes.append(
                        f"strategy {self.name!r} declares no protocol, so nodes answer each of its "
                        "steps at any time: they need their owners' consent, and count all that "
                        "leaves by its size"
                    )
                if labels is not None and not (self.needs_labels or self.uses_labels):
                    result.notes.append(f"{self.name} made no use of the server's labels")
                if alone := check_overlap(aligned, self.needs_common_samples):
                    result.notes.append(
                        f"parties {alone} share no sample with any other; if they should, check "
                        "that all parties write sample IDs in the same way"
                    )
                federation.labels = align_labels(federation, aligned, labels, label_holder, result)
                for name, values in (beside or {}).items():
                    federation.beside[name] = align_beside(aligned, labels, values, name)
                federation.rng = np.random.default_rng(run.seed)
                result.parties = list(federation.parties)
                result.mask = aligned.mask
                result.labels = labels
                self.run(federation, aligned, result, shown)
                result.check_predictions()
            federation.close()
            result.finished = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
            if labels is not None:
                _compare_known(result, labels)
            if save is not None:
                save(result)
        return result

    def plan(
        self,
        run: RunSettings,
        labels: "pd.Series[Any] | None" = None,
        label_holder: str | None = None,
        beside: "Mapping[str, pd.Series[Any]] | None" = None,
    ) -> tuple[Aligner, dict[str, Any], dict[str, str]]:
        """Check what needs no node; return the aligner, the run's settings and its identity."""
        self.check_requirements()
        if beside and not self.uses_weights:
            raise ConfigError(f"{self._subject()}it takes no {' and no '.join(beside)}")
        if beside and labels is None:
            raise ConfigError(f"{', '.join(beside)}: go beside labels of the server, no party's")
        if self.needs_labels and labels is None and label_holder is None:
            raise DataError(
                f"{self.name} needs labels: give them to simulate(..., labels=...), or in an app "
                "name a file ('labels') or the party that holds them ('label-holder', "
                "'label-column')"
            )
        self.check_label_holder(label_holder)
        for name, values in {"labels": labels, **(beside or {})}.items():
            if values is not None:
                label_index(values, name)  # says in words what cannot be used
        chosen = self.default_alignment if run.alignment is None else run.alignment
        aligner = make_aligner(chosen, run.align_rows, run.normalise_ids)
        settings = {
            **self.settings(),
            "aggregation": run.aggregation,
            "alignment": chosen if isinstance(chosen, str) else type(chosen).__name__,
            "align_rows": aligner.rows,
            "normalise_ids": list(aligner.normalise),
            "seed": run.seed,
            "fraction_bits": run.fraction_bits,
        }
        if run.checkpoint is None:
            return aligner, settings, {}
        # What a run that is resumed must have in common with the one that broke off.
        known = settings | {f"alignment {key}": value for key, value in vars(aligner).items()}
        identity = {
            **{key: describe(value) for key, value in known.items()},
            "strategy": self.name,
            "labels": "none" if labels is None else f"those with digest {data_digest(labels)}",
            "label_holder": describe(label_holder),
            "parties": describe(None if run.parties is None else sorted(run.parties)),
            **{name: data_digest(values) for name, values in (beside or {}).items()},
        }
        if run.checkpoint_every is not None:
            identity["checkpoint_every"] = describe(run.checkpoint_every)
        if run.resume:
            Journal.check(Path(run.checkpoint), identity)
        return aligner, settings, identity


def _compare_known(result: Result, labels: "pd.Series[Any]") -> None:
    """Evaluate predictions of samples that have a label all the same, as new rows may have."""
    predicted = result.predictions
    if predicted is None or "prediction" not in predicted or result.evaluation is not None:
        return
    known = with_joined_ids(labels.dropna().astype(float))
    if predicted.index.isin(known.index).any():
        stated = dict(result.metrics)
        result.compare(known, what="predicted samples whose label is known", prefix="")
        result.metrics |= stated


def align_labels(
    federation: Federation,
    alignment: Alignment,
    labels: "pd.Series[Any] | None",
    label_holder: str | None,
    result: Result,
) -> Any:
    """Bring the labels into the aligned order; a note says how many belong to none of its samples.

    Shapes: returns (n_samples,), NaN where a sample has no label; None if there are no labels.
    """
    if label_holder is not None:
        reply = federation.call("labels", parties=[label_holder])[label_holder]
        federation.label_memory.find_labels = lambda: bytes(reply.get("version", b""))
        return to_aligned(reply["labels"], reply["positions"], alignment.n_samples, np.nan)
    if labels is None:
        return None
    assert alignment.label_rows is not None
    federation.label_memory.find_labels = partial(digest_of_labels, labels)
    belongs = alignment.label_rows >= 0
    if len(labels) and not belongs.any():
        raise DataError("no label belongs to a sample of any party; check the labels' sample IDs")
    if strange := int((~belongs & labels.notna().to_numpy()).sum()):
        told = f"{strange:,} of {len(labels):,} labels belong to no sample of the run"
        result.notes.append(f"{told}; if they should, check the labels' sample IDs")
    return to_aligned(
        labels.to_numpy(dtype=float), alignment.label_rows, alignment.n_samples, np.nan
    )


def align_beside(
    alignment: Alignment, labels: "pd.Series[Any] | None", values: "pd.Series[Any]", name: str
) -> Any:
    """Bring numbers of the labels' samples into the aligned order, as `align_labels` does these."""
    assert labels is not None  # see `plan`
    assert alignment.label_rows is not None
    own = values.set_axis(label_index(values)).reindex(label_index(labels)).to_numpy(dtype=float)
    lacking = ~np.isfinite(own) & labels.notna().to_numpy()
    if lacking.any():
        raise DataError(f"{name}: {lacking.sum():,} samples with a label have no finite number")
    return to_aligned(own, alignment.label_rows, alignment.n_samples, np.nan)
