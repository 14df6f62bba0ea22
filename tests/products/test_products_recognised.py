"""The comparison of labels, by whole numbers of Python: what opens is r'v - z, and nothing else."""

from types import SimpleNamespace

import numpy as np
import pytest

from flwr_vertical.errors import ProtocolError
from flwr_vertical.privacy_ledger.row_identities import secrets_of
from flwr_vertical.products import HeldColumns
from flwr_vertical.products.labels import _Z, LabelSketch, sketched
from flwr_vertical.products.streams import KeyStream

N, SEED, ATTEMPT, RHO = 50, bytes(range(32)), b"a" * 16, b"r" * 32
HELD = np.array([0, 3, 4, 11, 49])
AT = np.array([4, 0, 2, 1, 3])
KEYS = np.random.default_rng(1).integers(0, 2**64, 5, dtype=np.uint64)
VECTORS = np.random.default_rng(2).integers(0, 2**64, (N, 2), dtype=np.uint64)


class NotingLedger:
    def __init__(self):
        self.streams = {}

    def row_secrets(self, rows, at):
        return secrets_of(rows[at], "secret of a ledger")

    def note_streams(self, streams):
        self.streams |= streams


def party(name, ledger=None):
    return SimpleNamespace(
        name=name, state={}, privacy_ledger=ledger, remembers=ledger is not None,
        rows_in_ledger=lambda: KEYS,
        secret_bytes=lambda purpose: (name + purpose).encode().ljust(32, b"."),
    )  # fmt: skip


def answers(rho_seed=RHO, attempt=ATTEMPT, vectors=VECTORS, bank=None, court=None):
    """Owner and helper answer, as the server asks them in one round."""
    bank, court = bank or party("bank", NotingLedger()), court or party("court")
    held = HeldColumns(np.zeros((len(HELD), 0)), HELD, N)
    rho = KeyStream(RHO, "rho", vectors.shape).rows(0, N)
    owner = LabelSketch(bank).answer(
        SEED, attempt, 2, held, AT, helper="court", masked_vectors=vectors + rho
    )
    helper = LabelSketch(court).answer(
        SEED, attempt, 2, held, AT, helps=["bank"], rho_seed=rho_seed
    )
    return bank, court, owner, helper, rho


def test_what_opens_is_the_product_with_the_row_secrets_less_the_party_s_own_secret():
    bank, _, owner, helper, rho = answers()
    opened = sketched(owner, helper, "bank", rho)
    secret = secrets_of(KEYS, "secret of a ledger")[0][AT]
    for j in range(2):
        truth = sum(int(r) * int(v) for r, v in zip(secret, VECTORS[HELD, j], strict=True))
        assert (int(opened[j]) + int(bank.state[_Z][j])) % 2**64 == truth % 2**64
        assert int(opened[j]) != truth % 2**64
    assert not np.isin(owner["sketch"], secret).any()


def test_row_secrets_follow_from_rows_and_ledger_in_any_order():
    found, name = secrets_of(KEYS, "secret of a ledger")
    shuffled, same = secrets_of(KEYS[::-1], "secret of a ledger")
    np.testing.assert_array_equal(shuffled[::-1], found)
    assert same == name
    assert secrets_of(KEYS[1:], "secret of a ledger")[1] != name
    other, other_name = secrets_of(KEYS, "secret of another")
    assert not np.isin(other, found).any()
    assert other_name != name
    assert len(np.unique(found)) == len(found)


def test_a_pad_hides_one_content_at_the_helper_too():
    _, court, *_ = answers()
    answers(court=court)  # the same again
    with pytest.raises(ProtocolError, match="a pad hides one content only"):
        answers(rho_seed=b"q" * 32, court=court)


def test_pads_are_noted_with_what_they_hide():
    ledger = NotingLedger()
    answers(bank=party("bank", ledger))
    before = dict(ledger.streams)
    answers(bank=party("bank", ledger))
    assert ledger.streams == before
    answers(bank=party("bank", ledger), vectors=VECTORS + np.uint64(1))
    assert [k for k, v in ledger.streams.items() if before[k] != v] == [
        f"pad of labels {ATTEMPT.hex()}"
    ]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"attempt": b"short"}, "at least 16 random bytes, got 5"),
        ({"vectors": np.zeros((N, 3), dtype=np.uint64)}, r"expected \(50, 2\) and uint64"),
    ],
)
def test_what_pads_are_not_made_for_is_refused(change, why):
    with pytest.raises(ProtocolError, match=why):
        answers(**change)
