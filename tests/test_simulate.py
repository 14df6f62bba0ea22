"""`simulate`: engines, seeds, transcripts, and what comes back."""

import re

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Party, Result, Strategy, Table, simulate, step
from flwr_vertical.errors import ConfigError, DataError, PartyError
from flwr_vertical.grids import Record
from flwr_vertical.strategies import Explore, VerticalGBDT, VerticalGLM
from flwr_vertical.tables import DataWarning
from strategies.fknn import FKNN


def tables(n_parties=3, n=50, seed=0):
    rng = np.random.default_rng(seed)
    made = {}
    for k in range(n_parties):
        frame = pd.DataFrame(rng.normal(size=(n, 2)), index=[f"s{i}" for i in range(n)])
        frame = frame.add_prefix("c").mask(rng.random((n, 2)) < 0.2)
        made[f"party {k}"] = frame.drop(frame.index[k])
    return made


def run(strategy=None, given=None, **kwargs):
    strategy = strategy or FKNN(n_neighbors=3)
    return simulate(strategy, given or tables(), **kwargs)


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_ray_and_local_give_the_same_tables(ray_in_process, mode):
    if mode == "ckks":
        pytest.importorskip("tenseal")
    local = run(aggregation=mode, seed=3)
    ray = run(aggregation=mode, seed=3, engine="ray", n_actors=2)
    # Ciphertexts have noise, which may show in weights and scales, yet not in means of donors.
    for name, table in local.tables.items():
        pd.testing.assert_frame_equal(ray.tables[name], table, check_exact=True)
    assert ray.ledger.rounds == local.ledger.rounds
    if mode != "ckks":  # ciphertexts are compressed, so their size varies
        assert ray.ledger.bytes_up == local.ledger.bytes_up
    assert ray_in_process.started == 2


def test_a_party_error_on_ray_names_the_party(ray_in_process):
    with pytest.raises(PartyError, match=r"'party 0'.*n_neighbors = 60"):
        run(FKNN(n_neighbors=60), engine="ray", n_actors=1)


def test_masked_runs_repeat_exactly_although_their_masks_differ():
    transcripts = [[], []]
    results = [run(seed=4, transcript=transcript) for transcript in transcripts]
    for name, table in results[0].tables.items():
        pd.testing.assert_frame_equal(results[1].tables[name], table, check_exact=True)
    sums = [
        [r.content["sums.arrays"] for r in t if "sums.arrays" in r.content] for t in transcripts
    ]
    assert len(sums[0]) == len(sums[1]) > 0
    assert all(
        one["distance"].data != other["distance"].data
        for one, other in zip(*sums, strict=True)
        if "distance" in one
    )


def test_the_order_of_the_parties_and_rows_does_not_matter(capsys):
    """Rows are aligned by name of party, and distances summed in the ring."""
    given, rng = tables(), np.random.default_rng(5)
    turned = dict(reversed(given.items()))
    shuffled = {name: table.iloc[rng.permutation(len(table))] for name, table in given.items()}
    one, other, mixed = run(given=given), run(given=turned), run(given=shuffled)
    for name, table in one.tables.items():
        pd.testing.assert_frame_equal(other.tables[name], table, check_exact=True)
        again = mixed.tables[name].loc[table.index]
        pd.testing.assert_frame_equal(again, table, rtol=1e-12, atol=1e-12)
    assert list(other.tables) == list(turned)
    captured = capsys.readouterr()  # without progress a run is silent
    assert captured.out == captured.err == ""


class Recorder(Party):
    @step
    def look(self, number):
        return {"number": number + self.table.n_samples, "kinds": self.table.kinds["c0"].value}


class Draws(Strategy):
    """Keeps the server's random numbers and what it was given."""

    name = "draws"
    party = Recorder

    def run(self, federation, alignment, result, progress):
        result.model = federation.rng.normal(size=3)
        replies = federation.call("look", {"number": 1})
        result.history = [{name: reply["number"] for name, reply in replies.items()}]
        result.party_metrics = {name: {"n": reply["number"]} for name, reply in replies.items()}
        result.notes = [reply["kinds"] for reply in replies.values()]


def test_the_seed_is_the_server_s():
    draws = [run(Draws(), seed=seed).model for seed in (0, 0, 1)]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.any(draws[0] == draws[2])
    np.testing.assert_array_equal(draws[0], np.random.default_rng(0).normal(size=3))


def test_a_strategy_of_ten_lines_runs():
    result = run(Draws())
    assert isinstance(result, Result)
    assert result.history == [{"party 0": 50, "party 1": 50, "party 2": 50}]
    assert result.tables == {}  # it saved none
    assert set(result.originals) == {"party 0", "party 1", "party 2"}
    assert result.settings == {
        "aggregation": "masked", "alignment": "plain", "align_rows": "union",
        "normalise_ids": [], "seed": 0, "fraction_bits": 32, "engine": "local",
    }  # fmt: skip


def test_tables_and_frames_and_kinds_are_taken():
    given = tables()
    kinds = {"party 1": {"c0": "categorical"}}
    assert run(Draws(), given, kinds=kinds).notes == ["continuous", "categorical", "continuous"]
    made = {name: Table.of(frame, kinds.get(name)) for name, frame in given.items()}
    assert run(Draws(), made).notes == ["continuous", "categorical", "continuous"]


