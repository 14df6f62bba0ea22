"""README and documentation hold: every Python block runs as written, every link leads somewhere."""

import importlib
import itertools
import pathlib
import re

import numpy as np
import pandas as pd
import pytest
import yaml

from apps.site import pages_of, target_in_site
from flwr_vertical import load_demo, simulate
from flwr_vertical.incomplete import imputation_accuracy
from flwr_vertical.strategies import Mean

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# What the blocks of a page need beside the core.
HEAVY = {"false-vfl.md": "torch", "flwr-datasets.md": "flwr_datasets"}


def name_of(path):
    return str(path.relative_to(ROOT))


def python_blocks(path):
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.S | re.M)


@pytest.fixture(scope="module")
def names_after(tmp_path_factory):
    """What the blocks of a page leave behind; each page is run once."""
    found = {}

    def after(name):
        if name not in found:
            (path,) = (page for page in PAGES if name_of(page) == name)
            names = {"__name__": "documentation"}
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(tmp_path_factory.mktemp("page"))  # where blocks write reports
                for i, block in enumerate(python_blocks(path)):
                    code = compile(block, f"{name}, block {i + 1}", "exec", dont_inherit=True)
                    exec(code, names)
            found[name] = names
        return found[name]

    return after


FIRST_READ = ("README.md", "docs/index.md", "docs/get-started.md")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[] if name_of(path) in FIRST_READ else pytest.mark.slow)
        for path in PAGES
        if python_blocks(path)
    ],
    ids=name_of,
)
def test_every_python_block_runs_as_written(path, names_after):
    if path.name in HEAVY:
        pytest.importorskip(HEAVY[path.name])
    assert set(names_after(name_of(path))) - {"__name__", "__builtins__"}


def test_what_the_readme_shows_is_right(names_after):
    names = names_after("README.md")
    parties = names["load_demo"]("wine").parties
    assert names["KnownCells"]().protocol_of_run() is not None
    counted = names["simulate"](names["KnownCells"](), parties).metrics["cells"]
    assert counted == sum(int(table.notna().to_numpy().sum()) for table in parties.values())
    assert not names["result"].tables["clinic"].isna().any().any()


def test_the_errors_that_the_readme_gives_are_those_of_its_run(names_after):
    names = names_after("README.md")
    demo, tables = names["demo"], names["result"].tables
    means = simulate(Mean(), demo.parties).tables
    missing = sum(int(tables[p].size - demo.parties[p].notna().to_numpy().sum()) for p in tables)
    errors = [
        imputation_accuracy(demo.parties[party], filled[party], demo.complete[party])
        for filled in (tables, means)
        for party in ("clinic", "laboratory")
    ]
    shown = [f"{error:.2f}" for found in errors for error in found.values()]
    said = re.search(r"^It fills .*?\(\[how", (ROOT / "README.md").read_text(), re.S | re.M)[0]
    assert re.findall(r"\d[\d,.]*\d", said) == [f"{missing:,}", *shown]


def test_what_the_page_on_trees_shows_is_right(names_after):
    names = names_after("docs/methods/trees.md")
    columns = ["prediction", "probability_0", "probability_1"]
    assert list(names["result"].predictions.columns) == columns
    assert len(names["result"].predictions) == 50
    assert list(names["later"].index) == [f"c{i:03}" for i in range(5)]
    assert names["result"].model["splits"].min() > 0


def test_what_the_page_on_evaluation_shows_is_right(names_after):
    table = names_after("docs/evaluation.md")["result"].evaluation.table()
    assert list(table.index) == ["this run", "constant", "bank alone", "court alone"]
    assert table["auc"].idxmax() == "this run"


def test_what_the_page_on_adding_a_strategy_shows_is_right(names_after, tmp_path):
    names = names_after("docs/add-a-strategy.md")
    bank = pd.DataFrame({"u": [1.0, np.nan], "v": [3.0, 4.0]}, index=["a", "b"])
    court = pd.DataFrame({"w": [10.0, 20.0]}, index=["b", "c"])
    known = simulate(names["KnownCells"](2.5, columns="u, w"), {"bank": bank, "court": court})
    assert known.metrics["cells"] == pytest.approx(2.5 * 3)
    assert known.settings["columns"] == "u,w"
    parties = load_demo("wine").parties
    half = [simulate(names["Median"](share=0.5), parties, seed=1) for _ in range(2)]
    assert half[0].metrics == half[1].metrics == names["median"].metrics
    result = simulate(names["Median"](), parties)
    cells = np.concatenate([table.to_numpy(float).ravel() for table in parties.values()])
    known = np.sort(cells[np.isfinite(cells)])
    assert known.size / 2 <= (known <= result.metrics["median"]).sum()
    assert (known < result.metrics["median"] - 1e-3).sum() < known.size / 2
    assert result.metrics["median"] != half[0].metrics["median"]
    widths = [entry["width"] for entry in result.history]
    assert all(b == a / 2 for a, b in itertools.pairwise(widths))
    kept = type(result).load(result.save(tmp_path / "kept"))
    page = kept.report(tmp_path / "page").read_text()
    assert "Value below which half of all parties" in page


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def anchors(path):
    """Anchors of a page's headings, as GitHub and MkDocs make them."""
    found = set()
    for line in re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M).splitlines():
        if match := re.match(r"#+ (.*)", line):
            text = re.sub(r"[^\w\- ]", "", match[1].lower())
            found.add(text.strip().replace(" ", "-"))
    return found


