"""`simulate`: run a strategy over tables that lie in this process."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import pandas as pd

from flwr_vertical.alignment.registry import aligner_class, alignment_name
from flwr_vertical.app import memory_app
from flwr_vertical.errors import ConfigError
from flwr_vertical.grids import LocalGrid, NodesGrid, RayGrid, RecordingGrid
from flwr_vertical.incomplete import hide_cells, imputation_accuracy, put_back
from flwr_vertical.node.config import HOLD_OUT, MIN_ROWS
from flwr_vertical.node.outputs import OutputFolder
from flwr_vertical.node.party import NAMES
from flwr_vertical.node.row_index import free_names
from flwr_vertical.policy.record import Policy
from flwr_vertical.policy.requirements import ARBITER, as_node_config, asked_by, needed_by_node
from flwr_vertical.registry import check_declaration, load_strategy, name_of
from flwr_vertical.result import Result
from flwr_vertical.server.journal import FILE_NAME as JOURNAL
from flwr_vertical.server.settings import RunSettings, SharedOptions
from flwr_vertical.simulation_inputs import (
    check_node_config,
    check_test_labels,
    fitted_tables,
    policies_of,
    tables_of,
    warn_of,
)
from flwr_vertical.single_parties import predictions_of, single_party_results
from flwr_vertical.strategy import Strategy
from flwr_vertical.tables import Table, label_numbers
from flwr_vertical.tables.kinds import refuse_dates

ENGINES = ("local", "ray")

_PARTIES = "parties"  # in the folder of a run that keeps checkpoints


def simulate(
    strategy: Strategy,
    parties: Mapping[str, pd.DataFrame | Table],
    labels: "pd.Series[Any] | None" = None,
    aggregation: str = "masked",
    engine: str = "local",
    seed: int = 0,
    *,
    weights: "pd.Series[Any] | None" = None,
    offset: "pd.Series[Any] | None" = None,
    kinds: Mapping[str, Mapping[str, Any]] | None = None,
    node_config: Mapping[str, Mapping[str, Any]] | None = None,
    label_holder: str = "",
    label_column: str = "",
    positive_label: str | int = "",
    test_labels: "pd.Series[Any] | None" = None,
    beside_single_parties: bool = False,
    min_rows: int | None = None,
    policy: Policy | Mapping[str, Any] | None = None,
    ledgers: str | os.PathLike[str] | None = None,
    fitted: Result | Mapping[str, pd.DataFrame] | None = None,
    truth: Mapping[str, pd.DataFrame] | None = None,
    hold_out: float = 0.0,
    ray_address: str | None = None,
    n_actors: int | None = None,
    num_gpus: float = 0.0,
    transcript: list[Any] | None = None,
    **options: Unpack[SharedOptions],
) -> Result:
    """Run a strategy over parties that are tables in this process.

    The same code runs as on a real federation: every party is a Flower ``ClientApp`` and only
    messages pass between it and the server.

    Parameters
    ----------
    strategy : Strategy
        The method and its settings.
    parties : Mapping[str, pandas.DataFrame]
        Each party's table, indexed by sample ID. A NaN is a missing cell, an absent row a
        missing block.
    labels : pandas.Series, optional
        Labels held by the server, indexed by sample ID; NaN = unlabelled.
    aggregation : {"masked", "plain", "ckks"}, default "masked"
        Mode of the private sum.
    engine : {"local", "ray"}, default "local"
        Where the parties run: in threads of this process or in Ray actors.
    seed : int, default 0
        Seed of simulation randomness.
    weights, offset : pandas.Series, optional
        What samples count, and what is added to their linear predictors: numbers beside the labels,
        for strategies that take them.
    kinds : Mapping[str, Mapping[str, str]], optional
        Column kinds by party and column, where they shall not be inferred.
    node_config : Mapping[str, Mapping[str, Any]], optional
        By party, keys that a strategy reads from the node config, such as
        ``{"bank": {"trees.monotone.income": 1}}``.
    label_holder, label_column : str, optional
        The party whose table has the labels instead, and its column.
    positive_label : str or int or bool, optional
        Of labels of two classes the one that counts as 1, such as ``"yes"``.
    test_labels : pandas.Series, optional
        True labels of samples whose label is NaN, or that `labels` lack: the result says how good
        predictions of them are (`Result.evaluation`). No party and no strategy sees them.
    beside_single_parties : bool, default False
        Whether each party is also run alone, with the same settings, and compared; needs
        `test_labels`, `truth` or `hold_out`. These are runs of their own, whose messages are not
        in the ledger.
    min_rows : int, optional
        The fewest rows of a set that private products may tell of: ``min-rows`` of every node
        config. By default 100, or three times the columns and labels if that is more.
    policy : Policy or Mapping[str, Any], optional
        What the nodes agree to, as in a federation: one `Policy` for all, its keys as a dict, or
        either of these by party (and for ``"arbiter"``), such as `Result.needed_keys`. Parties that
        are not named have the safe defaults. Each party keeps a privacy ledger for the run, so
        that limits on what adds up hold, too. Without a policy, consents are not asked for: all
        tables lie in this process. The rules on rows hold in any case, as they change numbers.
    ledgers : path-like, optional
        With `policy`: an existing folder in which the parties' privacy ledgers stay, so that what
        adds up is counted over all runs that name it. By default they end with the run.
    fitted : Result or Mapping[str, pandas.DataFrame], optional
        An earlier result (or its tables): what it left at the parties is used, not fitted anew.
        A result also hands each party what that party saved of its model; by default it is the one
        that the strategy builds on (`Strategy.earlier`), if any.
    truth : Mapping[str, pandas.DataFrame], optional
        Complete tables where they are known; the report compares with them, and
        `Result.imputation` says how good imputed columns are. No party and no message sees them.
    hold_out : float, default 0
        Share of each column's known cells that are hidden from an imputation (in a pipeline from
        stages that impute), compared with what it fills in (`Result.imputation`), and put back.
        0.1 is enough in most tables; imputed values are made of that much less.
    ray_address, n_actors, num_gpus
        See `RayGrid`.
    transcript : list, optional
        Every message is appended to it, for audits.
    **options
        Further fields of `RunSettings` by name: ``align_rows``, ``normalise_ids``,
        ``fraction_bits``, ``timeout``, ``progress`` and others. All tables lie in this
        process, so ``alignment`` is ``"plain"`` unless another is given: it gives nothing away and
        keeps the order of rows the same from run to run. With `policy` it is the strategy's
        default, as in a federation (privately, in most). No
        message is lost on the way, so ``retries`` is 0. With ``checkpoint``, a folder, the parties
        keep their checkpoints there as well, of one run at a time: a run that is killed can be
        resumed, given the same strategy and tables. With engine ``"ray"`` all actors must see it.

    Returns
    -------
    Result
        With ``tables`` (``intervals``, ``draws``): what each party holds afterwards; and
        ``needed_keys``: what the nodes of a federation would have to state for this run. There,
        samples are aligned by the strategy's default unless ``alignment`` is given.

    Raises
    ------
    ConfigError, DataError
        If a setting or a table cannot be used.
    PartyError
        If a party fails during the run, or its policy forbids it.
    """
    if not isinstance(strategy, Strategy):
        raise ConfigError(
            "strategy must be a Strategy object such as FKNN(), got "
            f"{getattr(strategy, '__name__', type(strategy).__name__)}"
        )
    check_declaration(type(strategy), f"strategy {type(strategy).__name__!r}")
    if engine not in ENGINES:
        raise ConfigError(f"unknown engine {engine!r}; expected one of {list(ENGINES)}")
    if ledgers is not None and (policy is None or not Path(ledgers).is_dir()):
        raise ConfigError(
            f"ledgers={str(ledgers)!r} must be an existing folder, and goes with policy: without "
            "one the parties keep no ledger"
        )
    positive_label = str(positive_label)  # 0 and False are classes, too
    if labels is not None:
        labels = label_numbers(labels, positive_label, "labels")
    if test_labels is not None:
        test_labels = label_numbers(test_labels, positive_label, "test_labels")
    if label_holder and (
        labels is not None or beside_single_parties or label_holder not in parties
    ):
        raise ConfigError(
            f"label_holder={label_holder!r} must be one of the parties {list(parties)}, and goes "
            "without labels and beside_single_parties: the run takes its label_column"
        )
    if bool(label_column) != bool(label_holder):
        raise ConfigError(
            f"label_holder={label_holder!r} and label_column={label_column!r}: state both or none"
        )
    if isinstance(fitted, Result):
        strategy = strategy.building_on(fitted)
    here = "plain" if policy is None else strategy.default_alignment
    check_test_labels(labels, test_labels)
    if beside_single_parties and test_labels is None and not truth and not hold_out:
        raise ConfigError(
            "beside_single_parties=True compares with what is true: give test_labels (those of "
            "samples whose label is NaN), truth, or hold_out"
        )
    chosen: dict[str, object] = {"alignment": here, "retries": 0, **options}
    given = (("weights", weights), ("offset", offset))
    beside: dict[str, Any] = {name: own for name, own in given if own is not None}
    run = RunSettings.of(None, {**chosen, "aggregation": aggregation, "seed": seed})
    earlier = fitted_tables(fitted, kinds or {})
    # New rows are taken as those of the fit were, and may be few.
    new_rows = fitted is not None or strategy.earlier is not None
    whole = tables = tables_of(parties, kinds or {}, earlier, new_rows)
    if not strategy.party.takes_dates:
        for name, table in tables.items():
            refuse_dates(table.kinds, name)
    notes = [] if new_rows else warn_of(tables, kinds or {}, run.normalise_ids, labels)
    imputing = strategy.party.imputing() if hold_out else frozenset()
    if hold_out:
        hidden = {
            name: hide_cells(table, hold_out, str(run.seed), name) for name, table in whole.items()
        }
        tables = hidden if "" in imputing else whole
    if unknown := sorted(set(truth or {}) - set(tables)):
        raise ConfigError(f"truth names unknown parties {unknown}; the parties are {list(tables)}")
    has_arbiter = run.aggregation == "ckks" or bool(strategy.needs_arbiter)
    check_node_config(node_config or {}, tables)
    own_keys = node_config or {}
    nodes: list[dict[str, Any]] = [{**own_keys.get(name, {}), "party": name} for name in tables]
    if imputing - {""}:  # a party of stages hides the same cells from these
        nodes = [node | {HOLD_OUT: hold_out} for node in nodes]
    nodes += [{"role": "arbiter"}] * has_arbiter
    policies = policies_of(policy, min_rows, [*tables, *([ARBITER] if has_arbiter else [])])
    for node in nodes:
        if policy is not None:
            node |= as_node_config(policies[node.get("party", ARBITER)])
        elif min_rows is not None:
            node[MIN_ROWS] = min_rows
    run_config: dict[str, Any] = {"seed": run.seed}
    if label_holder:
        run_config |= {"label-holder": label_holder, "label-column": label_column}
        run_config["positive-label"] = positive_label
    saved: OutputFolder | None = None
    if run.checkpoint is not None:
        folder = run.checkpoint.expanduser().absolute()
        run_config["run-name"] = _PARTIES
        for node in nodes:
            node["output"] = str(folder)
        saved = OutputFolder(folder / _PARTIES)
        if not run.resume and not (folder / JOURNAL).exists():  # of a run that was given up
            saved.clear()

    source = fitted if isinstance(fitted, Result) else strategy.earlier
    parts = {} if source is None else source._party_models
    kept = None if saved is None else saved.path
    aligner = aligner_class(run.alignment)
    asked = asked_by(strategy, name_of(type(strategy)))
    asks = None if policy is None else replace(asked, alignment=alignment_name(aligner))
    counted_in = None if ledgers is None else Path(ledgers)
    make_app = memory_app(
        strategy.party, strategy.arbiter, aligner, parts, kept, asks, counted_in,
        strategy.protocol_of_run(),
    )  # fmt: skip
    grid: NodesGrid
    if engine == "ray":
        grid = RayGrid(
            make_app, nodes, tables, run_config, fitted=earlier, address=ray_address,
            n_actors=n_actors, num_gpus=num_gpus,
        )  # fmt: skip
    else:
        app, storage = make_app(tables, earlier)
        grid = LocalGrid(app, nodes, run_config, storage=storage)
    with grid:
        recorder = RecordingGrid(grid) if transcript is not None else None
        try:
            result = strategy.start(
                grid=recorder or grid,
                labels=labels,
                label_holder=label_holder or None,
                beside=beside,
                run=replace(run, parties=tuple(tables)),
            )
        finally:
            if recorder is not None and transcript is not None:
                transcript.extend(recorder.transcript)
        outputs, models = grid.outputs(), grid.models()
    if saved is not None:
        saved.clear()
    result.notes += notes
    result.settings["engine"] = engine
    in_a_federation = aligner_class(options.get("alignment") or strategy.default_alignment)
    request = replace(asked, aggregation=run.aggregation, alignment=alignment_name(in_a_federation))
    asked_of = {label_holder: label_column} if label_holder else {}
    result.needed_keys = needed_by_node(
        request, list(tables), labels=asked_of, policies=policies, arbiter=has_arbiter
    )

    def saved_as(what: str) -> dict[str, pd.DataFrame]:
        return {name: outputs[name + what] for name in tables if name + what in outputs}

    result.tables = made = saved_as("")
    result.intervals = saved_as("@intervals")
    while drawn := saved_as(f"@draw-{len(result.draws) + 1}"):
        result.draws.append(drawn)
    if imputing:
        result.settings["hold_out"] = hold_out
        result.tables, *result.draws = (
            {name: put_back(table, whole[name]) for name, table in tables_of_run.items()}
            for tables_of_run in (made, *result.draws)
        )
    ids: dict[str, Any] = {}
    for key, frame in outputs.items():
        party, _, what = key.partition("@")
        if what == NAMES:  # parties know, on their own disks
            taken = pd.Index([]) if labels is None else labels.index
            ids |= zip(free_names(frame["sample"], taken), frame.index, strict=True)
        elsewhere = what in {"", "intervals", NAMES, *result.frames} or what.startswith("draw-")
        if not elsewhere and not (party in made and result.tables[party].equals(frame)):
            result.frames[f"{what} of {party}"] = frame
    if result.predictions is not None:
        result.predictions = result.predictions.rename(index=ids)  # at once: IDs may be such names
    result._party_models = {name: models[name] for name in tables if name in models}
    result.originals = {
        name: table.frame.drop(columns=asked_of.get(name, []), errors="ignore")
        for name, table in whole.items()
    }
    result.truth = dict(truth or {})
    for name in result.truth.keys() & made.keys():
        found = imputation_accuracy(
            tables[name].by_kind, made[name], result.truth[name], result.intervals.get(name)
        )
        result.party_metrics.setdefault(name, {}).update(found)
    by_party: dict[str, Result] = {}
    if beside_single_parties:
        own: dict[str, Any] = {k: v for k, v in options.items() if k not in _OF_THE_WHOLE_RUN}

        def run_alone(some: Mapping[str, pd.DataFrame | Table]) -> Result:
            return simulate(
                strategy, some, labels, aggregation, seed=seed, min_rows=min_rows, **beside,
                node_config={name: own_keys[name] for name in some if name in own_keys},
                **{**own, "progress": False},
            )  # fmt: skip

        alike = hidden if imputing else tables
        by_party, notes = single_party_results(strategy, alike, run_alone)
        result.notes += notes
    if imputing or truth:
        known = {name: table.frame for name, table in whole.items()} if imputing else {}
        for name, complete in result.truth.items():
            known[name] = known[name].combine_first(complete) if name in known else complete
        alone = {name: found.tables[name] for name, found in by_party.items() if found.tables}
        before = {name: table.by_kind for name, table in (hidden if imputing else tables).items()}
        result.compare_imputed(before, made, known, alone)
    if hold_out and not imputing:
        result.notes.append(
            f"hold_out: {strategy.name!r} fills no cell in, so none was held out; leave it away"
        )
    if test_labels is not None:
        predicted, notes = predictions_of(by_party)
        result.notes += notes
        result.compare(test_labels, beside=predicted)
    return result


# Options of `simulate` that belong to a run of all parties.
_OF_THE_WHOLE_RUN = ("checkpoint", "checkpoint_every", "resume", "min_nodes", "progress")


def _predict(
    result: Result,
    parties: Mapping[str, pd.DataFrame | Table],
    labels: "pd.Series[Any] | None" = None,
    **options: Any,
) -> Result:
    """Predict new rows; see `Result.predict`."""
    if result.predictor is not None and not result._party_models:
        raise ConfigError(
            "the parties kept their parts of the model where they ran, and this result has none; "
            "predict by a run of the app with strategy='predict' and the fit's run-name as 'fitted'"
        )
    predict: Any = load_strategy("predict")
    return simulate(predict(result), parties, labels, fitted=result, **options)


Result._predict_by = staticmethod(_predict)
