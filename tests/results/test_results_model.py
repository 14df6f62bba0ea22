"""Models in their common form: what is kept, what is refused, and what no file can make run."""

import dataclasses
import io
import json
import pickle
import stat
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Model, Result
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.results import model as models
from flwr_vertical.results.archive import pack, unpack


@dataclass
class Forest(Model):
    strategy = "test-forest"

    trees: list[dict[str, object]]
    weights: np.ndarray
    names: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class Swamp(Model):
    strategy = "test-swamp"

    depth: float


def forest():
    return Forest([{"split": np.arange(3), "gain": 0.5}], np.eye(2), {"bank": ["u", "v"]})


def same_forest(model):
    assert type(model) is Forest
    assert model.names == {"bank": ["u", "v"]}
    np.testing.assert_array_equal(model.weights, np.eye(2))
    np.testing.assert_array_equal(model.trees[0]["split"], np.arange(3))


FRAMES = {
    "floats as labels": pd.DataFrame(
        [[1.0, np.nan]], columns=pd.Index([0.1, 1 / 3], name="lambda"), index=["a"]
    ),
    "two levels each": pd.DataFrame(
        np.arange(4).reshape(2, 2),
        index=pd.MultiIndex.from_tuples([("bank", "u"), ("court", "w")], names=["party", "column"]),
        columns=pd.MultiIndex.from_tuples([("x", 1), ("y", 2)], names=["k", None]),
    ),
    "many kinds": pd.DataFrame(
        {
            "text": ["a", None],
            "level": pd.Categorical(["low", "high"], ["low", "high"], ordered=True),
            "count": pd.array([1, None], dtype="Int64"),
            "flag": [True, False],
            "day": pd.to_datetime(["2020-01-01", None]),
        },
        index=pd.Index([7, 9], name="id"),
    ),
    "no columns": pd.DataFrame(index=pd.Index(["a", "b"], name="id")),
    "the same name twice": pd.DataFrame([[1, 2]], columns=["x", "x"]),
}


def test_frames_and_series_come_back_as_they_were():
    for frame in FRAMES.values():
        pd.testing.assert_frame_equal(unpack(pack(frame, "it"), "it"), frame)
    series = pd.Series([1.5, np.nan], index=["a", "b"], name=("y", 1))
    pd.testing.assert_series_equal(unpack(pack(series, "it"), "it"), series)


def test_arrays_keep_dtype_and_shape():
    for array in (
        np.arange(6, dtype=np.float32).reshape(2, 3), np.array(["a", "longer"]), np.array(2.5),
        np.zeros((0, 4), dtype=np.uint8), np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.array([True, False]), np.array([1 + 2j]), np.array(["2020-01-01"], "datetime64[D]"),
    ):  # fmt: skip
        read = unpack(pack(array, "it"), "it")
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(read, array)
        read[...] = read  # writable


def test_plain_values_keep_their_types():
    value = {
        "none": None, "flag": True, "whole": 2**70, "text": "é", "blob": b"\x00\xff", 3: "three",
        (1, "a"): [1, (2.0, "x"), {"float": "nan"}], "infinite": float("-inf"), "tiny": 5e-324,
    }  # fmt: skip
    found = unpack(pack(value, "it"), "it")
    assert found == value
    assert type(found["flag"]) is bool
    assert isinstance(found[1, "a"][1], tuple)
    assert np.isnan(unpack(pack(np.float64("nan"), "it"), "it"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, object()]}, r"it\['a'\]\[1\] is a object, which is not saved"),
        (np.array([None, "a"]), "it is an array of Python objects"),
        (pd.DataFrame({"x": [1, "a", object()]}), "it cannot be written as Parquet"),
        ({1, 2}, "it is a set"),
    ],
)
def test_what_cannot_be_written_is_named_with_its_place(value, message):
    with pytest.raises(ConfigError, match=message):
        pack(value, "it")


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("a file ran code",))


def test_no_pickle_is_ever_read():
    file = io.BytesIO()
    np.savez(file, json=np.array([Trap()], dtype=object))
    for data in (file.getvalue(), pickle.dumps(Trap())):
        with pytest.raises(DataError, match="my file is damaged, or is no file of this library's"):
            Model.from_bytes(data, "my file")


