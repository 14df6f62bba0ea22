"""Results on disk: written whole, never over other people's files, and read back."""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.grading.record import Grade
from flwr_vertical.log import logger
from flwr_vertical.pages.page import GENERATOR
from flwr_vertical.privacy.statement import statement_from
from flwr_vertical.results.data import ResultData
from flwr_vertical.results.ledger import Ledger
from flwr_vertical.results.model import (
    Model,
    UnknownModel,
    describe_model,
    pack_model,
    unpack_model,
)
from flwr_vertical.tables.csv_reader import EXACT_FLOATS
from flwr_vertical.whole_files import (
    TEMPORARY_PREFIX,
    atomic_path,
    make_folder,
    write_bytes_atomically,
    write_text_atomically,
)

if TYPE_CHECKING:  # scikit-learn waits until it is needed
    from flwr_vertical.results.evaluation import Evaluation

_Kind = TypeVar("_Kind", bound=ResultData)

FORMAT = "flwr-vertical result"
VERSION = 1
_INDEX = "result.json"
_PRIVATE = 0o600  # labels, predictions, parts of models: their owner's alone
_FRAMES = ("predictions", "contributions", "importance", "imputation", "evaluation")
_HEADER = ("name", "call", "finished", "version")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def save(result: ResultData, folder: Path) -> Path:
    """Save a result; see `Result.save`."""
    folder = folder.expanduser().absolute()
    old = _check_folder(folder)
    fresh = not folder.exists()
    # A new folder is renamed into place at once. An existing one may hold other files or be a mount
    # point: there the finished files replace the old ones, one rename each.
    staging = (folder.parent if fresh else folder) / f"{TEMPORARY_PREFIX}{secrets.token_hex(6)}"
    make_folder(staging)
    try:
        files = _write_files(result, staging)
        write_text_atomically(staging / _INDEX, _index_text(result, files), _PRIVATE)
        if fresh:
            staging.rename(folder)
        else:
            names = list(_flat(files))
            for name in [*names, _INDEX]:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (staging / name).replace(folder / name)
            for name in old - set(names):
                (folder / name).unlink(missing_ok=True)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def load(folder: Path, kind: type[_Kind]) -> _Kind:
    """Load a result; see `Result.load`."""
    index = _read_index(folder)
    if index is None:
        raise DataError(f"{folder} holds no saved result: expected {_INDEX} of {FORMAT!r}")
    if index["version"] > VERSION:
        raise DataError(
            f"{folder} was saved in version {index['version']} of the format; this library reads "
            f"up to {VERSION}: update flwr-vertical"
        )
    files = index["files"]
    read: Callable[..., pd.DataFrame] = pd.read_csv
    coefficients = labels = mask = None
    frames: dict[str, Any] = dict.fromkeys(_FRAMES)
    frames |= {name: pd.read_parquet(folder / files[name]) for name in _FRAMES if name in files}
    if "coefficients" in files:
        coefficients = _read_coefficients(folder / files["coefficients"], index["levels"])
    if "labels" in files:
        labels = pd.read_parquet(folder / files["labels"]).iloc[:, 0].rename(index["label_name"])
    if "mask" in files:
        mask = np.load(folder / files["mask"], allow_pickle=False)
    figures: dict[str, str | bytes] = {
        title: path.read_text("utf-8") if path.suffix == ".svg" else path.read_bytes()
        for title, path in ((t, folder / name) for t, name in files.get("figures", {}).items())
    }

    def tables(kind: str) -> dict[str, pd.DataFrame]:
        return {p: pd.read_parquet(folder / n) for p, n in files.get(kind, {}).items()}

    models = {}
    for name in (name for name in ("model", "predictor") if name in files):
        path = folder / files[name]
        models[name] = unpack_model(path.read_bytes(), str(path), index[name])
    result = kind(
        strategy=index["strategy"],
        **{name: _revive(index[name]) for name in ("settings", "metrics", "history", "notes")},
        **{name: _revive(index[name]) for name in ("parties", "party_metrics")},
        needed_keys=_revive(index.get("needed_keys", {})),
        meanings=index.get("meanings", {}),
        **index.get("header", {}),
        disclosure=[(who, learns) for who, learns in index["disclosure"]],
        ledger=Ledger.from_frames(
            *(
                read(folder / files[name], dtype={of: str, "party": str}, keep_default_na=False)
                for name, of in (("ledger", "step"), ("privacy", "what"))
            )
        ),
        tables=tables("tables"),
        intervals=tables("intervals"),
        frames=tables("frames"),
        draws=[tables(kind) for kind in files if kind.startswith("draws ")],
        privacy=statement_from(_revive(kept)) if (kept := index.get("privacy")) else None,
        graded=Grade.from_dict(_revive(kept)) if (kept := index.get("graded")) else None,
        coefficients=coefficients,
        evaluation=_evaluation(frames.pop("evaluation"), index),
        **frames,
        labels=labels,
        **models,
        mask=mask,
        figures=figures,
        where=folder,
    )
    result._party_models = {
        party: (folder / name).read_bytes() for party, name in files.get("parties", {}).items()
    }
    return result


