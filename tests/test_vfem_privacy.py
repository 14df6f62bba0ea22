"""Audit of the transcript of VFEM's iterations: what travels, to whom, and under whose keys.

As in the audit of FKNN, each detector is shown to fire where there is something to find.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from oracles.vfem import generate
from test_privacy_audit import chi_square, correlations, holds
from vfem_runs import party_tables, recorded

from flwr_vertical import RecordingGrid
from flwr_vertical.crypto import FixedPoint, generate_keypair
from flwr_vertical.crypto.identity import (
    generate_identity,
    identity_text,
    public_identity,
    write_identity,
)
from flwr_vertical.crypto.pair_seeds import pair_seed
from flwr_vertical.errors import PartyError
from flwr_vertical.products.streams import stream
from flwr_vertical.protocol import decode, encode
from flwr_vertical.protocol.messages import ARBITER, ARGUMENTS, UPDATES, VALUES, read_envelope
from strategies.vfem_iterations import VFEMIterations
from strategies.vfem_iterations.sketches import PURPOSE

NAMES = ["p0", "p1", "p2"]
N = 400
# The correlation of independent values has a standard deviation of 1/20: five of them. Some 500
# are looked at. For the chi-square of uniform bytes see the audit of FKNN.
CORRELATION, CHI_SQUARE = 0.25, 450.0


def make_tables():
    pooled, _ = generate(N + 40, [2, 1, 3], [0.3, 0.2, 0.25], 3, mean=0.5, cross=0.7)
    held = ~pooled.mask.all(axis=1)
    pooled.X[:], pooled.y, pooled.mask = (
        [x[held][:N] for x in pooled.X], pooled.y[held][:N], pooled.mask[held][:N],
    )  # fmt: skip
    tables, labels = party_tables(pooled)
    labels.iloc[-30:] = np.nan
    return tables, labels


@pytest.fixture(scope="module")
def runs():
    made = {}

    def get(mode, size=0):
        if (mode, size) not in made:
            settings = {"sketch_size": size, "max_iter": 12, "tol": 0}
            made[mode, size] = recorded(*make_tables(), mode, **settings)
        return made[mode, size]

    return get


def words(content):
    """All numbers of 8 bytes in the arrays of a message, as they are."""
    found = set()
    for record in content.values():
        for value in record.values():
            data = getattr(value, "data", None)
            if isinstance(data, bytes) and len(data) % 8 == 0:
                found.update(np.frombuffer(data, np.uint64).tolist())
            elif isinstance(value, float):
                found.add(int(np.float64(value).view(np.uint64)))
    return found


def numbers(*arrays):
    """The same of arrays, as float64 and as fixed point, but for round numbers."""
    values = np.unique(np.concatenate([np.asarray(a, dtype=float).ravel() for a in arrays]))
    values = values[np.isfinite(values) & (np.abs(values) < 1e6) & (np.abs(values) > 1e-9)]
    both = np.concatenate([values.view(np.uint64), FixedPoint().encode(values, 3)])
    return {number for number in both.tolist() if len(set(number.to_bytes(8, "little"))) > 3}


def own_numbers(run, name):
    """A party's columns: as given, centred and standardised."""
    known = run.labels.dropna().index
    table = run.tables[name]
    x = table[table.index.isin(known)].to_numpy()
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    return numbers(table.to_numpy(), x - x.mean(axis=0), z)


def labelled(run):
    """IDs of the samples with a label, in the aligned order, and their standardised labels."""
    ids = np.empty(len(run.labels), dtype=object)
    for name, table in run.tables.items():
        ids[np.asarray(run.states[name]["positions"])] = table.index
    known = run.labels.loc[list(ids)].dropna()
    return known.index, ((known - known.mean()) / known.std(ddof=0)).to_numpy()


def fits_up(run):
    """By round and party, the fits as they travelled."""
    found = {name: [] for name in NAMES}
    for m in run.messages:
        if m.up and m.step == "gradient":
            found[m.node].append(m.sums["fit"])
    return found


# -- masked sums -----------------------------------------------------------------------------


