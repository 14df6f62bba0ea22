"""Own files in a simulation: node configs, what they mend, and that no server names a file."""

import pathlib
import socket
import tomllib

import numpy as np
import pandas as pd
import pytest
from app_runs import DEFAULTS, own_files, run_app, simulated
from runtimes import IN_MEMORY, Flower, stop_all

from apps import node_files
from apps.cli import main, run, supernode
from flwr_vertical import Result
from flwr_vertical.errors import VerticalError
from flwr_vertical.settings.toml import flat, read_items

ROOT = pathlib.Path(__file__).parents[2]
N = 360
GBDT = 'strategy="gbdt" run-name="trees" gbdt.n-trees=3'
VFEM = 'strategy="vfem" run-name="regression"'
LABELS = 'label-holder="bank" label-column="repaid" positive-label="yes"'


def write_tables(folder):
    """Three tables as they come out of three systems; no two write IDs in the same way."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    z = rng.normal(size=(N, 3))
    yes = z[:, 0] - z[:, 1] + z[:, 2] + rng.normal(size=N) > 0
    income, debt = 4000 * np.exp(0.3 * z[:, 0]), 40 + 6 * z[:, 1]

    def german(value):
        return f"{value:,.2f}".translate(str.maketrans(",.", ".,"))

    bank = ["kunde;einkommen;schulden;alter;land;bemerkung;repaid"]
    for k in rng.permutation(N)[:340]:
        cells = ["-999" if k % 17 == 0 else german(income[k]), german(debt[k])]
        cells += [
            "999" if k % 19 == 0 else str(30 + k % 41),
            "CH",
            f"Kunde {k * 7}, seit {1990 + k}",
        ]
        bank.append(";".join([f"A{k + 1:05d}", *cells, "yes" if yes[k] else "no"]))
    court = ["case,suits,score"]
    for k in rng.permutation(N)[:330]:
        suits = "unknown" if k % 23 == 0 else str(k % 6)
        court.append(f" a{k + 1:05d} ,{suits},{600 + 80 * z[k, 2]:.1f}")
    shop = ["customer\trent\tsince\tfixed"]
    shop += [
        f"A{k + 1:05d}\t{900 + 300 * z[k, 2]:.2f}\t{2000 + k % 20}-0{k % 9 + 1}-1{k % 9}\t1"
        for k in rng.permutation(N)[:320]
    ]
    for name, lines in {"bank": bank, "court": court, "shop": shop}.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the tables, in which the user is, and in which nothing of Flower starts."""
    write_tables(tmp_path / "tables")
    (tmp_path / "config.toml").write_text(IN_MEMORY)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setenv("FLWR_VERTICAL_HOME", str(tmp_path / "results"))
    monkeypatch.setattr(run, "check_simulation", lambda: None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_here(app, superlink, run_config, federation_config):
    """Do in this process what Flower's Simulation Runtime does for a run."""
    (count,) = read_items(federation_config).values()
    settings = flat(tomllib.loads(pathlib.Path(run_config[1]).read_text()))
    run_app(simulated(count), **{"alignment": DEFAULTS["alignment"], **settings})
    return 0


def commands():
    """What a user types, from three files to two reports."""
    start = ["run", str(ROOT), "--nodes", "nodes", "--run-config"]
    return [
        ["check", "tables", "--label-column", "repaid", "--fix", "nodes"],
        ["check", "--nodes", "nodes", "--strict"],
        [*start, f"{VFEM} {LABELS}"],
        [*start, f"{GBDT} {LABELS}"],
    ]


def test_from_awkward_files_to_two_reports_in_four_commands(place, monkeypatch, capsys):
    before = {path: path.read_bytes() for path in (place / "tables").iterdir()}
    monkeypatch.setattr(run, "_stream", run_here)
    monkeypatch.setattr(node_files, "in_ray_worker", lambda: True)
    typed = commands()
    assert len(typed) <= 10
    for arguments in typed:
        assert main.main(arguments) == 0, capsys.readouterr()
    assert before == {path: path.read_bytes() for path in (place / "tables").iterdir()}
    shown = capsys.readouterr().out
    assert shown.count("nothing suspicious found") == 2
    for name in ("regression", "trees"):
        folder = place / "results" / "server" / name
        assert (folder / "report.html").is_file()
        assert Result.load(folder).parties == ["bank", "court", "shop"]
        assert (place / "results" / "parties" / name / "shop.html").is_file()
    assert Result.load(place / "results" / "server" / "trees").metrics["validation_auc"] > 0.6


def test_the_written_node_configs_mend_what_they_can_and_say_why(place, capsys):
    assert main.main(commands()[0]) == 0
    out = capsys.readouterr().out
    read = {n: flat(tomllib.loads((place / "nodes" / f"{n}.toml").read_text())) for n in
            ("bank", "court", "shop")}  # fmt: skip
    assert read["bank"] == {
        "party": "bank", "data": "tables/bank.csv", "policy.labels": "repaid",
        "missing.einkommen": "-999", "missing.alter": "999", "drop-columns": "land,bemerkung",
        "csv.separator": ";", "normalise-ids": "casefold",
    }  # fmt: skip
    assert read["court"] == {
        "party": "court", "data": "tables/court.csv", "missing.suits": "unknown",
        "normalise-ids": "strip",
    }  # fmt: skip
    assert read["shop"]["csv.dates"] == "days"
    assert read["shop"]["drop-columns"] == "fixed"
    marked = (place / "tables" / "bank.csv").read_text().count(";999;")
    assert f"  # alter: {marked} cells lie far from all others" in out
    assert main.main(commands()[0]) == 2
    assert "exists already, and nothing is overwritten" in capsys.readouterr().err


def test_what_no_key_mends_is_left(tmp_path, capsys):
    ids = [f"c{i}" for i in range(40)]
    frame = pd.DataFrame({"size": [f"{i} kg" for i in range(40)], "same": 1}, index=ids)
    frame.to_csv(tmp_path / "shop.csv")
    target = tmp_path / "shop.toml"
    assert main.main(["check", str(tmp_path / "shop.csv"), "--fix", str(target)]) == 0
    out = capsys.readouterr().out
    assert 'drop-columns = "same"' in out
    left = out.partition("have left what no key mends:")[2]
    assert "write the number alone" in left
    assert "'same'" not in left
    assert "1 warning" in left
    assert main.main(["check", "--node-config", str(target)]) == 0
    assert left.strip() == capsys.readouterr().out.strip()


def refused(capsys, folder, *more):
    """Return what a run says that ends before anything starts."""
    typed = ["run", str(ROOT), "--nodes", str(folder), "--run-config", 'strategy="fknn"', *more]
    assert main.main(typed) == 2
    return capsys.readouterr().err


def test_errors_before_anything_starts(place, monkeypatch, capsys):
    monkeypatch.setattr(run, "_flwr", lambda: pytest.fail("Flower was started"))
    nodes = place / "nodes"
    assert "is no folder; expected one with NAME.toml or NAME/node.toml" in refused(capsys, nodes)
    (nodes / "bank").mkdir(parents=True)
    assert "holds no node config" in refused(capsys, nodes)
    bank = nodes / "bank" / "node.toml"
    bank.write_text("party = 'bank'\ndata = 'bank.csv'\n")
    error = refused(capsys, nodes)
    assert f"bank.csv does not exist; the path is taken from {place} if relative" in error
    bank.write_text("party = 'bank'\ndata = 'tables/bank.csv'\ndrop-colums = 'land'\n")
    error = refused(capsys, nodes)
    assert f"{bank}: unknown key 'drop-colums'" in error
    assert "did you mean 'drop-columns'?" in error
    bank.write_text("data = 'tables/bank.csv'\n")
    assert f"{bank} has no party name; put into it: party = 'bank'" in refused(capsys, nodes)
    bank.write_text("party = 'bank'\ndata = 'tables/bank.csv'\n")
    (nodes / "other.toml").write_text("party = 'bank'\ndata = 'tables/court.csv'\n")
    assert f"{nodes / 'other.toml'} and {bank} are both of 'bank'" in refused(capsys, nodes)
    (nodes / "other.toml").write_text("party = 'court'\ndata = 'tables/court.csv'\n")
    error = refused(capsys, nodes, "--run-config", 'parties="bank,shop"')
    assert "parties names ['shop'], and the nodes in" in error
    error = refused(capsys, nodes, "--run-config", 'labels="demo"')
    assert "are the labels of demonstration data" in error
    labels = ["--run-config", f"{GBDT} label-holder='bank' label-column='repaid'"]
    error = refused(capsys, nodes, *labels)
    assert "they have the 2 classes 'no', 'yes'; state positive-label" in error
    error = refused(capsys, nodes, *labels, "--run-config", 'positive-label="Yes"')
    assert "positive-label = 'Yes' is no class" in error
    error = refused(capsys, nodes, *labels, "--run-config", 'positive-label="yes"')
    assert "the policy of 'bank' forbids this run" in error
    assert "policy.labels='repaid'" in error
    error = refused(capsys, nodes, "--run-config", f"{GBDT} label-holder='shop'")
    assert "label-holder = 'shop' is no party; the parties are ['bank', 'court']" in error


def test_no_node_reads_a_node_config_that_a_server_names(home, bank, court, monkeypatch):
    def forbidden(*_):
        raise AssertionError("a node read a node config that the server named")

    monkeypatch.setattr(node_files, "config_of", forbidden)
    named = {"nodes": str(home), "parties": "bank,court"}
    with pytest.raises(VerticalError, match="this node reads no file that a server names"):
        run_app(own_files(home, bank=bank, court=court), **named)
    # Nodes of Flower's usual examples have these keys on real SuperNodes, too.
    with pytest.raises(VerticalError, match="this node reads no file that a server names"):
        run_app(simulated(2), **named)
    monkeypatch.setattr(node_files, "in_ray_worker", lambda: True)
    with pytest.raises(VerticalError, match="this node reads no file that a server names"):
        run_app(own_files(home, bank=bank, court=court), **named)
    with pytest.raises(VerticalError, match="a node read a node config"):
        run_app(simulated(2), **named)


def test_an_app_without_the_key_says_so(place, capsys):
    assert main.main(commands()[0]) == 0
    old = {key: value for key, value in DEFAULTS.items() if key != "nodes"}
    from apps.cli.nodes import with_nodes

    with pytest.raises(VerticalError, match="has no key 'nodes'"):
        with_nodes(place / "nodes", old, {})


@pytest.mark.flower
@pytest.mark.timeout(600)
def test_the_same_commands_on_the_simulation_runtime(tmp_path):
    write_tables(tmp_path / "tables")
    home = tmp_path / "flower"
    home.mkdir()
    (home / "config.toml").write_text(IN_MEMORY)
    flower = Flower(home)
    flower.env["PYTHONPATH"] = str(ROOT)
    try:
        for arguments in commands():
            answer = flower.run(*arguments, cwd=tmp_path)
            assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-2000:]
    finally:
        stop_all(home)
    for name in ("regression", "trees"):
        assert (flower.results / "server" / name / "report.html").is_file()
        assert (flower.results / "parties" / name / "shop.html").is_file()


