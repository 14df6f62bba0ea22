"""Every kind of report on a phone: nothing scrolls sideways, and no drawing is cut off."""

import numpy as np
import pytest
from browser import needs_chromium, overflowing

from apps.screenshots import KINDS
from flwr_vertical import load_demo, simulate
from flwr_vertical.pages import figures as fg
from flwr_vertical.reports.report import report_html
from flwr_vertical.strategies import Cox, Explore, JointNormal, Scorecard

INCHES = 0.05  # that letters may stand out of a drawing: less than the height of one


@pytest.fixture
def drawn(drawn, monkeypatch):
    """How far what is drawn stands out of each figure, in inches, and the figures' sizes."""
    found, real = [], fg._as_svg

    def as_svg(figure, *arguments):
        text = real(figure, *arguments)
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        found.append((width, max(-box.x0, -box.y0, box.x1 - width, box.y1 - height)))
        return text

    monkeypatch.setattr(fg, "_as_svg", as_svg)
    return found


def explore():
    demo = load_demo("breast-cancer", missing_cells=0.1, missing_blocks=0.2)
    return simulate(Explore(), demo.parties, demo.labels)


def scorecard():
    demo = load_demo("breast-cancer", missing_cells=0.05, missing_blocks=0.1)
    return simulate(Scorecard(), demo.parties, demo.labels)


def cox():
    demo = load_demo("diabetes", missing_cells=0, missing_blocks=0)
    ended = np.random.default_rng(0).random(len(demo.labels)) < 0.7
    return simulate(Cox(), demo.parties, demo.labels.where(ended, -demo.labels))


def intervals():
    demo = load_demo("wine", missing_cells=0.1)
    return simulate(JointNormal(), demo.parties, truth=demo.complete)


MORE = {
    made.__name__: lambda made=made: report_html(made())
    for made in (explore, scorecard, cox, intervals)
}


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, *MORE])
def test_a_report_fits_a_phone(kind, drawn, tmp_path):
    page = (KINDS | MORE)[kind]()
    assert min(width for width, _ in drawn) < 4 < max(width for width, _ in drawn)
    assert max(out for _, out in drawn) < INCHES
    for width in (320, 390, 1000):
        assert overflowing(tmp_path, page, width) == [width], width


@needs_chromium
def test_what_is_cut_off_is_seen(tmp_path):
    wide = '<section id="own"><div style="width: 500px">x</div></section>'
    page = f"<!DOCTYPE html><html><body style='margin: 0'>{wide}</body></html>"
    assert overflowing(tmp_path, page, 390) == [500, "SECTION own"]
    assert overflowing(tmp_path, page, 600) == [600]