def test_in_plain_mode_the_detectors_find_every_fit(runs):
    run = runs("plain")
    samples, _ = labelled(run)
    for name, fits in fits_up(run).items():
        held = samples.isin(run.tables[name].index)
        x = np.column_stack([run.tables[name].loc[samples[held]], np.ones(held.sum())])
        for fit in fits:
            assert chi_square(fit) > CHI_SQUARE
            residual = fit[held] - x @ np.linalg.lstsq(x, fit[held], rcond=None)[0]
            assert np.abs(residual).max() < 1e-9  # its columns times something, indeed
    up = [m for m in run.messages if m.up and m.step == "gradient"]
    secret = numbers(*(fit for fits in fits_up(run).values() for fit in fits))
    assert all(len(words(m.content) & secret) > N / 2 for m in up)


def test_masked_fits_tell_nothing(runs):
    """Both runs take the same way, so the plain one knows what was behind the masks."""
    plain, masked = runs("plain"), runs("masked")
    assert len(plain.result.history) == len(masked.result.history)
    for name in NAMES:
        truths, seen = fits_up(plain)[name], fits_up(masked)[name]
        for truth, array in zip(truths, seen, strict=True):
            assert array.dtype == np.uint64
            assert correlations(array, truth).max() < CORRELATION
            assert chi_square(array) < CHI_SQUARE
    total = sum(fits_up(masked)[name][-1] for name in NAMES)
    expected = sum(fits_up(plain)[name][-1] for name in NAMES)
    np.testing.assert_allclose(FixedPoint().decode(total), expected, atol=1e-6)


@pytest.mark.parametrize("size", [0, 200])
def test_no_message_holds_a_column_or_a_fit(runs, size):
    run = runs("masked", size)
    secret = {name: own_numbers(run, name) for name in NAMES}
    assert all(len(found) > 500 for found in secret.values())
    fits = numbers(*(fit for fits in fits_up(runs("plain")).values() for fit in fits))
    for m in run.messages:
        seen = words(m.content)
        assert not seen & fits, (m.node, m.step)
        for name in NAMES:
            assert not seen & secret[name], (name, m.node, m.step)


def test_the_detector_of_columns_finds_one_value():
    tables, labels = make_tables()
    secret = own_numbers(SimpleNamespace(tables=tables, labels=labels), "p0")
    value = float(tables["p0"].iloc[5, 1])
    for payload in (np.array([0.5, value]), FixedPoint().encode([0.5, value], 3), value):
        assert words(encode({"x": payload}, "p")) & secret
    assert not words(encode({"x": np.array([0.5, 0.25])}, "p")) & secret


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_labels_travel_as_residuals_only(runs, mode):
    """From zeros, the first residuals are the standardised labels, as the disclosure says."""
    run = runs(mode)
    samples, y = labelled(run)
    given = numbers(run.labels)
    for m in run.messages:
        assert not words(m.content) & given, (m.node, m.step)
    for name in NAMES:
        held = samples.isin(run.tables[name].index)
        told = [m.arguments["r"] for m in run.messages if m.node == name and "r" in m.arguments]
        np.testing.assert_allclose(told[0], y[held], atol=1e-9)
        for r in told[1:]:
            assert r.shape == told[0].shape
            assert np.abs(r - told[0]).max() > 0.1
    said = " ".join(
        what for who, what in VFEMIterations.disclosure if who.startswith("every party")
    )
    assert "The first is the label itself but for location and scale" in said


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_residuals_are_those_of_the_rows_held(runs, mode):
    """From the sum of the fits: label less fits, over a variance for each pattern of parties."""
    run, plain = runs(mode), runs("plain")
    samples, y = labelled(run)
    totals = [sum(fits) for fits in zip(*fits_up(plain).values(), strict=True)]
    gaps = [y, *(y - total for total in totals)]
    holds_it = np.column_stack([samples.isin(run.tables[name].index) for name in NAMES])
    for k, name in enumerate(NAMES):
        held = holds_it[:, k]
        with_all = holds_it[held].all(axis=1)  # these share one variance
        for m in run.messages:
            if m.node == name and "r" in m.arguments:
                assert len(m.arguments["r"]) == held.sum()
                r = m.arguments["r"][with_all]
                likeness = [np.corrcoef(gap[held][with_all], r)[0, 1] for gap in gaps]
                assert max(likeness) > 1 - 1e-9


# -- keys ------------------------------------------------------------------------------------


