"""What all studies share: the command line, pages that quick forms make, records, data sets."""

import csv
import gzip
import hashlib
import pathlib
import re
from importlib import import_module

import pytest

from simulations.__main__ import main
from simulations.data import DATA_SETS, DATA_VARIABLE, Sources, read_paper
from simulations.page import PASS
from simulations.preset import Options, StudyPreset
from simulations.registry import STUDIES
from simulations.replications import Job, Store, run_all
from simulations.vfem import experiments, fresh

ROOT = pathlib.Path(__file__).parents[2]


# -- quick forms -------------------------------------------------------------------------------


@pytest.mark.parametrize("study", STUDIES)
def test_presets_ask_for_every_part_once_and_for_less_in_the_quick_form(study, tmp_path):
    preset = getattr(import_module(STUDIES[study].module), "Preset", StudyPreset)

    def jobs_of(**options):
        return preset.load(study, Options(tmp_path, **options)).jobs()

    jobs, quick = jobs_of(), jobs_of(quick=True)
    keys = [job.key("") for job in jobs]
    assert len(set(keys)) == len(keys)
    assert {job.part for job in quick} == {job.part for job in jobs}
    assert len(quick) < max(60, len(jobs)) or not jobs
    # Fewer seeds and other targets redo no replication.
    changes = ("sme.target_seconds = 1.0", "sme.seeds = [0]") if study == "vfem" else ()
    fewer = jobs_of(seeds=1, changes=changes)
    assert {job.key("") for job in fewer} <= set(keys)


# By study: files of data, figures, words of the terminal, words of the page.
RUNS = {
    "vfem": ((), 5, ("Coefficient RMSE", PASS), ()),
    "copula": ((), 3, ("Table 1: RMSE",), ("0.95⁵",)),
    "fknn": (
        ("motor/motor_hetero_guest.csv", "motor/motor_hetero_host.csv"), 7, ("Table 4", PASS), (),
    ),
}  # fmt: skip


@pytest.mark.studies
@pytest.mark.parametrize("study", RUNS)
def test_a_quick_study_makes_page_figures_and_tables_and_resumes(
    study, tmp_path, capsys, monkeypatch, sources_with
):
    files, n_figures, said, shown = RUNS[study]
    sources_with(*files)
    # Not in processes of their own, of which test_simulations_vfem.py has one.
    monkeypatch.setattr(experiments, "measure_fresh", fresh.measure_here)
    command = [study, "--quick", "--workers", "0", "--output", str(tmp_path)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in said)
    page = (tmp_path / "index.md").read_text()
    assert page.count(".png)") == n_figures == len(list(tmp_path.glob("*.png")))
    assert PASS not in page
    assert all(word in page for word in shown)
    if study == "vfem":
        assert len((tmp_path / "sme_table3.csv").read_text().splitlines()) == 36
    if study == "fknn":
        with (tmp_path / "table5.csv").open() as file:
            row = next(csv.DictReader(file))
        for form in ("masked", "ckks", "exact"):
            assert (row[f"{form}: p"], row[f"{form}: cells"]) == ("identical", "0")
    kept = (tmp_path / "records.jsonl").read_bytes()
    monkeypatch.setattr("simulations.study.to_png", lambda figure: b"")  # drawn once is enough
    assert main(command) == 0
    assert (tmp_path / "records.jsonl").read_bytes() == kept


@pytest.mark.studies
def test_a_page_of_some_parts_says_how_many_runs_it_lacks(tmp_path, capsys):
    command = ["copula", "--quick", "--workers", "0", "--output", str(tmp_path)]
    assert main([*command, "--parts", "attacks", "--methods", "VCDS"]) == 0
    page = " ".join((tmp_path / "index.md").read_text().split())
    assert "missing 0 of 6, complete 0 of 7, sme 0 of 2, attacks 1 of 2." in page
    assert "`python -m simulations copula` runs what is lacking" in page
    assert main(["vfem", "--quick", "--workers", "0", "--report", "--output", str(tmp_path)]) == 2
    assert "there are no runs of apart, correlated" in capsys.readouterr().err


@pytest.mark.studies
def test_one_part_without_floors_is_drawn(tmp_path, sources_with):
    sources_with(TABLES[1])
    command = ["fedpsg", "--quick", "--fresh", "--workers", "0", "--output", str(tmp_path)]
    assert main([*command, "--parts", "default", "--methods", "FedPSG-AR (mean)"]) == 0
    assert (tmp_path / "errors.png").exists()


