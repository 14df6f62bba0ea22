"""The page of a run that is under way, in the style of the reports."""

import base64
import hashlib
from collections.abc import Mapping
from html import escape
from typing import Any

import pandas as pd

from flwr_vertical.pages.page import (
    Section,
    dataframe_html,
    human_bytes,
    human_seconds,
    render_page,
)

# The page is made here and fetched anew, so that numbers are written in one place.
_SCRIPT = """
setInterval(async () => {
  if (document.hidden) return;
  try {
    const answer = await fetch(".");
    if (!answer.ok) throw answer.status;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.querySelector("main").replaceWith(page.querySelector("main"));
  } catch {
    document.querySelector("#state").textContent =
      "The server's process does not answer: the run has ended. This is its last state.";
  }
}, 1000);
"""
_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()

POLICY = (
    f"default-src 'none'; script-src 'sha256-{_HASH}'; style-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page's Content-Security-Policy: its own script runs, and nothing comes from elsewhere."""

FORMATS = {"up": human_bytes, "down": human_bytes}
"""How columns of `node_table` are written, where `format_value` is not right."""

_MOST_NAMED = 6  # nodes of a round
_CAPTION = (
    "What the server's ledger has counted by node: how often it was asked, bytes from and to it, "
    "numbers that entered private sums. Greetings go to nodes whose names are not known yet. What "
    "a node's own privacy ledger counts stays at the node."
)


def page_of(status: Mapping[str, Any]) -> str:
    """Return the page that shows a state, as `LiveStatus.read` returns it."""
    doing = status["progress"] or {}
    what = f"{status['strategy']}, {status['aggregation']} sums"
    state = f'<p id="state">{escape(sentence(status))}</p>'
    bar = '<progress aria-label="steps done" style="width: 100%"'
    if doing.get("total"):
        bar += f' max="{doing["total"]}" value="{doing["done"]}"'
    return render_page(
        status["run"],
        [
            Section("Progress", f"{state}{bar}></progress><script>{_SCRIPT}</script>"),
            Section("Nodes", dataframe_html(node_table(status), formats=FORMATS), _CAPTION),
        ],
        subtitle=what,
        facts=facts(status),
        kicker="flwr-vertical, a run under way",
    )


def sentence(status: Mapping[str, Any]) -> str:
    """Return in words what is going on."""
    now = status["round"]
    if status["state"] != "running" or now is None:
        return f"The run is {status['state']}."
    asked = now["asked"]
    who = ", ".join(asked) if len(asked) <= _MOST_NAMED else f"{len(asked)} nodes"
    return f"Round {now['number']}: {now['step']} at {who}, for {human_seconds(now['seconds'])}."


def facts(status: Mapping[str, Any]) -> dict[str, str]:
    """Return the numbers of a run with their names, in the order in which they are shown."""
    ledger, doing = status["ledger"], status["progress"] or {}
    found = {"Time": human_seconds(status["seconds"])}
    if doing:
        of = f"/{doing['total']:,}" if doing["total"] else ""
        found["Steps"] = f"{doing['done']:,}{of}"
        if rate := doing["per_second"]:
            each = human_seconds(1 / rate)
            found["Rate"] = f"{rate:.3g}/s" if rate >= 1 else f"{each} each"
        if doing["seconds_left"] is not None:
            found["Time left"] = human_seconds(doing["seconds_left"])
        found |= {n.replace("_", " "): _short(v) for n, v in doing["values"].items()}
    return found | {
        "Rounds": f"{ledger['rounds']:,}",
        "Sent by nodes": human_bytes(ledger["bytes_up"]),
        "Sent to nodes": human_bytes(ledger["bytes_down"]),
    }


def node_table(status: Mapping[str, Any]) -> pd.DataFrame:
    """Return a row for each node with what the ledger has counted for it."""
    spends = any(node["epsilon"] for node in status["nodes"])
    rows = {
        node["name"]: {
            "asked": node["messages"],
            "up": node["bytes_up"],
            "down": node["bytes_down"],
            "in sums": node["values_up"],
            **({"epsilon": node["epsilon"]} if spends else {}),
        }
        for node in status["nodes"]
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("node")


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"
