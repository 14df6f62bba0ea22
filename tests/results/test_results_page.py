import base64
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from flwr_vertical.pages.page import (
    Section,
    bullet_list,
    dataframe_html,
    format_value,
    paragraph,
    render_page,
)

VOID = {"meta", "img", "br", "hr", "link", "input", "source"}


class Checker(HTMLParser):
    """Checks that tags close in order and that nothing is loaded from elsewhere."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "data", "action", "srcset"):
                assert value.startswith(("#", "data:image/")), (tag, name, value[:60])
        assert tag not in ("script", "link", "iframe", "object"), tag

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.text.append(data)
        else:
            assert "url(" not in data
            assert "@import" not in data


def test_page_holds_every_kind_of_body():
    figure = Figure()
    figure.add_subplot().plot([1, 2])
    frame = pd.DataFrame({"n": [1234567], "x": [0.123456]})
    page = render_page(
        "Study 1",
        [
            ("Words", paragraph("a < b") + bullet_list(["x & y"])),
            Section("Table", frame, "How to read it"),
            ("Figures", [figure, "<svg id='a'><text>hi</text></svg>", b"\x89PNG\r\n"]),
        ],
        subtitle="One sentence.",
        facts={"Rounds": "12"},
    )
    checker = Checker(page)
    text = " ".join(checker.text)
    for part in ("Study 1", "a < b", "x & y", "1,234,567", "0.1235", "How to read it", "12"):
        assert part in text
    assert checker.seen.count("img") == 3
    assert checker.seen.count("section") == 3
    kinds = re.findall(r"data:image/([a-z+]+);base64,([^\"]+)", page)
    assert [kind for kind, _ in kinds] == ["svg+xml", "svg+xml", "png"]
    assert base64.b64decode(kinds[1][1]).decode() == "<svg id='a'><text>hi</text></svg>"


def test_text_is_escaped_everywhere():
    bad = "<script>alert(1)</script>\"'&"
    page = render_page(
        bad,
        [
            Section(bad, pd.DataFrame({bad: [bad]}, index=pd.Index([bad], name=bad)), bad),
            (bad, paragraph(bad) + bullet_list([bad])),
            (bad, b"png"),
            # A drawing is shown as an image, in which scripts do not run.
            (bad, "<svg><script>alert(1)</script></svg>"),
        ],
        subtitle=bad,
        facts={bad: bad},
        kicker=bad,
    )
    Checker(page)
    assert "<script" not in page


def test_dollars_do_not_disturb_the_template_and_figures_keep_their_canvas():
    assert "$title $5" in render_page("$title $5", [("$x", paragraph("${y}"))])
    figure = Figure()
    canvas = figure.canvas
    render_page("x", [("f", figure)])
    assert figure.canvas is canvas


def test_table_shows_index_levels_and_formats():
    frame = pd.DataFrame(
        {"b": [1e6], "b2": [True], "n": [np.nan]},
        index=pd.MultiIndex.from_tuples([("bank", 3)], names=["party", "k"]),
    )
    html = dataframe_html(frame, formats={"b": lambda value: f"{value / 1e6:.0f} MB"})
    Checker(html)
    for part in ("party", "<th>bank</th>", "<th>3</th>", "1 MB", ">yes<", ">–<"):
        assert part in html
    assert "bank" not in dataframe_html(frame, index=False)


def test_tables_of_awkward_shapes():
    frame = pd.DataFrame([[1, 2]], columns=["x", "x"])
    assert dataframe_html(frame).count('<td class="number">') == 2
    Checker(dataframe_html(pd.DataFrame()))
    Checker(dataframe_html(pd.DataFrame(), index=False))
    long = dataframe_html(pd.DataFrame({"x": range(500)}), max_rows=100)
    assert long.count("<tr>") == 101
    assert "400 more rows" in long


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.0, "0"), (12345, "12,345"), (np.int64(7), "7"), (3120.0, "3,120"),
        (0.123456, "0.1235"), (-0.00012346, "-0.0001235"), (1.5e-7, "1.500e-07"),
        (123456.7, "123,457"), (9999.9, "10,000"), (2.5e12, "2.500e+12"), (np.nan, "–"),
        (None, "–"), (pd.NA, "–"), (pd.NaT, "–"), (np.inf, "∞"), (-np.inf, "-∞"), (True, "yes"),
        (np.bool_(False), "no"), ("a", "a"), ([1, 2.0], "1, 2"), ({"k": 5}, "k = 5"), ([], "–"),
    ],
)  # fmt: skip
def test_values_as_text(value, text):
    assert format_value(value) == text