TABLES = ["bank/bank_full.csv", "german/german_credit.csv"]
MOTOR = ["motor/motor_hetero_guest.csv", "motor/motor_hetero_host.csv"]
LETTER = ["letter/letter_recognition.csv"]
KEPT = {
    "fknn": MOTOR,
    "vfem": [],
    "copula": [],
    "false_vfl": [],
    "fedpsg": TABLES + LETTER + MOTOR,
    "synthesis": TABLES + MOTOR,
    "trees": TABLES + LETTER + MOTOR,
}


@pytest.mark.parametrize("study", KEPT)
def test_a_page_follows_from_its_kept_records_to_the_letter(
    study, tmp_path, monkeypatch, sources_with
):
    """All tables, what was expected and what came, as this code makes them today."""
    sources_with(*KEPT[study])
    monkeypatch.setattr("simulations.study.to_png", lambda figure: b"")
    monkeypatch.setattr("simulations.study.print_table", lambda title, frame: None)
    page = tmp_path / "page.md"
    command = [study, "--report", "--output", str(tmp_path / "out"), "--write", str(page)]
    assert main(command) == 0
    name = f"{study.replace('_', '-')}-study.md"
    assert page.read_text() == (ROOT / "docs" / name).read_text()
    records = f"records/{study}.jsonl"
    assert (tmp_path / records).read_bytes() == (ROOT / "docs" / records).read_bytes()


# -- the command line --------------------------------------------------------------------------