def test_a_transcript_holds_every_message_even_of_a_run_that_fails():
    transcript = []
    run(transcript=transcript)
    assert all(isinstance(record, Record) for record in transcript)
    # hello, share_ids, pair_key, prepare, two rounds of impute and finish, three parties, both
    # ways; one party seals the group's seed
    assert len(transcript) == (7 * 3 + 1) * 2
    failed = []
    with pytest.raises(PartyError):
        run(FKNN(n_neighbors=60), transcript=failed)
    assert [record.direction for record in failed].count("down") == 4 * 3 + 1


def test_the_truth_reaches_the_result_and_no_message():
    given = tables()
    truth = {name: table.fillna(123456.789) for name, table in given.items()}
    transcript = []
    result = run(truth=truth, transcript=transcript)
    assert result.truth.keys() == truth.keys()
    secret = np.float64(123456.789).tobytes()
    for record in transcript:
        for part in record.content.array_records.values():
            assert not any(secret in array.data for array in part.values())
    assert not any((table == 123456.789).any().any() for table in result.tables.values())


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"labels": pd.Series(list("ab"), index=["s1", "s2"])}, DataError, "labels must be num"),
        ({"labels": pd.Series(list("abc"), index=["s1", "s2", "s3"])}, DataError,
         "the 3 classes 'a', 'b', 'c'; number the classes"),
        ({"labels": pd.Series(["a", None, "b"], index=["s1", "s1", "s2"]), "positive_label": "a"},
         DataError, "labels has 1 row whose sample ID repeats"),
        ({"labels": [0, 1]}, DataError, "labels must be a pandas Series"),
        *(({"labels": pd.Series(times, index=["s1", "s2"])}, DataError, "convert dates")
          for times in (pd.to_datetime(["2020-01-01", None]), pd.to_timedelta([1, 2], "D"))),
        ({"labels": pd.Series([1j, 2], index=["s1", "s2"])}, DataError, "got dtype complex128"),
        ({"labels": pd.Series([2**60, 2**60 + 1], index=["s1", "s2"])}, DataError,
         r"labels are whole numbers beyond 2\^53.*: 2 different ones would count as 1; number cl"),
        ({"truth": {"bnak": tables()["party 0"]}}, ConfigError, "truth names unknown parties"),
        *(({"seed": seed}, ConfigError, "seed must be an integer of at least 0")
          for seed in (-1, 1.5, True, "0")),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_in_words(given, error, message):
    with pytest.raises(error, match=message):
        run(Draws(), **given)


def test_whole_numbers_of_numpy_are_settings_too(tmp_path):
    result = run(FKNN(n_neighbors=np.int64(3), block_pairs=np.int32(500)))
    result.save(tmp_path)
    assert Result.load(tmp_path).settings["n_neighbors"] == 3


def test_ids_that_the_run_makes_equal_are_one_sample_of_the_report(tmp_path, recwarn):
    given = tables(2, n=60)
    padded = given["party 1"].rename(lambda name: f"{name} " if name.endswith("0") else name)
    result = run(given=given | {"party 1": padded}, normalise_ids="strip")
    told, expected = (
        re.search(
            "with 4 columns about .* of cells missing", found.report(tmp_path / k).read_text()
        )
        for k, found in (("padded", result), ("clean", run(given=given)))
    )
    assert "about 60 samples" in told[0]
    assert told[0] == expected[0]
    assert not [str(one.message) for one in recwarn if "white space" in str(one.message)]
    assert not [note for note in result.notes if "white space" in note]
    with pytest.warns(DataWarning, match="state normalise-ids='strip'"):
        run(given=given | {"party 1": padded})


def test_samples_that_are_lost_by_how_ids_are_written_are_told():
    given = tables(2, n=60)
    padded = given["party 1"].set_axis([f"0{i}" for i in range(100, 159)])
    plain = given["party 0"].set_axis([str(i) for i in range(100, 159)])
    labels = pd.Series(1.0, index=[f"00{i}" for i in range(100, 159)])
    few = padded.iloc[:50].rename(lambda name: name.lstrip("0") if name < "0130" else name)
    with pytest.warns(DataWarning, match="share 30 IDs, and 50 but for leading zeros") as caught:
        result = run(given={"party 0": plain, "party 1": few})
    told = [str(one.message) for one in caught if "but for" in str(one.message)]
    assert len(told) == 1
    assert [note for note in result.notes if "but for" in note] == told
    with (
        pytest.warns(DataWarning, match="party 1 and labels share 0 IDs, and 59 but for leading"),
        pytest.raises(DataError),
    ):
        simulate(VerticalGLM(), {"party 0": plain, "party 1": padded}, labels)


@pytest.mark.parametrize("strategy", [VerticalGLM(), VerticalGBDT(), Explore()], ids=repr)
def test_a_party_with_labels_alone_is_told_what_to_do(strategy):
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(300, 3)), columns=list("xyz"))
    parties = {"bank": table[["x"]], "shop": table[["y"]], "court": table[["z"]] > 0}
    with pytest.raises(PartyError, match=r"besides the labels \('z'\).*to the server"):
        simulate(strategy, parties, label_holder="court", label_column="z")
