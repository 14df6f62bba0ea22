"""Make the pictures of `docs/reports.md`: every kind of report, as a browser shows it.

    python -m apps.screenshots

Each report is made by a run on data inside scikit-learn, and photographed by headless Chromium:
light, dark, 390 pixels wide, and printed to PDF (its first page).
"""

import argparse
import html
import importlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from flwr_vertical import Result, load_demo, simulate
from flwr_vertical.errors import ConfigError
from flwr_vertical.reports.report import report_html
from strategies.copula import VCDS
from strategies.fknn import FKNN
from strategies.glm import VerticalGLM
from strategies.trees import VerticalGBDT
from strategies.vfem import VFEM

FOLDER = Path(__file__).parents[1] / "docs" / "screenshots"
_WIDTH, _PHONE = 1200, 390
_WHOLE, _TOP = 9000, 2200  # pixels of a page's height that are photographed
# Of a picture in the docs: how many pixels of a page's height it keeps, and how far it is shrunk.
_KEPT = {"light": (2100, 0.5), "dark": (2100, 0.3), "phone": (1600, 0.6), "print": (2000, 0.5)}
_COLOURS = 40
_SECONDS = 120


def impute() -> str:
    """Return the report of an imputation whose truth is known."""
    demo = load_demo("breast-cancer")
    result = simulate(FKNN(), demo.parties, truth=demo.complete, progress=False)
    return report_html(result)


def party() -> str:
    """Return a party's own page after an imputation."""
    demo = load_demo("wine", missing_blocks=0.1)
    found = simulate(FKNN(), demo.parties, progress=False)
    name = next(iter(demo.parties))
    own = Result(
        found.strategy,
        parties=[name],
        originals={name: demo.parties[name]},
        tables={name: found.tables[name]},
        notes=["This page was made by the party from its own table and stays with it."],
        version=found.version,
        finished=found.finished,
    )
    return report_html(own, party=name)


def regression() -> str:
    """Return the report of a linear regression with blocks missing."""
    demo = load_demo("diabetes", missing_cells=0, missing_blocks=0.3, missing_labels=0.2)
    truth = load_demo("diabetes").labels
    result = simulate(VFEM(), demo.parties, demo.labels, test_labels=truth, progress=False)
    return report_html(result)


def selection() -> str:
    """Return the report of a regression with variable selection."""
    demo = load_demo("diabetes", missing_cells=0, missing_blocks=0)
    return report_html(simulate(VerticalGLM(), demo.parties, demo.labels, progress=False))


def synthetic() -> str:
    """Return the report of synthetic tables."""
    demo = load_demo("diabetes", missing_cells=0)
    return report_html(simulate(VCDS(epsilon=1.0), demo.parties, demo.labels, progress=False))


def trees() -> str:
    """Return the report of boosted trees with held-out labels."""
    demo = load_demo("breast-cancer", missing_labels=0.3)
    truth = load_demo("breast-cancer").labels
    model = VerticalGBDT(n_trees=20, max_depth=3)
    return report_html(
        simulate(model, demo.parties, demo.labels, test_labels=truth, progress=False)
    )


KINDS: dict[str, Callable[[], str]] = {
    made.__name__: made for made in (impute, party, regression, selection, synthetic, trees)
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; see the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=FOLDER, help="a folder for the pictures")
    parser.add_argument("--only", nargs="*", choices=list(KINDS), help="some kinds of reports")
    parser.add_argument(
        "--whole", action="store_true", help="whole pages in full size, to be looked at"
    )
    chosen = parser.parse_args(arguments)
    chosen.output.mkdir(parents=True, exist_ok=True)
    for name in chosen.only or KINDS:
        page = KINDS[name]()
        for form, picture in photographs(page, _WHOLE if chosen.whole else _TOP).items():
            path = chosen.output / f"{name}-{form}.png"
            keep(picture, path, None if chosen.whole else form)
            print(
                f"{path}: {picture.width} x {picture.height}, {path.stat().st_size / 1000:.0f} kB"
            )
    return 0


def photographs(page: str, height: int) -> dict[str, Image.Image]:
    """Return a page as a browser shows it: ``light``, ``dark``, ``phone`` and ``print``."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        file = folder / "report.html"
        file.write_text(page, "utf-8")
        # Chromium's own window is never as narrow as a phone; a frame is.
        frame = (
            f'<body style="margin: 0"><iframe src="{html.escape(file.as_uri())}" width="{_PHONE}" '
            f'height="{height}" style="border: 0"></iframe>'
        )
        narrow = folder / "phone.html"
        narrow.write_text(frame, "utf-8")
        return {
            "light": _shot(file, folder, (_WIDTH, height), dark=False),
            "dark": _shot(file, folder, (_WIDTH, height), dark=True),
            "phone": _shot(narrow, folder, (500, height), dark=False).crop((0, 0, _PHONE, height)),
            "print": _printed(file, folder),
        }


def keep(picture: Image.Image, path: Path, form: str | None) -> None:
    """Write a picture: whole, or in a form of the docs, the top of it, small, in few colours."""
    picture = _trimmed(picture)
    if form is not None:
        height, ratio = _KEPT[form]
        picture = picture.crop((0, 0, picture.width, min(picture.height, height)))
        size = round(picture.width * ratio), round(picture.height * ratio)
        picture = picture.resize(size, Image.Resampling.LANCZOS)
        picture = picture.quantize(palette=_palette(picture), dither=Image.Dither.NONE)
    picture.save(path, optimize=True)


def _palette(picture: Image.Image) -> Image.Image:
    """Return few colours: those of large areas, and some far apart, which may be of few dots."""
    found: list[int] = []
    for method in (Image.Quantize.MEDIANCUT, Image.Quantize.MAXCOVERAGE):
        found += (picture.quantize(_COLOURS, method=method).getpalette() or [])[: 3 * _COLOURS]
    palette = Image.new("P", (1, 1))
    palette.putpalette(found)
    return palette


def chromium(*options: str) -> None:
    """Run headless Chromium."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    program = program or shutil.which("google-chrome")
    if program is None:
        raise ConfigError("no chromium on this machine: install it, or name it in PATH")
    command = [
        program,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise ConfigError(f"chromium failed: {done.stderr[-500:]}")


def _shot(file: Path, folder: Path, size: tuple[int, int], *, dark: bool) -> Image.Image:
    picture = folder / "shot.png"
    chromium(
        f"--window-size={size[0]},{size[1]}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        f"--screenshot={picture}",
        file.as_uri(),
    )
    with Image.open(picture) as found:
        return found.convert("RGB")


def _printed(file: Path, folder: Path) -> Image.Image:
    """Return the first page of a page's PDF."""
    pypdfium2: Any = importlib.import_module("pypdfium2")
    chromium(f"--print-to-pdf={folder / 'p.pdf'}", "--no-pdf-header-footer", file.as_uri())
    with pypdfium2.PdfDocument(folder / "p.pdf") as document:
        found: Image.Image = document[0].render(scale=1.2).to_pil()
        return found.convert("RGB")


def _trimmed(picture: Image.Image) -> Image.Image:
    """Cut off what is below the page: rows of the same colour as the last one."""
    pixels = np.asarray(picture)
    content = np.flatnonzero((pixels != pixels[-1, :1]).any(axis=(1, 2)))
    last = int(content[-1]) if len(content) else 0
    return picture.crop((0, 0, picture.width, min(picture.height, last + 24)))


if __name__ == "__main__":
    sys.exit(main())
