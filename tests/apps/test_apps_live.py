"""The page of a run that is under way, and ``flwr-vertical watch``: they show what is counted."""

import http.client
import io
import json
import re
import threading
import time
from functools import partial
from urllib.parse import urlsplit

import pandas as pd
import pytest
from app_runs import own_files, run_app
from browser import needs_chromium, scroll_width, visit
from rich.console import Console

from apps.cli import watch
from apps.cli.main import main
from apps.live import page
from apps.live.server import address_file, serving
from apps.live.status import GREETINGS, LiveStatus
from flwr_vertical import Ledger, Progress, RecordingGrid, Result
from flwr_vertical.pages.page import human_bytes
from flwr_vertical.protocol.messages import ENVELOPE
from flwr_vertical.results.ledger import Message
from flwr_vertical.server.discovery import Presence

COUNTED = ["messages", "bytes_up", "bytes_down", "values_up"]


class Looking(RecordingGrid):
    """Has a run wait at each of its rounds while somebody looks at it."""

    def push_messages(self, messages):
        sent = list(messages)
        self.look(sent[0].content[ENVELOPE]["step"])
        return super().push_messages(sent)


def named(table, word):
    """Give a table IDs and columns that nothing else is called."""
    return table.rename(columns=lambda name: f"{word}-{name}").set_axis(
        [f"client-{i}" for i in table.index]
    )


def counted(frame):
    """What the ledger has by party, with greetings of nodes without a name in one row."""
    whose = frame["party"].where(~frame["party"].str.startswith("node "), GREETINGS)
    return frame.groupby(whose)[COUNTED[1:]].sum().assign(messages=whose.value_counts())


@needs_chromium
def test_it_shows_what_the_ledger_has_and_nothing_of_the_data(
    home, bank, court, monkeypatch, tmp_path, capsys
):
    tables = {"bank": named(bank, "asset"), "court": named(court, "claim")}
    seen, drawn = [], []
    draw = page.page_of
    monkeypatch.setattr("apps.live.server.page_of", lambda s: drawn.append(draw(s)) or drawn[-1])

    def look(step):
        status = watch.read_status(watch.find_address(None))
        seen.append(status)
        if step == "impute" and not drawn:
            address = watch.find_address("test")
            seen[-1]["dom"] = visit(address, "--virtual-time-budget=2500", "--dump-dom")
            assert main(["watch"]) == 0
            seen[-1]["printed"] = capsys.readouterr().out

    Looking.look = staticmethod(look)
    nodes = own_files(home, **tables)
    run_app(nodes, wrap=Looking, live_page=True, parties="bank,court", transport="messages")
    ledger = Result.load(home / "results" / "server" / "test").ledger.to_frame()
    ledger["messages"] = 1

    # Each look was at the moment at which a round began.
    rounds = [status["round"]["number"] for status in seen if status["round"]]
    assert rounds == list(range(1, ledger["round"].max() + 1))
    for status in seen[-len(rounds) :]:
        before = ledger[ledger["round"] < status["round"]["number"]]
        now = ledger[ledger["round"] == status["round"]["number"]]
        assert status["ledger"].pop("rounds") == before["round"].nunique()
        assert status["ledger"] == before[COUNTED].sum().to_dict()
        assert status["round"]["step"] == now["step"].iloc[0]
        shown = pd.DataFrame(status["nodes"]).set_index("name")
        expected = counted(before).reindex(shown.index, fill_value=0)
        pd.testing.assert_frame_equal(shown[COUNTED], expected[COUNTED], check_dtype=False)
        if status["round"]["number"] > 1:
            assert [*shown.index] == ["bank", "court", GREETINGS]
            assert status["round"]["asked"] == now["party"].to_list()

    # What the browser shows, after its script has asked for the page again.
    assert len(drawn) >= 2
    (status,) = [one for one in seen if "dom" in one]
    text = status["dom"]
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text))
    assert facts["Rounds"] == str(status["round"]["number"] - 1)
    assert facts["Sent by nodes"] == human_bytes(status["ledger"]["bytes_up"])
    assert facts["Sent to nodes"] == human_bytes(status["ledger"]["bytes_down"])
    assert facts["Steps"].startswith(f"{status['progress']['done']}/")
    for node in status["nodes"]:
        cells = [f"{node['messages']:,}", human_bytes(node["bytes_up"])]
        cells += [human_bytes(node["bytes_down"]), f"{node['values_up']:,}"]
        row = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        assert f"<th>{node['name']}</th>{row}" in text
        assert all(cell in status["printed"] for cell in cells)
    assert "impute at bank, court" in text
    assert "impute at bank, court" in status["printed"]
    assert scroll_width(tmp_path, drawn[0], 390) == 390

    everything = json.dumps(seen) + "".join(drawn)
    for table in tables.values():
        for secret in (*table.columns, *table.index, *table.to_numpy().ravel()):
            assert str(secret) == "nan" or str(secret)[:12] not in everything
    for path in (address_file(home / "results" / "server" / "test"), home / "y.csv"):
        assert not path.exists()