def test_secret_keys_stay_where_they_are(runs):
    run = runs("masked", 200)
    for name in NAMES:
        state = run.states[name]
        for key in ("sum.private-key", "node.pairs.private-key"):
            secret = state[key]
            for m in run.messages:
                assert holds(m.content, [secret, secret.hex().encode()]) == 0
        # The public one does travel, so the search looks at the right place.
        public = state["node.pairs.public-key"]
        assert any(holds(m.content, [public]) for m in run.messages)


# -- sketches --------------------------------------------------------------------------------


def test_sketches_go_to_the_server_and_to_no_party(runs):
    run = runs("masked", 200)
    sketches = [m for m in run.messages if m.up and m.step == "sketch_rows"]
    assert len(sketches) == len(NAMES)
    for m in sketches:
        assert set(m.values) == set(NAMES) - {m.node}
        one, other = m.values.values()
        assert one.shape == other.shape
        assert np.mean(one == other) < 0.05  # a seed for each pair
    seen = numbers(*(array for m in sketches for array in m.values.values()))
    assert len(seen) > 1000
    for m in run.messages:
        if not m.up:
            assert not words(m.content) & seen, (m.node, m.step)


# -- what is said and heard ------------------------------------------------------------------

MASKS = {"sum.peers", "sum.public-keys", "sum.nonce"}
PAIRS = {"nonce", "names", "publics", "identities", "signatures"}


def test_parties_get_what_the_disclosure_says(runs):
    got = {}
    for m in runs("masked", 200).messages:
        if not m.up:
            got.setdefault(m.step, set()).update(m.arguments)
            got.setdefault("updates", set()).update(m.updates)
    assert got.pop("updates") <= {"positions", "n_samples", "ids", "n-parties"} | MASKS
    assert got == {
        "hello": set(), "share_ids": {"normalise"},
        "prepare": {"encoding", "missing_cells", "standardize", "intercept", "labelled"},
        "gradient": {"r", "missing", "sigma2", "learning_rate"},
        "finish": {"group", "weight", "absent"},
        "pair_key": {"nonce"}, "keep_pair_keys": PAIRS,
        "sketch_rows": {"nonce", "size", "weight"},
        "keep_model": {"model", "parties", "own", "present", "coefficients", "offsets", "grid",
                       "n_unlabelled", "standardized"},
    }  # fmt: skip


def test_parties_say_openly_what_the_disclosure_says(runs):
    said = {}
    for m in runs("masked", 200).messages:
        if m.up:
            said.setdefault(m.step, set()).update(m.values)
    assert said.pop("hello") == {"party", "role", "version", "public-key"}
    assert said == {
        "share_ids": {"ids"},
        "prepare": {"columns", "n_observed", "dropped", "collinear", "left_out"},
        "gradient": {"explained"},
        "finish": {"beta", "offset", "mean", "loading", "gram", "sums"},
        "pair_key": {"public"}, "keep_pair_keys": set(), "sketch_rows": set(NAMES),
        "keep_model": {"bits", "coarser", "outside"},
    }  # fmt: skip


# -- pinned identities -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    folder = tmp_path_factory.mktemp("identities")
    found = {}
    for name in NAMES:
        private = generate_identity()
        path = write_identity(folder / f"{name}.pem", private)
        found[name] = (str(path), identity_text(public_identity(private)))
    return found


def pinned(people):
    """Node configs: each has a key, and each party pins everybody else."""
    return {
        name: {"identity-key": people[name][0], "exchanges": "sums"}
        | {f"pin.{other}": people[other][1] for other in NAMES if other != name}
        for name in NAMES
    }


class Relay(RecordingGrid):
    """Changes messages on their way."""

    def __init__(self, grid):
        super().__init__(grid)
        self.names = {
            node_id: context.node_config.get("party", ARBITER)
            for node_id, context in grid.contexts.items()
        }
        self.seen = {}

    def _down(self, messages):
        sent = super()._down(messages)
        for message in sent:
            name = self.names[message.metadata.dst_node_id]
            self.down(name, str(read_envelope(message.content)["step"]), message.content)
        return sent

    def _up(self, messages):
        received = super()._up(messages)
        for message in received:
            name = self.names[message.metadata.src_node_id]
            self.seen.setdefault(name, []).append(decode(message.content, VALUES))
        return received

    def down(self, name, step, content):
        pass


def change(content, prefix=ARGUMENTS, **changed):
    content.update(encode(decode(content, prefix) | changed, prefix))