def test_a_supernode_tells_its_superexec_where_to_ask(monkeypatch, capsys):
    started = []
    monkeypatch.setattr(supernode.subprocess, "Popen", started.append)
    monkeypatch.setattr(supernode.os, "execv", lambda program, words: started.append(words))
    monkeypatch.setattr(supernode, "_check_start", lambda *_: None)  # ports may be taken here
    own = ["--superlink", "server:9392", "--port", "9100", "--ssl-certfile", "a.crt"]
    main.main(["supernode", *own, "--ssl-ca-certfile", "ca.crt"])
    superexec, node = (" ".join(words) for words in started)
    assert "--runtime-api-address 127.0.0.1:9100" in superexec
    assert superexec.endswith("--root-certificates ca.crt")
    assert node.endswith(f"--isolation process {' '.join(own)} --ssl-ca-certfile ca.crt")
    main.main(["supernode", "--insecure"])
    assert "127.0.0.1:9094" in " ".join(started[2])
    assert started[2][-1] == "--insecure"
    assert main.main(["supernode", "--isolation", "process"]) == 2
    assert "leave it out" in capsys.readouterr().err
    assert len(started) == 4


def test_a_supernode_that_cannot_start_says_why(monkeypatch, tmp_path, capsys):
    started = []
    monkeypatch.setattr(supernode.subprocess, "Popen", started.append)
    monkeypatch.setattr(supernode.os, "execv", lambda program, words: started.append(words))
    config = tmp_path / "node.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = ["supernode", "--insecure", "--port", str(taken.getsockname()[1])]
        assert main.main([*words, "--node-config", f"{config}"]) == 2
        assert f"there is no file {config}" in capsys.readouterr().err
        config.write_text('party = "bank"\n')
        assert main.main([*words, "--node-config", f"{config}"]) == 2
        assert "state another --port" in capsys.readouterr().err
        for wrong, why in (
            ("party='bank' min-rows 500", "'min-rows' is no key=value"),
            ("party='bank' min-row=500", "unknown key 'min-row'"),
            (f"party='bank' data='{tmp_path}/none.csv'", "none.csv', but there is no such file"),
        ):
            assert main.main([*words, "--node-config", wrong]) == 2
            assert why in capsys.readouterr().err
    assert not started
    main.main([*words, "--node-config", f"{config}"])
    assert len(started) == 2


def test_node_configs_are_of_simulations(place, capsys):
    (place / "config.toml").write_text(
        '[superlink]\ndefault = "far"\n[superlink.far]\naddress = "127.0.0.1:1"\ninsecure = true\n'
    )
    for link, named in ([], "Flower's default SuperLink"), (["far"], "'far'"):
        assert main.main(["run", str(ROOT), *link, "--nodes", "nodes"]) == 2
        said = capsys.readouterr().err
        assert f"simulations, and {named} is not" in said
        assert "flwr-vertical run . local --nodes" in said


def test_a_superlink_that_flower_does_not_know_is_one_line(place, capsys):
    (place / "config.toml").write_text('[superlink]\ndefault = "gone"\n')
    for link, named in ([], "gone"), (["far"], "far"):
        assert main.main(["run", str(ROOT), *link]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: SuperLink connection '{named}' not found in")
        assert str(place / "config.toml") in said
        assert said.count("\n") == 1
