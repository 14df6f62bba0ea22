"""`simulate`: run a strategy over tables that lie in this process."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from flwr_vertical.alignment import Aligner, make_aligner
from flwr_vertical.errors import ConfigError
from flwr_vertical.grids import LocalGrid, NodesGrid, RayGrid, RecordingGrid
from flwr_vertical.protocol.app import party_app
from flwr_vertical.protocol.private_sum import check_mode
from flwr_vertical.protocol.storage import MemoryStorage, check_name, fitted_kinds
from flwr_vertical.results import Result
from flwr_vertical.strategy import Strategy
from flwr_vertical.tables import Table, imputation_accuracy

ENGINES = ("local", "ray")


def simulate(
    strategy: Strategy,
    parties: Mapping[str, pd.DataFrame | Table],
    labels: "pd.Series[Any] | None" = None,
    aggregation: str = "masked",
    engine: str = "local",
    seed: int = 0,
    *,
    alignment: str | Aligner = "plain",
    align_rows: str = "union",
    normalise_ids: str | Sequence[str] = (),
    kinds: Mapping[str, Mapping[str, Any]] | None = None,
    fitted: Result | Mapping[str, pd.DataFrame] | None = None,
    truth: Mapping[str, pd.DataFrame] | None = None,
    fraction_bits: int = 32,
    timeout: float = 3600.0,
    retries: int = 0,
    progress: bool | None = None,
    ray_address: str | None = None,
    n_actors: int | None = None,
    transcript: list[Any] | None = None,
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
    alignment : {"plain", "private-id", "blind-rsa"} or Aligner, default "plain"
        How samples are aligned. All tables lie in this process, so ``plain`` gives nothing away
        and keeps the order of rows the same from run to run; an app aligns privately by default.
    align_rows : {"union", "intersection", "labelled"}, default "union"
        Which samples take part.
    normalise_ids : sequence of str, or str with commas
        ``"strip"``, ``"casefold"``, ``"nfc"``: how text IDs are made comparable.
    kinds : Mapping[str, Mapping[str, str]], optional
        Column kinds by party and column, where they shall not be inferred.
    fitted : Result or Mapping[str, pandas.DataFrame], optional
        An earlier result (or its tables): what it left at the parties is used, not fitted anew.
    truth : Mapping[str, pandas.DataFrame], optional
        Complete tables where they are known; the report compares with them. No party and no
        message sees them.
    fraction_bits, timeout, retries
        See `Federation`.
    progress : bool, optional
        Show progress.
    ray_address, n_actors
        See `RayGrid`.
    transcript : list, optional
        Every message is appended to it, for audits.

    Returns
    -------
    Result
        With ``tables``: what each party holds afterwards.

    Raises
    ------
    ConfigError, DataError
        If a setting or a table cannot be used.
    PartyError
        If a party fails during the run.
    """
    if not isinstance(strategy, Strategy):
        raise ConfigError(
            f"strategy must be a Strategy object such as FKNN(), got {type(strategy).__name__}"
        )
    if engine not in ENGINES:
        raise ConfigError(f"unknown engine {engine!r}; expected one of {list(ENGINES)}")
    check_mode(aggregation)
    make_aligner(alignment, align_rows, normalise_ids)
    earlier = _fitted_tables(fitted, kinds or {})
    tables = _tables(parties, kinds or {}, earlier)
    if unknown := sorted(set(truth or {}) - set(tables)):
        raise ConfigError(f"truth names unknown parties {unknown}; the parties are {list(tables)}")
    nodes: list[dict[str, Any]] = [{"party": name} for name in tables]
    if aggregation == "ckks" or strategy.needs_arbiter:
        nodes.append({"role": "arbiter"})

    grid: NodesGrid
    if engine == "ray":
        grid = RayGrid(
            (strategy.party, strategy.arbiter),
            nodes,
            tables,
            fitted=earlier,
            address=ray_address,
            n_actors=n_actors,
        )
    else:
        storage = MemoryStorage(tables, earlier)
        app = party_app(strategy.party, arbiter=strategy.arbiter, storage=storage)
        grid = LocalGrid(app, nodes, storage=storage)
    with grid:
        recorder = RecordingGrid(grid) if transcript is not None else None
        try:
            result = strategy.start(
                grid=recorder or grid,
                labels=labels,
                aggregation=aggregation,
                alignment=alignment,
                align_rows=align_rows,
                normalise_ids=normalise_ids,
                seed=seed,
                fraction_bits=fraction_bits,
                timeout=timeout,
                retries=retries,
                parties=list(tables),
                progress=progress,
            )
        finally:
            if recorder is not None and transcript is not None:
                transcript.extend(recorder.transcript)
        outputs = grid.outputs()
    result.settings["engine"] = engine
    result.tables = {name: outputs[name] for name in tables if name in outputs}
    result.originals = {name: table.frame for name, table in tables.items()}
    result.truth = dict(truth or {})
    for name in result.truth.keys() & result.tables.keys():
        found = imputation_accuracy(tables[name].frame, result.tables[name], result.truth[name])
        result.party_metrics.setdefault(name, {}).update(found)
    return result


def _tables(
    parties: Mapping[str, pd.DataFrame | Table],
    kinds: Mapping[str, Mapping[str, Any]],
    earlier: Mapping[str, Table],
) -> dict[str, Table]:
    if not isinstance(parties, Mapping) or not parties:
        raise ConfigError(
            "parties must be a dict of party name to DataFrame with at least one entry, "
            f"got {type(parties).__name__}"
        )
    unknown = sorted(set(kinds) - set(parties))
    if unknown:
        raise ConfigError(f"kinds name unknown parties {unknown}; the parties are {list(parties)}")
    tables = {}
    for name, data in parties.items():
        tables[check_name(name)] = Table.of(
            data, kinds=kinds.get(name), party=name, like=earlier.get(name)
        )
    return tables


def _fitted_tables(
    fitted: Result | Mapping[str, pd.DataFrame] | None,
    kinds: Mapping[str, Mapping[str, Any]],
) -> dict[str, Table]:
    if fitted is None:
        return {}
    frames = fitted.tables if isinstance(fitted, Result) else fitted
    return {
        name: Table.of(frame, kinds=fitted_kinds(kinds.get(name, {})), party=name)
        for name, frame in frames.items()
    }