def _read_coefficients(path: Path, levels: int) -> pd.DataFrame:
    """Read coefficients, whose parties and variables may be called `NA` or `2024`."""
    read: Callable[..., pd.DataFrame] = pd.read_csv
    names = read(path, nrows=0).columns
    return read(
        path,
        index_col=list(range(levels)),
        dtype=dict.fromkeys(names[:levels], str),
        keep_default_na=False,
        na_values={name: [""] for name in names[levels:]},
        **EXACT_FLOATS,
    )


def _evaluation(frame: pd.DataFrame | None, index: dict[str, Any]) -> Evaluation | None:
    if frame is None:
        return None
    from flwr_vertical.results.evaluation import Evaluation

    return Evaluation.from_frame(frame, _revive(index["evaluation"]))


def holds_result(folder: Path) -> bool:
    """Whether a folder holds a saved result."""
    return _read_index(folder) is not None


def result_digest(folder: Path) -> str:
    """Return a digest of the result that a folder holds; "" if it holds none."""
    try:
        return hashlib.sha256((folder / _INDEX).read_bytes()).hexdigest()
    except OSError:
        return ""


def safe_name(name: str, taken: Iterable[str] = ()) -> str:
    """Return `name` as a file name every system accepts, different from those `taken`."""
    clean = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_")[:60]
    lower = {other.lower() for other in taken}
    if clean == name and clean.lower() not in lower:
        return clean
    # The digest keeps names apart that only differ in what was cleaned away, or in case.
    return f"{clean}-{hashlib.sha256(name.encode()).hexdigest()[:8]}".lstrip("-")


def _check_folder(folder: Path) -> set[str]:
    """Return the files of the result that `folder` holds, or refuse the folder."""
    if not folder.exists():
        return set()
    if not folder.is_dir():
        raise ConfigError(f"cannot save a result in {folder}: it is a file, expected a folder")
    index = _read_index(folder)
    if index is not None:
        # Only names that this module makes: an edited index must not lead out of the folder.
        names = set(_flat(index["files"]))
        own = r"((tables|figures|parties/[\w-]+)/)?[\w-]+\.\w+"
        return {n for n in names if re.fullmatch(own, n)}
    for entry in folder.iterdir():
        if not entry.name.startswith(TEMPORARY_PREFIX) and not is_own_report(entry):
            raise ConfigError(
                f"cannot save a result in {folder}: it holds {entry.name!r} and no {_INDEX} of "
                "ours; choose a new or empty folder"
            )
    return set()


def is_own_report(path: Path) -> bool:
    """Return whether a file is a page made by this library."""
    if path.suffix != ".html" or not path.is_file():
        return False
    with path.open("rb") as file:
        return GENERATOR.encode() in file.read(1000)