def test_list_names_every_study_on_a_line(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(STUDIES)
    assert "Tables 3-5" in lines[0]


@pytest.mark.parametrize("arguments", [["--help"], ["fknn", "--help"]])
def test_help_helps(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "fknn" in text
    if arguments[0] == "fknn":
        assert all(word in text for word in ("--quick", DATA_VARIABLE, "results/fknn", "status"))


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["fknn", "--seeds", "0"]])
def test_wrong_arguments_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_absent_data_set_says_which_file_whence_and_where_to_put_it(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    missing = tmp_path / "nowhere"
    assert main(["fknn", "--data", str(missing), "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    expected = (str(missing), "motor_hetero_guest.csv", "FATE", "simulations data", "--data")
    assert all(word in error for word in (*expected, DATA_VARIABLE))
    assert not (tmp_path / "out").exists()


def test_a_package_that_is_not_installed_is_named(tmp_path, capsys, monkeypatch):
    def absent(module):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("simulations.registry.import_module", absent)
    assert main(["false_vfl", "--report", "--output", str(tmp_path)]) == 2
    assert "this study needs 'torch', which is not installed here" in capsys.readouterr().err


def test_data_sets_are_in_the_repository_s_folder_or_where_the_user_says(tmp_path, monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    assert Sources.find().data == ROOT / "data"
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "a"))
    assert Sources.find().data == tmp_path / "a"
    assert Sources.find(tmp_path / "given").data == tmp_path / "given"


def test_data_says_what_is_here_and_what_is_missing(tmp_path, capsys, monkeypatch):
    content = b"url, shares\nu, 5\n"
    for name in ("hapt/Test", "news", "letter"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "letter" / "letter_recognition.csv.gz").write_bytes(gzip.compress(content))
    (tmp_path / "news" / "OnlineNewsPopularity.csv").write_bytes(content)
    (tmp_path / "hapt" / "Test" / "X_test.txt").write_bytes(content)
    assert main(["data", "--data", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    of = dict(zip(DATA_SETS, said.split("\n\n")[1:], strict=False))
    assert "here     letter/letter_recognition.csv, with other content than" in of["letter"]
    assert "here     news/OnlineNewsPopularity.csv" in of["news"]
    assert "missing" not in of["news"]
    assert "here     hapt/Test/X_test.txt" in of["hapt"]
    assert "missing  hapt/Train/X_train.txt" in of["hapt"]
    assert f"to do    in {tmp_path}: mkdir -p bank; tr" in of["bank"]
    assert all("licence  " in text and "from     " in text for text in of.values())
    assert said.rstrip().splitlines()[-1].startswith(f"2 of {len(DATA_SETS)} are here")
    known = hashlib.sha256(content).hexdigest()
    monkeypatch.setitem(DATA_SETS["letter"].files, "letter/letter_recognition.csv", known)
    main(["data", "--data", str(tmp_path)])
    assert "letter_recognition.csv, content as in the documented" in capsys.readouterr().out


def test_data_sets_name_studies_and_only_these_take_a_folder_of_data(capsys):
    readers = {study for of in DATA_SETS.values() for study in of.studies}
    assert readers < set(STUDIES)
    for study in STUDIES:
        with pytest.raises(SystemExit):
            main([study, "--help"])
        assert ("--data DIR" in capsys.readouterr().out) == (study in readers)


def test_every_file_that_a_study_reads_is_of_a_known_data_set():
    asked = re.compile(r"\.path\(f?\"([^\"]+)\"\)")
    folders = (ROOT / "simulations", ROOT / "benchmarks")
    texts = [path.read_text() for folder in folders for path in folder.rglob("*.py")]
    read = {file for text in texts for file in asked.findall(text)}
    known = [file for of in DATA_SETS.values() for file in of.files]
    assert len(read) > 7
    for file in read:
        pattern = re.sub(r"{[^}]*}", ".+", file.replace(".", r"\."))
        assert any(re.fullmatch(pattern, name) for name in known), file


@pytest.mark.parametrize("folder", sorted((ROOT / "simulations").glob("*/paper")), ids=str)
def test_numbers_of_a_paper_are_as_its_readme_counts_them(folder):
    described = re.findall(r"^\| (\w+)\.csv \| (\d+) \|", (folder / "README.md").read_text(), re.M)
    assert {name for name, _ in described} == {path.stem for path in folder.glob("*.csv")}
    for name, rows in described:
        assert len(read_paper(folder.parent.name, name)) == int(rows)


def test_nothing_but_ci_looks_outside_of_the_repository():
    """CI alone has data sets beside the clone; see `.ci/run`."""
    outside = "/".join(("..", "shared"))
    folders = ("apps", "benchmarks", "docs", "notebooks", "simulations", "tests", ".ci")
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*.*"))
    text = (path for path in [*paths, ROOT / ".ci" / "run"] if path.suffix != ".pyc")
    naming = [path for path in text if path.is_file() and outside.encode() in path.read_bytes()]
    assert naming == [ROOT / ".ci" / "run"]


# -- replications ------------------------------------------------------------------------------

CALLS: list[tuple[str, int]] = []


def double(job, shared):
    CALLS.append((job.part, job.settings["seed"]))
    if job.settings["seed"] == shared.get("interrupt at"):
        raise KeyboardInterrupt
    return {"value": 2.0 * job.settings["seed"] + shared["offset"]}


JOBS = [Job("a", {"seed": seed, "nested": {"k": 1}}) for seed in range(4)]


def run(path, shared=None, jobs=JOBS, context="v1"):
    CALLS.clear()
    return run_all(
        jobs, double, shared or {"offset": 0.5}, store=Store(path), context=context, title="t",
        workers=0,
    )  # fmt: skip


def test_numbers_come_with_their_settings(tmp_path):
    frame = run(tmp_path / "r.jsonl")
    assert list(frame.columns) == ["part", "seed", "metric", "value"]
    assert frame["value"].tolist() == [0.5, 2.5, 4.5, 6.5]


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    path = tmp_path / "r.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(path, {"offset": 0.5, "interrupt at": 2})
    frame = run(path)
    assert CALLS == [("a", 2), ("a", 3)]
    assert frame["value"].tolist() == [0.5, 2.5, 4.5, 6.5]


@pytest.mark.parametrize(
    ("jobs", "context"),
    [
        (JOBS, "other data"),
        ([Job("a", {"seed": s, "nested": {"k": 2}}) for s in range(4)], "v1"),
        ([Job("b", j.settings) for j in JOBS], "v1"),
    ],
    ids=["data", "settings", "part"],
)
def test_what_depends_on_other_things_is_run_again(tmp_path, jobs, context):
    path = tmp_path / "r.jsonl"
    run(path)
    run(path, jobs=jobs, context=context)
    assert len(CALLS) == 4


@pytest.mark.parametrize("cut", [1, 5, 12, 60])
def test_a_line_that_was_cut_off_is_dropped(tmp_path, cut):
    path = tmp_path / "r.jsonl"
    whole = run(path)
    path.write_bytes(path.read_bytes()[:-cut])
    frame = run(path)
    # Without its line break alone the last line is still whole.
    assert len(CALLS) <= 1 if cut < 10 else CALLS == [("a", 3)]
    assert frame.equals(whole)
    run(path)
    assert CALLS == []


def test_lines_of_other_kinds_are_left_alone(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('x,y\n{"key": 1}\n[1, 2]\n"open quote\n')
    assert len(run(path)) == 4
    assert len(Store(path).found) == 4
