"""A federation with TLS and SuperNode authentication, by the script that stands one up."""

import contextlib
import ipaddress
import json
import os
import pathlib
import re
import socket
import ssl
import stat
import subprocess
import sys
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from deployments import wait_until
from runtimes import BIN, free_port, watching
from third_party import install_known_cells, python_path

from apps.deploy import federation as federation_command
from apps.deploy import operations, processes
from apps.deploy.certificates import make_node_key, make_server_certificate
from apps.deploy.federation import _plan, main, make_parser
from apps.deploy.folder import (
    Plan,
    State,
    load_state,
    node_config,
    prepare,
    write_files,
    write_toml,
)
from apps.deploy.settings import ROOT, policies_for, run_config
from flwr_vertical import simulate
from flwr_vertical.crypto.identity import identity_text, load_identity, public_identity
from flwr_vertical.errors import ConfigError
from flwr_vertical.settings.toml import flat
from flwr_vertical.tables import read_table
from flwr_vertical.whole_files import write_bytes_atomically
from strategies.fknn import FKNN

PARTIES = ("bank", "court", "hospital")
PLAN = Plan(dict.fromkeys(PARTIES, ""), arbiter=True)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def folder(tmp_path):
    home = tmp_path / "fed"
    prepare(home)
    State(PLAN, 9391).save(home)
    write_files(home, PLAN, 9391)
    return home


# -- without processes ----------------------------------------------------------------------


def handshake(made, folder, name, trusted):
    """Dial a TLS server that has this certificate, under a name, and return the error if any."""
    (folder / "s.crt").write_bytes(made.certificate)
    (folder / "s.key").write_bytes(made.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "s.crt", folder / "s.key")
    client = ssl.create_default_context(cadata=trusted.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    ours, theirs = socket.socketpair()

    def serve():
        with contextlib.suppress(OSError), server.wrap_socket(theirs, server_side=True) as tls:
            tls.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=name):
            return None
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    finally:
        ours.close()
        thread.join(10)


def test_server_certificate_holds_for_its_names_and_its_ca_alone(tmp_path):
    made = make_server_certificate(("server.example", "localhost", "127.0.0.1"))
    for name in ("server.example", "localhost", "127.0.0.1"):
        assert handshake(made, tmp_path, name, made.ca) is None
    assert "mismatch" in handshake(made, tmp_path, "stranger.example", made.ca)
    assert "mismatch" in handshake(made, tmp_path, "127.0.0.2", made.ca)
    other = make_server_certificate()
    assert "issuer" in handshake(made, tmp_path, "localhost", other.ca)


def test_certificates_say_what_they_are_for():
    made = make_server_certificate(days=3)
    ca, certificate = (x509.load_pem_x509_certificate(p) for p in (made.ca, made.certificate))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("127.0.0.1")]
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days == 3
    assert b"PRIVATE" not in made.ca + made.certificate


def test_node_keys_are_of_the_kind_that_flower_takes():
    private, public = make_node_key()
    loaded = load_ssh_private_key(private, None)
    assert isinstance(loaded, ec.EllipticCurvePrivateKey)
    assert loaded.curve.name == "secp384r1"
    assert load_ssh_public_key(public) == loaded.public_key()
    assert make_node_key()[0] != private


def test_private_file_is_private_even_if_it_was_not(tmp_path):
    path = tmp_path / "key"
    path.write_text("old")
    path.chmod(0o644)
    write_bytes_atomically(path, b"new", 0o600)
    assert path.read_bytes() == b"new"
    assert mode(path) == 0o600


def test_folder_is_private_and_secrets_lie_with_their_owners(folder):
    assert mode(folder) == 0o700
    secret = [path for path in folder.rglob("*") if path.is_file() and is_secret(path)]
    assert {str(path.relative_to(folder)) for path in secret} == {
        "server/server.key",
        *(f"nodes/{n}/{file}" for n in PLAN.nodes for file in ("supernode", "identity.pem")),
    }
    assert {mode(path) for path in secret} == {0o600}


