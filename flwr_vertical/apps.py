"""The command line and the Flower app, as a wheel has them: the folder ``apps`` of a clone."""

from pathlib import Path

# A wheel ships that folder in place of this file, so that it claims no top-level name `apps`.
__path__ = [str(Path(__file__).parents[1] / "apps")]