class SwapsPairKeys(Relay):
    """Gives p0 a key of its own as that of p1, and so shares p1's seed with p0."""

    def __init__(self, grid):
        super().__init__(grid)
        self.private, self.public = generate_keypair()

    def down(self, name, step, content):
        if name == "p0" and step == "keep_pair_keys":
            self.told = decode(content, ARGUMENTS)
            publics = list(self.told["publics"])
            publics[self.told["names"].index("p1")] = self.public
            change(content, publics=publics)


class AddsAParty(SwapsPairKeys):
    """Names a party that is none, with a key of its own."""

    def down(self, name, step, content):
        if name == "p0" and step == "keep_pair_keys":
            told = decode(content, ARGUMENTS)
            more = {"names": "p9", "publics": self.public, "identities": b"", "signatures": b""}
            change(content, **{key: [*told[key], value] for key, value in more.items()})


class SetsKeys(Relay):
    """Puts a private key of its own choice, or peers of its own, into a party's state."""

    what = ("node.pairs.private-key", bytes(32))

    def down(self, name, step, content):
        if name == "p0" and step == "keep_pair_keys":
            change(content, UPDATES, **dict([self.what]))


class SetsNames(SetsKeys):
    what = ("node.pairs.names", ["p0", "p9"])


SMALL = {"max_iter": 2, "sketch_size": 300}


@pytest.fixture(scope="module")
def small():
    pooled, _ = generate(120, [2, 1, 1], [0.3, 0.2, 0.25], 3)
    return party_tables(pooled)


def stopped(data, relay, configs):
    with pytest.raises(PartyError) as caught:
        recorded(*data, "masked", relay=relay, configs=configs, **SMALL)
    return str(caught.value)


def test_an_honest_run_with_pins_gives_the_same(small, people):
    one = recorded(*small, "masked", **SMALL)
    other = recorded(*small, "masked", configs=pinned(people), **SMALL)
    np.testing.assert_array_equal(
        one.result.coefficients["estimate"], other.result.coefficients["estimate"]
    )
    assert one.result.ledger.rounds == other.result.ledger.rounds


def test_without_pins_a_relay_that_swaps_a_pair_key_reads_a_party_s_rows(small):
    """With the seed, a sketch of more rows than samples is a system of equations for them."""
    relays = []
    run = recorded(
        *small, "masked", relay=lambda g: relays.append(SwapsPairKeys(g)) or relays[0], **SMALL
    )
    relay, size = relays[0], SMALL["sketch_size"]
    told = relay.told
    public = told["publics"][told["names"].index("p0")]
    seed = pair_seed(relay.private, "p1", "p0", relay.public, public, told["nonce"], PURPOSE)
    (sketch,) = [m.values["p1"] for m in run.messages
                 if m.up and m.node == "p0" and m.step == "sketch_rows"]  # fmt: skip
    (asked,) = [m.arguments for m in run.messages
                if not m.up and m.node == "p0" and m.step == "sketch_rows"]  # fmt: skip
    samples = len(small[1])
    words = stream(seed, "vfem sketch", (samples, -(-size // 64))).astype("<u8")
    signs = 2.0 * np.unpackbits(words.view(np.uint8), axis=1)[:, :size] - 1.0
    found = np.linalg.lstsq(signs.T, np.sqrt(size) * sketch, rcond=None)[0]
    held = np.abs(found).max(axis=1) > 1e-6
    own = small[0]["p0"].sort_index().to_numpy()
    assert held.sum() == len(own)
    rows = found[held] / np.sqrt(asked["weight"])[:, None]
    np.testing.assert_allclose(rows - rows[0], own - own[0], atol=1e-8)


def test_with_pins_a_swapped_pair_key_stops_the_run(small, people):
    text = stopped(small, SwapsPairKeys, pinned(people))
    assert "the key handed to party 'p0' as that of party 'p1' is not signed" in text
    assert "a relay swapped keys" in text


def test_with_pins_no_party_is_added_for_which_to_make_a_sketch(small, people):
    text = stopped(small, AddsAParty, pinned(people))
    assert "party 'p0' pins others, but not party 'p9'" in text
    assert "add 'pin.p9', or use sketch_size=0" in text


@pytest.mark.parametrize("relay", [SetsKeys, SetsNames])
def test_the_server_cannot_set_keys_of_pairs(small, people, relay):
    assert "the server may not set" in stopped(small, relay, pinned(people))
