"""Flip single bits of a node's privacy ledger, and ask for what it had refused.

    python tests/kit/flipped_bits.py [--flips 4000] [--seed 0]

Each bit is flipped in a copy of its own, anywhere in the file. Then processes that know nothing
yet open the copy, and ask for what the whole ledger refuses: in a new run and in one that greeted
before. The ledger may refuse as before (the bit was in no use) or say that it is damaged. Exit
status 1 if it allowed anything, or raised anything else.
"""

import argparse
import collections
import contextlib
import io
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from apps.cli.privacy_ledger import show_ledgers
from flwr_vertical.errors import LedgerDamagedError, LedgerError, PolicyError, ProtocolError
from flwr_vertical.policy.record import Policy
from flwr_vertical.privacy_ledger.database import SUFFIX
from flwr_vertical.privacy_ledger.ledger import PrivacyLedger

N = 120
IDS = pd.Index([f"customer-{i}" for i in range(N)], name="id")
POLICY = Policy(min_rows=10, vectors=2, epsilon_total=2.0, predictions=12, openings=3,
                foreign_ids=1)  # fmt: skip
REFUSED, DAMAGED = "refused as before", "found damaged"


def open_ledger(path):
    ledger = PrivacyLedger(path, "bank", POLICY, patience=0.5)
    frame = pd.DataFrame({"income": np.arange(N), "flag": np.arange(N) % 2}, IDS)
    return ledger, ledger.rows(IDS, frame)


def fill(path):
    """Make a ledger of some runs, whose limits are all used up."""
    for number in range(6):
        ledger, rows = open_ledger(path)
        run = f"run-{number}"
        ledger.begin(run, f"study {number}", "vfem", {"seed": number}, rows)
        ledger.rows_of_version("one", lambda rows=rows: rows)
        labels = b"labels %d" % (number % 2)
        for scope in ("", "income"):
            ledger.check_and_note_rows(
                run, rows, np.arange(N) % 3, 10, n_vectors=1, commitment=labels, scope=scope
            )
        ledger.note_streams(run, {f"{run} stream {k}": b"columns %d" % k for k in range(12)})
        ledger.open_bits(run, rows, np.full(N, True), 2.0, content=b"%d" % number,
                         predictions=True, what="predictions")  # fmt: skip
        ledger.note_foreign_ids(run, N - 1, N, content=b"ids")
    ledger.open_bits(run, rows, np.full(N, True), 3.0, content=b"ranks", what="ranks")
    ledger.spend_epsilon(run, 1.5, release=b"ranks", what="ranks with noise")


def all_but_one(ledger, rows, run):
    ledger.check_and_note_rows(run, rows, np.where(np.arange(N) == 40, -1, 0), 10)


def a_third_vector(ledger, rows, run):
    ledger.check_and_note_rows(
        run, rows, np.arange(N) % 3, 10, n_vectors=1, commitment=b"labels 3", scope="income"
    )


def reused_streams(ledger, rows, run):
    """The ledger allows all or none, so they are asked for one by one."""
    kept = None
    for number in range(6):
        for k in (0, 5, 11):
            try:
                ledger.note_stream(run, f"run-{number} stream {k}", b"others")
            except ProtocolError as error:
                kept = error
            else:
                return
    raise kept


def predictions(ledger, rows, run):
    ledger.open_bits(run, rows, np.arange(N) == 7, 1.0, content=b"more", predictions=True,
                     what="predictions")  # fmt: skip


def other_bits(ledger, rows, run):
    ledger.open_bits(run, rows, np.arange(N) == 90, 0.5, content=b"more", what="ranks")


def epsilon(ledger, rows, run):
    ledger.spend_epsilon(run, 1.0, release=b"again", what="ranks with noise")


def guessed_ids(ledger, rows, run):
    ledger.note_foreign_ids(run, 2 if run == "run-3" else N + 1, N, content=b"guesses")


QUESTIONS = (all_but_one, a_third_vector, reused_streams, predictions, other_bits, epsilon,
             guessed_ids)  # fmt: skip


def answers(path, run):
    """Return what the ledger makes of each question of a process."""
    try:
        ledger, rows = open_ledger(path)
        if run == "new":
            ledger.begin(run, run, "glm", {}, rows)
    except Exception as error:
        return {_named(error)}
    return {_answer(ledger, rows, run, question) for question in QUESTIONS}


def _answer(ledger, rows, run, question):
    try:
        question(ledger, rows, run)
    except (PolicyError, ProtocolError):
        return REFUSED
    except Exception as error:
        return _named(error)
    return f"ALLOWED {question.__name__}"


def _named(error):
    if isinstance(error, LedgerDamagedError) or " has format " in str(error):
        return DAMAGED  # of its format the message says that damage may have changed it
    return f"{'other' if isinstance(error, LedgerError) else 'raw'} {type(error).__name__}: {error}"


def shown(path):
    """Return what its owner sees: the command prints it, or says that it is damaged."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            show_ledgers(path, as_json=False)
    except Exception as error:
        return _named(error)
    return REFUSED


def outcomes(whole, bits, folder):
    """Flip bits of a file, one each in a copy; count what came of it, the worst of each."""
    data = Path(whole).read_bytes()
    path = Path(folder) / f"flipped{SUFFIX}"
    found = collections.Counter()
    for bit in bits:
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        seen = set()
        for run in ("new", "run-3"):
            path.write_bytes(broken)
            seen.update(answers(path, run))
        path.write_bytes(broken)
        seen.add(shown(path))
        bad = sorted(seen - {REFUSED, DAMAGED})
        found[bad[0] if bad else DAMAGED if DAMAGED in seen else REFUSED] += 1
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--flips", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / f"whole{SUFFIX}"
        fill(whole)
        n_bits = 8 * whole.stat().st_size
        bits = np.random.default_rng(options.seed).choice(n_bits, options.flips, replace=False)
        found = outcomes(whole, bits.tolist(), folder)
    print(f"{options.flips:,} flips (seed {options.seed}) in a ledger of {n_bits // 8:,} bytes")
    for what, times in found.most_common():
        print(f"{times:6,}  {what[:200]}")
    return 0 if set(found) <= {REFUSED, DAMAGED} else 1


if __name__ == "__main__":
    sys.exit(main())