def test_a_damaged_file_is_refused_wherever_the_damage_is():
    data = forest().to_bytes()
    rng = np.random.default_rng(0)
    for cut in (0, 1, len(data) // 2, len(data) - 1):
        with pytest.raises(DataError):
            Forest.from_bytes(data[:cut])
    refused = 0
    for at in rng.integers(0, len(data), size=60):
        broken = bytearray(data)
        broken[at] ^= 0xFF
        try:  # bytes of the ZIP's own headers that nobody reads may differ
            found = Forest.from_bytes(bytes(broken))
        except (DataError, ConfigError):
            refused += 1
        else:
            same_forest(found)
    assert refused > 30


def test_a_model_comes_back_as_its_class():
    again = Model.from_bytes(forest().to_bytes())
    assert type(again) is Forest
    same_forest(again)


def test_a_model_of_another_strategy_names_both():
    with pytest.raises(ConfigError) as caught:
        Swamp.from_bytes(forest().to_bytes(), "/srv/model.npz")
    assert str(caught.value) == (
        "/srv/model.npz is a model of strategy 'test-forest' (Forest, version 1); expected one of "
        "strategy 'test-swamp' (Swamp, version 1)"
    )


def test_a_newer_version_is_refused_and_an_older_one_may_be_read(monkeypatch):
    old = Swamp(2.0).to_bytes()
    monkeypatch.setattr(Swamp, "version", 2)
    new = Swamp(3.0).to_bytes()
    with pytest.raises(ConfigError, match=r"in version 1 cannot be read any more; expected versio"):
        Swamp.from_bytes(old)
    monkeypatch.setattr(
        Swamp, "upgrade", classmethod(lambda cls, version, fields: {"depth": fields["depth"] * 100})
    )
    assert Swamp.from_bytes(old) == Swamp(200.0)
    monkeypatch.setattr(Swamp, "version", 1)
    with pytest.raises(ConfigError, match=r"\(Swamp, version 2\); this library reads up to ver"):
        Swamp.from_bytes(new, "it")
    # The same for the format of the files.
    monkeypatch.setattr(models, "FORMAT_VERSION", 2)
    data = forest().to_bytes()
    monkeypatch.setattr(models, "FORMAT_VERSION", 1)
    with pytest.raises(ConfigError, match=r"version 2 of the format of models.*reads up to 1"):
        Forest.from_bytes(data, "it")


def test_fields_must_be_those_of_the_class():
    data = pack({**unpack(Swamp(1.0).to_bytes(), "it"), "value": {"width": 1.0}}, "it")
    with pytest.raises(DataError, match=r"its fields are \['width'\]; expected \['depth'\]"):
        Swamp.from_bytes(data)

    class Bare(Model):
        strategy = "test-bare"

    with pytest.raises(ConfigError, match="Bare is a Model, but no dataclass"):
        Bare().to_bytes()


def test_results_keep_models_and_parties_parts(tmp_path):
    result = Result("test-forest", model=forest(), tables={"b a": pd.DataFrame({"x": [1.0]})})
    result._party_models = {"b a": Swamp(1.0).to_bytes(), "b_a": Swamp(2.0).to_bytes()}
    folder = result.save(tmp_path / "r")
    parts = list((folder / "parties").glob("*/model.npz"))
    assert len(parts) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in parts} == {0o600}
    found = Result.load(folder)
    assert dataclasses.asdict(found.model).keys() == {"trees", "weights", "names"}
    np.testing.assert_array_equal(found.model.weights, np.eye(2))
    assert found._party_models == result._party_models
    Result("test-forest").save(folder)  # what is not there any more goes
    assert not list(folder.rglob("*.npz"))
    assert Result.load(folder).model is None


def test_a_result_refuses_a_model_that_is_not_its_own(tmp_path):
    mine = Result("test-forest", model=forest()).save(tmp_path / "mine")
    other = Result("test-swamp", model=Swamp(1.0)).save(tmp_path / "other")
    (other / "model.npz").replace(mine / "model.npz")
    with pytest.raises(ConfigError, match=r"'test-swamp' \(Swamp.*expected.*'test-forest' \(Fore"):
        Result.load(mine)
    (mine / "model.npz").write_bytes(b"")
    with pytest.raises(DataError, match=r"model\.npz is damaged"):
        Result.load(mine)


def test_plain_values_are_models_too_and_other_things_are_left_out(tmp_path, caplog):
    plain = Result("X", model={"latent": np.eye(3), "note": "as it is"})
    found = Result.load(plain.save(tmp_path / "plain")).model
    np.testing.assert_array_equal(found["latent"], np.eye(3))
    odd = Result.load(Result("X", model=object()).save(tmp_path / "odd"))
    assert odd.model is None
    assert "the model is not saved" in caplog.text
    with pytest.raises(ConfigError, match=r"Swamp\.fields\['depth'\] is a object"):
        Result("X", model=Swamp(object())).save(tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def test_a_model_of_an_absent_strategy_is_kept_as_plain_values(tmp_path, monkeypatch, caplog):
    folder = Result("test-forest", model=forest()).save(tmp_path / "r")
    monkeypatch.delitem(models._CLASSES, ("test-forest", "Forest"))
    found = Result.load(folder)
    assert found.model.name == "Forest"
    np.testing.assert_array_equal(found.model.fields["weights"], np.eye(2))
    assert "no strategy 'test-forest' is installed" in caplog.text
    again = Result.load(found.save(tmp_path / "again")).model  # nothing is lost on the way
    np.testing.assert_array_equal(again.fields["weights"], np.eye(2))


def test_a_strategy_named_by_a_file_is_imported_only_if_it_is_registered(tmp_path, monkeypatch):
    (tmp_path / "evil_module.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    folder = Result("test-forest", model=forest()).save(tmp_path / "r")
    index = json.loads((folder / "result.json").read_text())
    head = {**index["model"], "strategy": "evil_module:Strategy"}
    (folder / "result.json").write_text(json.dumps({**index, "model": head}))
    data = unpack((folder / "model.npz").read_bytes(), "it")
    (folder / "model.npz").write_bytes(pack({**data, **head}, "it"))
    assert Result.load(folder).model.strategy == "evil_module:Strategy"


def test_models_are_read_one_at_a_time(monkeypatch):
    """Python 3.11's parser, which NumPy reads arrays by, fails now and then in two threads."""
    data = pack({"x": np.arange(3.0)}, "x", {})
    inside, most, real = [], [], np.load

    def load(*args, **options):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)
        inside.pop()
        return real(*args, **options)

    monkeypatch.setattr(np, "load", load)
    threads = [threading.Thread(target=unpack, args=(data, "x")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]
