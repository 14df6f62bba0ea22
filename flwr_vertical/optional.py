"""Optional packages: imported where they are used, and asked for in words where they are absent."""

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType

from flwr_vertical.errors import ConfigError

EXTRAS = {
    "torch": "torch",
    "tenseal": "ckks",
    "ray": "ray",
    "psutil": "simulation",
    "adbc_driver_postgresql": "postgres",
    "duckdb": "duckdb",
    "flwr_datasets": "datasets",
    "formulaic": "formula",
}
"""By optional package, the extra of flwr-vertical that installs it."""


def require(package: str, what: str) -> ModuleType:
    """Import an optional package, or say what needs it and how to install it.

    Examples
    --------
    >>> require("json", "this example").dumps([1])
    '[1]'
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if (error.name or package).split(".")[0] != package.split(".")[0]:
            raise _unusable(package, what, error) from error
        raise ConfigError(f"{what} {how_to_install([package])}") from error
    except (ImportError, OSError) as error:  # OSError: a shared library that cannot be loaded
        raise _unusable(package, what, error) from error


@contextmanager
def needing(package: str, what: str) -> Iterator[None]:
    """Say how to install an optional package where imports in this block do not find it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(f"{what} {how_to_install([package])}", name=package) from error


def how_to_install(packages: Iterable[str]) -> str:
    """Return what is missing, and the command that installs it."""
    names = list(packages)
    extras = sorted({EXTRAS[name] for name in names if name in EXTRAS})
    others = [name for name in names if name not in EXTRAS]
    wanted = [*([f"'flwr-vertical[{','.join(extras)}]'"] if extras else []), *others]
    return (
        f"needs {', '.join(map(repr, names))}, which is not installed here: pip install "
        f"{' '.join(wanted)} in the Python environment of this machine, before the run starts "
        "(Flower does not install extras at its nodes)"
    )


def _unusable(package: str, what: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{what} needs the package {package!r}, which is installed but cannot be imported "
        f"({type(error).__name__}: {error}); repair or reinstall it"
    )
