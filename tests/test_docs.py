"""README and documentation hold: every Python block runs as written, every link leads somewhere."""

import pathlib
import re

import numpy as np
import pytest

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


@pytest.mark.parametrize("path", [path for path in PAGES if python_blocks(path)], ids=name_of)
def test_every_python_block_runs_as_written(path, names_after):
    if path.name in HEAVY:
        pytest.importorskip(HEAVY[path.name])
    assert set(names_after(name_of(path))) - {"__name__", "__builtins__"}


def test_what_the_readme_shows_is_right(names_after):
    names = names_after("README.md")
    demo, total = names["demo"], names["simulate"](names["RowSum"](), names["demo"].parties).model
    ids = sorted(set().union(*(table.index for table in demo.parties.values())))
    sums = sum(table.sum(axis=1).reindex(ids).fillna(0) for table in demo.parties.values())
    np.testing.assert_allclose(np.sort(total), np.sort(sums), atol=1e-6)
    assert not names["result"].tables["clinic"].isna().any().any()


def test_what_the_page_on_trees_shows_is_right(names_after):
    names = names_after("docs/trees.md")
    columns = ["prediction", "probability_0", "probability_1"]
    assert list(names["result"].predictions.columns) == columns
    assert len(names["result"].predictions) == 50
    assert list(names["later"].index) == [f"c{i:03}" for i in range(5)]
    assert names["result"].model["splits"].min() > 0


def test_what_the_page_on_evaluation_shows_is_right(names_after):
    table = names_after("docs/evaluation.md")["result"].evaluation.table()
    assert list(table.index) == ["this run", "constant", "bank alone", "court alone"]
    assert table["auc"].idxmax() == "this run"


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


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M)
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        page = (path.parent / file).resolve() if file else path
        if not page.exists() or (anchor and page.suffix == ".md" and anchor not in anchors(page)):
            lost.append(target)
    assert lost == []