def _read_index(folder: Path) -> dict[str, Any] | None:
    try:
        index = json.loads((folder / _INDEX).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return index if isinstance(index, dict) and index.get("format") == FORMAT else None


def _flat(files: dict[str, Any]) -> Iterable[str]:
    for value in files.values():
        yield from _flat(value) if isinstance(value, dict) else [value]


def _write_files(result: ResultData, folder: Path) -> dict[str, Any]:
    files: dict[str, Any] = {"ledger": "ledger.csv", "privacy": "privacy.csv"}
    _write_csv(result.ledger.to_frame(), folder / "ledger.csv", index=False)
    _write_csv(result.ledger.privacy, folder / "privacy.csv", index=False)
    if result.coefficients is not None:
        files["coefficients"] = "coefficients.csv"
        _write_csv(result.coefficients, folder / "coefficients.csv")
    frames = {name: getattr(result, name) for name in _FRAMES}
    if result.evaluation is not None:
        frames["evaluation"] = result.evaluation.to_frame()
    for name, frame in frames.items():
        if frame is not None:
            files[name] = f"{name}.parquet"
            _write_parquet(frame, folder / files[name], name)
    if result.labels is not None:
        files["labels"] = "labels.parquet"
        _write_parquet(result.labels.to_frame("label"), folder / "labels.parquet", "labels")
    if result.mask is not None:
        files["mask"] = "mask.npy"
        with atomic_path(folder / "mask.npy", _PRIVATE) as path:
            np.save(path, np.asarray(result.mask, dtype=bool))
    if (model := _packed_model(result)) is not None:
        files["model"] = "model.npz"
        write_bytes_atomically(folder / "model.npz", model, _PRIVATE)
    if result.predictor is not None:
        files["predictor"] = "predictor.npz"
        write_bytes_atomically(folder / "predictor.npz", pack_model(result.predictor), _PRIVATE)
    for party, part in result._party_models.items():
        names = files.setdefault("parties", {})
        name = safe_name(party, (Path(n).parent.name for n in names.values()))
        names[party] = f"parties/{name}/model.npz"
        write_bytes_atomically(folder / names[party], part, _PRIVATE)
    kinds = {"tables": result.tables, "intervals": result.intervals, "frames": result.frames}
    kinds |= {f"draws {number:05}": tables for number, tables in enumerate(result.draws)}
    for kind, tables in kinds.items():
        before = "" if kind == "tables" else f"{kind} "
        for party, table in tables.items():
            names = files.setdefault(kind, {})
            name = safe_name(before + party, (Path(n).stem for n in names.values()))
            names[party] = f"tables/{name}.parquet"
            _write_parquet(table, folder / names[party], f"party {party!r}")
    for title, figure in result.figures.items():
        names = files.setdefault("figures", {})
        name = safe_name(title, (Path(n).stem for n in names.values()))
        names[title] = f"figures/{name}.{'svg' if isinstance(figure, str) else 'png'}"
        with atomic_path(folder / names[title], _PRIVATE) as path:
            path.write_bytes(figure.encode() if isinstance(figure, str) else figure)
    return files


def _packed_model(result: ResultData) -> bytes | None:
    if result.model is None:
        return None
    try:
        return pack_model(result.model, result.strategy)
    except ConfigError as error:
        if isinstance(result.model, Model | UnknownModel):
            raise
        # What a strategy leaves there is its own affair; only a `Model` promises to be savable.
        logger.warning("the model is not saved: %s; make it a flwr_vertical.Model", error)
        return None


def _write_csv(table: pd.DataFrame, path: Path, **options: Any) -> None:
    with atomic_path(path, _PRIVATE) as temporary:
        table.to_csv(temporary, **options)


def _write_parquet(table: pd.DataFrame, path: Path, whose: str) -> None:
    try:
        with atomic_path(path, _PRIVATE) as temporary:
            table.to_parquet(temporary)
    except (ValueError, TypeError) as error:
        # pyarrow's errors are subclasses of these: a column of mixed types, say.
        raise DataError(f"{whose}: the table cannot be written as Parquet: {error}") from error


def _index_text(result: ResultData, files: dict[str, Any]) -> str:
    levels = 1 if result.coefficients is None else result.coefficients.index.nlevels
    index = {
        "format": FORMAT,
        "version": VERSION,
        "strategy": result.strategy,
        "header": {name: getattr(result, name) for name in _HEADER},
        "settings": result.settings,
        "metrics": result.metrics,
        "meanings": result.meanings,
        "party_metrics": result.party_metrics,
        "parties": result.parties,
        "notes": result.notes,
        "needed_keys": result.needed_keys,
        "evaluation": None if result.evaluation is None else result.evaluation.to_plain(),
        "disclosure": result.disclosure,
        "privacy": None if result.privacy is None else result.privacy.to_dict(),
        "graded": None if result.graded is None else result.graded.to_dict(),
        "ledger": result.ledger.totals(),
        "model": describe_model(result.model, result.strategy) if "model" in files else None,
        "predictor": (
            describe_model(result.predictor, result.strategy) if "predictor" in files else None
        ),
        "files": files,
        "levels": levels,
        "label_name": None if result.labels is None else result.labels.name,
        "history": result.history,
    }
    return json.dumps(_plain(index), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """Return `value` in JSON's types; JSON knows no NaN and no infinity, so these become words."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _revive(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _revive(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_revive(item) for item in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value