def test_watch_shows_a_node_s_own_ledger(home, bank, court, capsys):
    """Also where the server is on another machine; a run without a page has none to show."""
    run_app(own_files(home, bank=bank, court=court), wrap=RecordingGrid)
    assert main(["watch", "--ledger", str(home / "bank-out")]) == 0
    shown = capsys.readouterr().out
    assert "Privacy ledger of party 'bank'" in shown
    assert "in run 'test': " in shown
    assert re.search(r"rows that the ledger knows +│ 40 │", shown)
    assert main(["watch", "--ledger", str(home / "court.csv.gone")]) == 2
    assert "there is no privacy ledger in" in capsys.readouterr().err


class Waited(Presence):
    """Nodes that are connected before a run begins."""

    def __init__(self):
        super().__init__(60.0, ["bank", "court"])
        self.here, self._told = [7, 8], {7: "bank"}


@pytest.fixture
def status():
    return LiveStatus("night", "fknn", "masked", Waited())


def ask(address, path="", method="GET", host=None):
    """Return code, headers and text of an answer."""
    place = urlsplit(address)
    link = http.client.HTTPConnection(place.hostname, place.port, timeout=10)
    link.request(method, path or place.path, headers={} if host is None else {"Host": host})
    answer = link.getresponse()
    return answer.status, answer.headers, answer.read().decode()


def test_it_answers_its_own_machine_alone_and_who_knows_its_address(home, status):
    folder = home / "runs" / "night"
    with serving(status, folder) as address:
        place = urlsplit(address)
        assert place.hostname == "127.0.0.1"
        file = address_file(folder)
        assert file.read_text() == address
        assert file.stat().st_mode & 0o777 == 0o600
        code, headers, text = ask(address)
        assert (code, headers["Cache-Control"]) == (200, "no-store")
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "the run is waiting for nodes" in text.lower()
        assert re.findall("<th>(.*?)</th>", text) == ["node", "party &#x27;bank&#x27;", "node 8"]
        for host in ("localhost", f"localhost:{place.port}", "127.0.0.1:99"):  # by a tunnel
            assert ask(address, host=host)[0] == 200
        for host in ("evil.example", f"127.0.0.1.evil.example:{place.port}", "[::1", ""):
            assert ask(address, host=host)[0] == 403
        for path in ("/", "/status.json", place.path[:-1], f"{place.path}x", f"{place.path}?x"):
            assert ask(address, path)[0] == 404
        for method in ("POST", "HEAD", "PUT", "OPTIONS"):
            assert ask(address, method=method)[0] == 501
    assert not file.exists()


@needs_chromium
def test_a_page_that_is_left_open_says_that_the_run_has_ended(home, status, monkeypatch):
    answers = iter([page.page_of(status.read())])  # and then the connection breaks
    monkeypatch.setattr("apps.live.server.page_of", lambda _: next(answers))
    with serving(status, home / "runs" / "night") as address:
        text = visit(address, "--virtual-time-budget=2500", "--dump-dom")
    assert "the run has ended. This is its last state.</p>" in text
    assert "party 'bank'" in text


def test_watch_goes_on_until_the_run_ends(home, status, monkeypatch):
    output = io.StringIO()
    console = partial(Console, file=output, force_terminal=True, width=200)
    monkeypatch.setattr(watch, "Console", console)
    monkeypatch.setattr(watch, "_EVERY", 0.01)
    progress, codes = Progress("fknn", 4), []
    with serving(status, home / "results" / "server" / "night") as address:
        watching = threading.Thread(target=lambda: codes.append(main(["watch", address])))
        watching.start()
        status.watch(Stand(), progress)
        progress.step("train", loss=float("nan"), rows=2)
        deadline = time.monotonic() + 20
        while "loss nan" not in output.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not codes
    watching.join(10)
    assert codes == [0]
    assert "Steps 1/4, loss nan, rows 2, Rounds 1, Sent by nodes 2.0 kB" in output.getvalue()
    assert "epsilon" in output.getvalue()
    assert "the run has ended" in output.getvalue()


class Stand:
    """Stands in for a federation."""

    parties = ("bank",)

    def __init__(self):
        self.ledger = Ledger()
        self.ledger.add(Message(1, "fit", "call", "bank", 1, 2000, 0, 0.1))
        self.ledger.spend("bank", 0.5, "a release")


def test_no_run_shows_itself_by_default(home, bank, court, capsys):
    found = []
    Looking.look = staticmethod(lambda step: found.append(watch.find_address(None)))
    run_app(own_files(home, bank=bank, court=court), wrap=Looking, transport="messages")
    assert set(found) == {None}
    # One that was killed leaves its file, and nobody answers at its address.
    file = address_file(home / "results" / "server" / "killed")
    file.write_text("http://127.0.0.1:9/secret/")
    for asked in ([], ["killed"], ["/"], ["http://127.0.0.1:9/secret/"], ["--json"]):
        assert main(["watch", *asked]) == 2
        assert "live-page=true" in capsys.readouterr().err
