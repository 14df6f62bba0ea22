"""Finished replications as a file of the repository, from which anybody makes a study's page.

One line of JSON for each replication, sorted, numbers with five digits; names of numbers stand once
in the first line. A job is known by its key (`Job.key`), which covers all of its settings, so those
that are written beside it are for readers. Records of other settings or of another version of the
study match no job and are left out when the file is written again.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from flwr_vertical.errors import DataError
from flwr_vertical.whole_files import write_text_atomically

Record = dict[str, Any]


def read_kept(path: Path) -> dict[str, Record]:
    """Return the records of a file by the keys of their jobs; none if there is no such file."""
    if not path.is_file():
        return {}
    found: dict[str, Record] = {}
    names: list[list[str]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            value = json.loads(line)
            if number == 1:
                names = value["metrics"]
                continue
            of = dict(value)
            metrics = dict(zip(names[of.pop("names")], of.pop("values"), strict=True))
            nan = float("nan")
            of["metrics"] = {name: nan if v is None else float(v) for name, v in metrics.items()}
            found[of["key"]] = of
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise DataError(
                f"line {number} of {path} is no finished replication ({error!r}); restore the "
                "file, or start without it by --fresh"
            ) from error
    return found


def write_kept(path: Path, records: Mapping[str, Record]) -> None:
    """Write records, the same ones always to the same text."""
    names = sorted({tuple(of["metrics"]) for of in records.values()})
    lines = sorted(
        json.dumps(
            {
                "part": of["part"],
                "settings": _shown(of["settings"]),
                "key": key,
                "seconds": _short(of["seconds"]),
                "names": names.index(tuple(of["metrics"])),
                "values": [_short(value) for value in of["metrics"].values()],
            },
            ensure_ascii=False,
            separators=(",", ":"),
        )
        for key, of in records.items()
    )
    head = json.dumps({"metrics": names})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, "\n".join([head, *lines]) + "\n")


def as_kept(frame: pd.DataFrame) -> pd.DataFrame:
    """Return numbers of replications with the digits that are kept, so that pages are the same."""
    return frame.assign(value=frame["value"].map(_digits)) if len(frame) else frame


def _digits(value: float) -> float:
    return float(f"{value:.5g}")


def _shown(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is nested, and the hash of the data, which is of no use to a reader."""
    shown = {name: v for name, v in settings.items() if not isinstance(v, dict | list)}
    shown.pop("data", None)
    return shown


def _short(value: float) -> float | None:
    """Return five digits of a number; JSON has no NaN."""
    return None if value != value else _digits(value)