def lost_links(text, path, pattern=r"\]\(([^)\s]+)\)"):
    """Return the targets of a page's links that are not there."""
    lost = []
    for target in re.findall(pattern, text):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        page = (path.parent / file).resolve() if file else path
        if not page.exists() or (anchor and page.suffix == ".md" and anchor not in anchors(page)):
            lost.append(f"{name_of(path)}: {target}")
    return lost


def test_links_lead_somewhere():
    lost = []
    for path in PAGES:
        lost += lost_links(re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M), path)
    assert lost == []


def test_lines_have_at_most_100_characters():
    """Rows of tables, which Markdown cannot break, and single words such as test names excepted."""
    long = [
        f"{name_of(path)}:{n}"
        for path in PAGES
        for n, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 100 and not line.startswith(("|", "<!--")) and " " in line[4:]
    ]
    assert long == []


METHODS = sorted((ROOT / "docs" / "methods").glob("*.md"))
NAMED = re.compile(r"`((?:strategies|flwr_vertical)(?:\.\w+)+)`")


def find(name):
    """Return what a dotted path leads to: a module, or an attribute below one."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            found = getattr(found, part)
        return found
    raise ImportError(name)


def test_every_function_that_a_method_names_exists():
    pytest.importorskip("torch")
    lost = []
    for path in METHODS:
        text = path.read_text()
        for name in sorted({match[1] for match in NAMED.finditer(text)}):
            try:
                find(name)
            except (ImportError, AttributeError):
                lost.append(f"{path.name}: {name}")
        heads = re.findall(r"^\| \w+ \| what \| function \|$", text, re.M)
        rows = re.findall(r"^\|.*\| `strategies\.[\w.]+` \|$", text, re.M)
        assert len(heads) == 1, path
        assert len(rows) >= 3, path
    assert lost == []


def test_every_test_that_a_page_names_exists():
    named = {
        pair
        for page in PAGES
        for pair in re.findall(r"(tests/[\w/]+\.py)::(test_\w+)", page.read_text())
    }
    assert len(named) > 30
    lost = [
        f"{path}::{test}"
        for path, test in sorted(named)
        if not (ROOT / path).exists() or f"\ndef {test}(" not in (ROOT / path).read_text()
    ]
    assert lost == []


def test_a_method_has_what_every_method_has():
    for path in METHODS:
        text = path.read_text()
        heads = re.findall(r"^## (.*)$", text, re.M)
        for wanted in ("From the", "Rounds", "Departures", "The strateg"):
            assert any(head.startswith(wanted) for head in heads), (path, wanted)
        assert "**Problem.**" in text, path
        assert "**Method.**" in text, path


def test_every_equation_becomes_mathml():
    convert = pytest.importorskip("latex2mathml.converter").convert
    wrong, count = [], 0
    for path in PAGES:
        text = re.sub(r"^```.*?^```|`+[^`]+`+", "", path.read_text(), flags=re.S | re.M)
        for equation in re.findall(r"\$\$?([^$]+)\$\$?", text):
            count += 1
            shown = convert(equation)
            if "\\" in shown or "&</mi>" in shown:  # what the converter does not know it prints
                wrong.append(f"{path.name}: {equation}")
    assert count > 300
    assert wrong == []


def entries_of(nav):
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from [value] if isinstance(value, str) else entries_of(value)


def test_the_sites_navigation_has_every_page_once():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(entries_of(site["nav"])) == sorted(pages)
    assert site["strict"]
    assert 'mkdocs build -q --strict --site-dir "$(mktemp -d)"' in (ROOT / ".ci/run").read_text()


def test_a_link_out_of_docs_leads_to_a_copy_in_the_site():
    assert target_in_site("docs", "methods/trees.md", "../../notebooks/a.ipynb") == (
        "notebooks/a.ipynb", "../notebooks/a.md",
    )  # fmt: skip
    assert target_in_site("docs", "a.md", "../apps/x.toml") == ("apps/x.toml", "files/apps/x.toml")
    assert target_in_site("docs", "index.md", "../README.md") == ("README.md", "index.md")
    assert target_in_site("docs", "how-to/notebook.md", "../privacy.md") is None


def test_a_notebook_is_a_page_whose_links_lead_somewhere():
    lost = []
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        pages = pages_of(path)
        text = pages.pop(f"{path.stem}.md")
        assert text.startswith("# ")
        assert all(f"({name})" in text for name in pages)
        page = ROOT / "docs" / "notebooks" / f"{path.stem}.md"
        lost += lost_links(text, page, r"\]\(([^)\s]+\.md(?:#[^)\s]*)?)\)")
    assert lost == []