def is_secret(path):
    return b"PRIVATE KEY" in path.read_bytes()


def test_everybody_pins_everybody_but_the_arbiter(folder):
    keys = {
        node: identity_text(
            public_identity(load_identity(folder / "nodes" / node / "identity.pem"))
        )
        for node in PLAN.nodes
    }
    for party in PARTIES:
        config = tomllib.loads((folder / "nodes" / party / "node.toml").read_text())
        assert config["pin"] == {name: key for name, key in keys.items() if name != party}
        assert config["pin-all"] is True
        assert config["party"] == party
        table = read_table(config["data"], id_column=config["id-column"], party=party)
        assert 0.6 < len(table.frame) / 2000 < 0.73  # a third of the rows is missing
    arbiter = tomllib.loads((folder / "nodes" / "arbiter" / "node.toml").read_text())
    assert arbiter["role"] == "arbiter"
    assert "pin" not in arbiter  # it uses nobody's keys, and the library refuses its pins
    assert "data" not in arbiter


def test_own_files_are_named_and_not_copied(tmp_path):
    for name in ("bank.csv", "court/part.parquet", "profit.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("customer,x\na,1\n")
    home = tmp_path / "fed"
    data = [f"--data=bank={tmp_path / 'bank.csv'}", f"--data=court={tmp_path / 'court'}"]
    labels = ["--labels", str(tmp_path / "profit.csv"), "--label-column", "x"]
    options = make_parser().parse_args(["up", *data, *labels, "--id-column", "customer"])
    plan = _plan(options)
    plan.check()
    prepare(home)
    write_files(home, plan, 9391)
    config = tomllib.loads((home / "nodes" / "bank" / "node.toml").read_text())
    assert config["data"] == str(tmp_path / "bank.csv")
    assert config["id-column"] == "customer"
    assert set(config["pin"]) == {"court"}  # no arbiter
    court = tomllib.loads((home / "nodes" / "court" / "node.toml").read_text())
    assert court["data"] == str(tmp_path / "court")  # a folder, of Parquet files
    assert not list(home.rglob("*.csv"))
    run = run_config(home, plan, "vfem", "first")
    assert (run["labels"], run["label-column"]) == (str(tmp_path / "profit.csv"), "x")
    assert run["min-nodes"] == 2
    # Where no label file is named, nobody else's labels are taken.
    bare = Plan(plan.parties)
    assert run_config(home, bare, "vfem", "second")["labels"] == ""


def test_keys_stay_when_it_is_brought_up_again_and_certificates_do_not(folder):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    write_files(folder, PLAN, 9392)
    changed = {str(p.relative_to(folder)) for p, was in before.items() if p.read_bytes() != was}
    assert changed == {"ca.crt", "server/server.crt", "server/server.key", "analyst/config.toml"}


def test_awkward_names_and_values_survive_toml(tmp_path):
    config = {"party": 'a "b"', "pin.A+B": "x\\y", "pin-all": True, "patience": 2.5, "n": 3}
    found = tomllib.loads(write_toml(tmp_path / "node.toml", config).read_text())
    assert flat(found) == config


def test_run_config_takes_preset_files_of_this_federation_and_settings(tmp_path):
    settings = ['vfem.noise-prior=2.0 alignment="plain"', "vfem.intercept=false"]
    config = run_config(tmp_path, PLAN, "vfem", "first", settings)
    assert config["labels"] == str(tmp_path / "server" / "labels.csv")
    assert config["parties"] == "bank,court,hospital"
    assert config["min-nodes"] == 4
    found = config["vfem.noise-prior"], config["vfem.intercept"], config["alignment"]
    assert found == (2.0, False, "plain")
    assert config["vfem.covariance"] == "full"  # of the preset, untouched by the settings
    assert not [key for key in config if key.startswith("demo.")]
    assert run_config(tmp_path, PLAN, "fknn", "second")["labels"] == ""


def test_settings_of_a_run_are_keys_that_the_app_knows(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    known = set(flat(project["tool"]["flwr"]["app"]["config"]))
    for strategy in ("vfem", "fknn", "mean"):
        assert set(run_config(tmp_path, PLAN, strategy, "x")) <= known


def test_nodes_are_given_what_they_must_agree_to(tmp_path):
    assert policies_for(PLAN, ['strategy="vfem"', 'strategy="fknn"']) == {}
    runs = [
        'strategy="vfem-iterations"',
        'fknn.weights="distance" aggregation="plain"',
        'strategy="elsewhere:Method" label-holder="court" label-column="paid"',
    ]
    found = policies_for(PLAN, runs)
    every = {
        "policy.exchanges": "sums,distances",
        "policy.aggregations": "masked,ckks,plain",
        "policy.modules": "elsewhere:Method",
    }
    assert found["bank"] == found["hospital"] == every
    assert found["court"] == every | {"policy.labels": "paid"}
    assert found["arbiter"] == {key: every[key] for key in every if key != "policy.exchanges"}
    plan = replace(PLAN, policies=found)
    written = node_config(tmp_path, plan, "court", "court.csv", {})
    assert written["policy.labels"] == "paid"
    with pytest.raises(ConfigError, match=r"no settings \['exchanges'\]"):
        policies_for(PLAN, ['strategy="vfem" vfem.exchanges="sums"'])
    with pytest.raises(ConfigError, match=r"exchange.*removed.*'vfem-iterations'"):
        policies_for(PLAN, ['strategy="vfem" vfem.exchange="sums"'])


def test_one_party_alone_must_agree_to_it():
    assert policies_for(Plan({"bank": ""}), ['strategy="fknn"']) == {
        "bank": {"policy.min-parties": 1}
    }


@pytest.mark.parametrize("strategy", ["glm", "vfem", "single", "vcds", "ievcds", "predict"])
def test_labels_reach_every_strategy_that_has_a_use_for_them(tmp_path, strategy):
    own = Plan({"bank": "bank.csv"}, labels="/srv/profit.csv", label_column="profit")
    config = run_config(tmp_path, own, strategy, "x")
    assert (config["labels"], config["label-column"]) == ("/srv/profit.csv", "profit")
    assert run_config(tmp_path, own, "fknn", "x")["labels"] == ""
    demo = run_config(tmp_path, PLAN, strategy, "x")["labels"]
    assert demo == str(tmp_path / "server" / "labels.csv")


def test_labels_of_one_run_are_those_of_its_options(tmp_path, monkeypatch):
    (tmp_path / "other.csv").write_text("customer,x\na,1\n")
    monkeypatch.chdir(tmp_path)
    options = ["--labels", "other.csv", "--label-column", "x", "--home", str(tmp_path / "fed")]
    given = []
    monkeypatch.setattr(federation_command, "run", lambda *arguments: given.extend(arguments) or 0)
    assert main(["run", "fknn", *options]) == 0
    _, strategy, settings, name, *labels = given
    assert labels == [str(tmp_path / "other.csv"), "x"]
    config = run_config(tmp_path, PLAN, strategy, name, settings, *labels)
    assert (config["labels"], config["label-column"]) == (str(tmp_path / "other.csv"), "x")
    with pytest.raises(ConfigError, match=r"there is no file /no/labels\.csv"):
        run_config(tmp_path, PLAN, "glm", "x", labels="/no/labels.csv")


@pytest.mark.parametrize(
    "item", ["nonsense", "a=b c", "a=1 nonsense", "a 2 b=1", "a=[1, 2]", "/no/such/file.toml"]
)
def test_unreadable_setting_is_an_error(tmp_path, item):
    with pytest.raises(ConfigError, match="cannot read the setting"):
        run_config(tmp_path, PLAN, "vfem", "x", [item])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["up", "--data", "bank=/no/such.csv"], "there is no file /no/such.csv"),
        (["up", "--data", "bank"], "expected NAME=FILE"),
        (["up", "--data", f"bank={__file__}", "--parties", "bank,court"], r"\['court'\] have no"),
        (["up", "--data", f"bank={__file__}", "--parties", "court"], r"parties \['bank'\] that"),
        (["up", "--parties", "bank,bank"], "a party twice"),
        (["up", "--parties", "bank,arbiter"], "no party can be called 'arbiter'"),
        (["up", "--parties", "../bank,court"], "party name '../bank' is not usable"),
        (["up", "--labels", "/no/labels.csv"], "there is no file /no/labels.csv"),
        (["run", "vfem"], "there is no federation in"),
        (["down"], "there is no federation in"),
        (["status"], "there is no federation in"),
    ],
)
def test_what_cannot_be_done_is_said_at_once(tmp_path, capsys, arguments, message):
    home = tmp_path / "fed"
    assert main([*arguments, "--home", str(home)]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not home.exists()


def test_run_name_that_leaves_the_folder_is_refused(folder):
    state = load_state(folder)
    state.processes = [vars(this_process())]
    state.save(folder)
    for stated in ({"run_name": "../x"}, {"settings": ['run-name="../x"']}):
        with pytest.raises(ConfigError, match=r"--run-name '\.\./x' is not usable"):
            operations.run(folder, "vfem", **stated)


@pytest.mark.parametrize(("code", "said"), [(1, "the run failed"), (2, "")])
def test_a_run_that_was_not_begun_has_not_failed(folder, monkeypatch, code, said):
    state = load_state(folder)
    state.processes = [vars(this_process())]
    state.save(folder)
    ended = subprocess.CompletedProcess([], code)
    monkeypatch.setattr(operations.subprocess, "run", lambda *_, **__: ended)
    lines = []
    assert operations.run(folder, "fknn", say=lines.append) == code
    assert "".join(lines).startswith(said)
    assert bool(lines) == bool(said)


@pytest.mark.parametrize(("labels", "fit"), [("", "fknn"), ("labels.csv", "vfem")])
def test_the_next_step_is_one_that_this_federation_can_take(
    tmp_path, monkeypatch, capsys, labels, fit
):
    monkeypatch.setattr(federation_command, "up", lambda *_: None)
    home = ["--home", str(tmp_path / "fed")]
    own = ["--data", f"bank={__file__}", *(["--labels", labels] if labels else [])]
    assert main(["up", *own, *home]) == 0
    assert f"run {fit} --home" in capsys.readouterr().out


def this_process():
    return processes.Process("superlink", os.getpid(), processes._table()[os.getpid()][0], "x.log")


def test_port_in_use_is_said(tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["up", "--port", port, "--home", str(tmp_path / "fed")]) == 1
    assert f"port {port} of 127.0.0.1 cannot be used" in capsys.readouterr().err


def test_folder_of_somebody_else_is_neither_used_nor_removed(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("years of work")
    tmp_path.chmod(0o755)
    assert main(["up", "--home", str(tmp_path)]) == 1
    assert "holds something else" in capsys.readouterr().err
    assert main(["down", "--remove", "--home", str(tmp_path)]) == 1
    assert (tmp_path / "thesis.tex").exists()
    assert mode(tmp_path) == 0o755


SLEEPER = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; \
time.sleep(600)'], start_new_session=True); print('child', p.pid, flush=True); time.sleep(600)"


def test_processes_are_ended_with_what_they_started(tmp_path):
    (tmp_path / "logs").mkdir()
    started = processes.start(
        tmp_path, "sleeper", [sys.executable, "-c", SLEEPER], dict(os.environ)
    )
    log = pathlib.Path(started.log)
    assert mode(log) == 0o600
    wait_until(lambda: "child" in log.read_text(), 30, "a child")
    child = int(log.read_text().split()[1])
    assert started.alive
    assert processes.stop(tmp_path, [started], patience=10) == ["sleeper"]
    assert not started.alive
    assert child not in processes._table()
    assert processes.stop(tmp_path, [started]) == []


def test_a_process_that_comes_and_goes_while_others_are_ended_is_no_trouble(tmp_path, monkeypatch):
    """It was found, but neither in the table read before nor, having ended, in the next one."""
    seen = [{2**22 + 1}, set()]
    monkeypatch.setattr(processes, "_marked", lambda home: seen.pop(0))
    assert processes.stop(tmp_path, [], patience=0.5) == []
    assert seen == []  # it looked again


def test_number_that_another_process_has_got_is_left_alone(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as bystander:
        record = processes.Process("superlink", bystander.pid, "long ago", "x.log")
        assert processes.stop(tmp_path, [record]) == []
        assert bystander.poll() is None
        bystander.kill()


def test_up_again_and_dead_process_are_said(folder, capsys):
    (folder / "logs" / "node.log").write_text("line\n" * 50 + "the cause\n")
    state = load_state(folder)
    dead = processes.Process("node", 2**22 + 1, "-", str(folder / "logs" / "node.log"))
    state.processes = [vars(this_process()), vars(dead)]
    state.save(folder)
    assert main(["up", "--home", str(folder)]) == 1
    assert "is up already" in capsys.readouterr().err
    for command in (["status"], ["run", "vfem"]):
        assert main([*command, "--home", str(folder)]) == 1
        error = capsys.readouterr().err
        assert "node has died" in error
        assert "the cause" in error


# -- with Flower ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deploy")
    with pytest.MonkeyPatch.context() as patch:
        elsewhere = install_known_cells(folder / "elsewhere")
        patch.setenv("PYTHONPATH", python_path(elsewhere))  # the nodes have it installed
        patch.syspath_prepend(elsewhere)
        operations.up(folder / "fed", PLAN, None)
        for party in PARTIES:
            without_ties(folder / "fed" / "nodes" / party / f"{party}.csv")
        yield folder / "fed"
        if (folder / "fed").exists():
            operations.down(folder / "fed", remove=False)


def without_ties(path):
    """Move rounded numbers apart: which of equally near donors comes first is drawn in each run."""
    table = pd.read_csv(path, index_col="id")
    rng = np.random.default_rng(int(table.shape[1]))
    table = table + rng.normal(scale=0.01, size=table.shape) * table.std().to_numpy()
    table.to_csv(path)


def online(home):
    nodes = json.loads(operations._flwr(home, "supernode", "list", "deploy", "--format", "json"))
    return sorted(node["node-id"] for node in nodes["nodes"] if node["status"] == "online")


def refused(home, private, ca, elsewhere):
    """Start a SuperNode that must give up, and return what it said."""
    (elsewhere / "logs").mkdir(parents=True)
    command = [
        str(BIN / "flower-supernode"), "--superlink", f"127.0.0.1:{load_state(home).port}",
        "--root-certificates", str(ca), "--auth-supernode-private-key", str(private),
        "--port", str(free_port()), "--node-config", "party='bank' data='/tmp/x.csv'",
    ]  # fmt: skip
    variables = processes.environment(elsewhere / "flower", elsewhere)
    started = processes.start(elsewhere, "stranger", command, variables)
    try:
        wait_until(lambda: not started.alive, 240, "the end")
    finally:
        processes.stop(elsewhere, [started])  # Flower may leave its SuperExec behind
    return pathlib.Path(started.log).read_text()


@pytest.mark.flower
@pytest.mark.deployment
@pytest.mark.timeout(600)
def test_a_strategy_of_somebody_else_runs_on_it_with_its_settings(federation, capsys):
    asked = (federation, "known-cells", ["known-cells.scale=2.5", "live-page=true"])
    run_name = "third"
    with watching(federation / "server" / "results") as seen:
        code = operations.run(*asked, run_name)
    # Flower's HTTP client does not try again where an idle TLS connection has just been closed.
    if code and "UNEXPECTED_EOF_WHILE_READING" in capsys.readouterr().err:
        run_name = "third-again"
        with watching(federation / "server" / "results") as seen:
            code = operations.run(*asked, run_name)
    assert code == 0
    said = (federation / "logs" / f"supernode-{PARTIES[0]}.log").read_text()
    assert "Receiving: " in said
    assert "Start `flwr-clientapp`" not in said  # ClientApps are copies
    running = [status for status in seen if status["state"] == "running"]
    assert [node["name"] for node in running[-1]["nodes"]][: len(PARTIES)] == sorted(PARTIES)
    saved = json.loads((federation / "server" / "results" / run_name / "result.json").read_text())
    tables = [
        read_table(federation / "nodes" / p / f"{p}.csv", id_column="id", party=p) for p in PARTIES
    ]
    known = sum(table.frame.notna().to_numpy().sum() for table in tables)
    assert saved["metrics"]["cells"] == pytest.approx(2.5 * known)
    assert saved["metrics"]["labels"] > 400  # those of the federation, as it uses labels
    assert saved["settings"]["scale"] == 2.5


@pytest.mark.flower
@pytest.mark.deployment
@pytest.mark.timeout(600)
def test_secured_federation_runs_refuses_strangers_and_ends(federation, tmp_path, capfd):
    home = federation
    members = online(home)
    assert len(members) == 4

    codes = []
    worker = threading.Thread(
        target=lambda: codes.append(operations.run(home, "fknn", [], "first")), daemon=True
    )
    worker.start()

    # Strangers knock while the run goes on.
    private, _ = make_node_key()
    stranger = write_bytes_atomically(tmp_path / "stranger", private, 0o600)
    member = home / "nodes" / "bank" / "supernode"
    with ThreadPoolExecutor(2) as pool:
        unknown = pool.submit(refused, home, stranger, home / "ca.crt", tmp_path / "unknown")
        misled = pool.submit(refused, home, member, other_ca(tmp_path), tmp_path / "misled")
        said = unknown.result() + misled.result()
    assert "Failed to activate SuperNode" in unknown.result()
    assert "CERTIFICATE_VERIFY_FAILED" in misled.result()
    assert (
        "No SuperNode found with the given public key"
        in (home / "logs" / "superlink.log").read_text()
    )
    assert online(home) == members

    worker.join()
    printed = "".join(capfd.readouterr())
    assert codes == [0], printed[-4000:]
    result = home / "server" / "results" / "first"
    assert str(result) in printed
    tables = {
        p: read_table(home / "nodes" / p / f"{p}.csv", id_column="id", party=p) for p in PARTIES
    }
    expected = simulate(FKNN(standardize=True), tables)
    for name, table in expected.tables.items():
        written = pd.read_parquet(home / "nodes" / name / "results" / "first" / f"{name}.parquet")
        own = len(tables[name].frame)
        assert list(written.index[:own]) == list(table.index[:own])
        np.testing.assert_array_equal(written.iloc[:own], table.iloc[:own])
        # Samples the party lacks have no names in a private alignment; their values are the same.
        assert all(str(row).startswith("aligned-") for row in written.index[own:])
        key = list(table.columns)
        left, right = (t.iloc[own:].sort_values(key).to_numpy() for t in (written, table))
        np.testing.assert_allclose(left, right, rtol=1e-12)

    secrets = [secret_lines(path) for path in home.rglob("*") if path.is_file() and is_secret(path)]
    assert len(secrets) == 1 + 2 * 4
    elsewhere = [path for path in home.rglob("*") if path.is_file() and not is_secret(path)]
    assert any(path.parent == home / "logs" for path in elsewhere)
    for text in (printed.encode(), said.encode(), *(path.read_bytes() for path in elsewhere)):
        assert b"PRIVATE KEY" not in text
        assert not [line for lines in secrets for line in lines if line in text]
    assert {mode(path) for path in (home / "logs").iterdir()} == {0o600}

    pids = [process["pid"] for process in load_state(home).processes]
    assert main(["status", "--home", str(home)]) == 0
    assert main(["down", "--remove", "--home", str(home)]) == 0
    assert not home.exists()
    assert not processes._marked(home)
    assert not [pid for pid in pids if pid in processes._table()]


def secret_lines(path):
    lines = path.read_bytes().splitlines()
    return [line for line in lines if b"KEY" not in line and len(line) > 20]


def other_ca(tmp_path):
    path = tmp_path / "other.crt"
    path.write_bytes(make_server_certificate().ca)
    return path
