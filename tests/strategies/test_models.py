"""Parties' parts of models on disk; the contract saves and loads the server's."""

import pathlib
import stat

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict
from ledgered import Nodes

from flwr_vertical import FileStorage, simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError
from strategies.predict import Predict
from strategies.vfem import VFEM
from strategies.vfem_iterations import VFEMIterations

ROOT = pathlib.Path(__file__).parents[2]


def data(n=300, seed=0, missing=0.2):
    rng = np.random.default_rng(seed)
    ids = [f"firm {seed}-{i}" for i in range(n)]
    bank = pd.DataFrame(rng.normal([5, -2], [2, 0.5], size=(n, 2)), index=ids, columns=["u", "v"])
    court = pd.DataFrame({"w": rng.normal(size=n), "town": rng.choice(list("abc"), n)}, index=ids)
    y = bank["u"] + 3 * bank["v"] - 2 * court["w"] + 7 + rng.normal(size=n)
    keep = rng.random((2, n)) >= missing
    return {"bank": bank[keep[0]], "court": court[keep[1]]}, y.rename("profit")


def test_a_fit_that_diverged_has_a_model_and_no_part():
    strategy = VFEMIterations(learning_rate=5.0)
    result = simulate(strategy, *data(), min_rows=20)
    assert result.model.outcome == "diverged"
    assert result._party_models == {}


@pytest.fixture
def nodes(tmp_path):
    return Nodes(tmp_path, data()[0])


def test_on_disk_the_later_run_uses_what_the_parties_fitted(nodes):
    result = nodes.run(VFEM(), data()[1], run_name="the fit")
    paths = [
        nodes.folder / "out" / name / "the fit" / f"{name}.model.npz" for name in ("bank", "court")
    ]
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [p.name for p in path.parent.iterdir()] == [path.name]  # no temporary file is left
    assert result._party_models == {}  # they stay with the parties
    found = nodes.run(Predict(result), run_name="later", fitted="the fit")
    assert len(found.predictions) == found.metrics["n_samples"]
    with pytest.raises(PartyError, match="name the run of the fit as 'fitted'"):
        nodes.run(Predict(result), run_name="later")
    other = nodes.run(VFEM(), data()[1] + 1, run_name="other fit")
    with pytest.raises(PartyError, match="but the server asks for the model"):
        nodes.run(Predict(other), run_name="later", fitted="the fit")
    (nodes.folder / "bank.csv").write_text("id,u,v\nnew,1.5,\n")  # v has no value
    assert "new" in nodes.run(Predict(result), run_name="last", fitted="the fit").predictions.index


def test_a_part_that_is_absent_foreign_or_damaged_is_an_error_that_says_so(nodes):
    result = nodes.run(VFEM(), data()[1], run_name="fit")
    predict = Predict(result)
    with pytest.raises(PartyError, match=r"'bank' has nothing from a run named 'fot'"):
        nodes.run(predict, run_name="later", fitted="fot")
    with pytest.raises(PartyError, match=r"fitted '\.\./fit' is not usable"):
        nodes.run(predict, run_name="later", fitted="../fit")
    path = nodes.folder / "out" / "bank" / "fit" / "bank.model.npz"
    good = path.read_bytes()
    path.write_bytes(result.model.to_bytes())
    with pytest.raises(PartyError) as caught:
        nodes.run(predict, run_name="later", fitted="fit")
    assert caught.value.party == "bank"
    assert (
        "what party 'bank' saved in the earlier run 'fit' is a model of strategy 'vfem' "
        "(VFEMModel, version 1); expected one of strategy 'predict' (LinearPart, version 4)"
    ) in caught.value.cause
    path.write_bytes(good[: len(good) // 2])
    with pytest.raises(PartyError, match=r"saved in the earlier run 'fit' is damaged"):
        nodes.run(predict, run_name="later", fitted="fit")
    path.unlink()
    bank = pd.read_csv(nodes.folder / "bank.csv", index_col=0)
    bank.to_parquet(nodes.folder / "out" / "bank" / "fit" / "bank.parquet")
    with pytest.raises(PartyError, match=r"'bank' has no model from a run named 'fit': there is "):
        nodes.run(predict, run_name="later", fitted="fit")


def test_names_of_runs_stay_in_the_party_s_folder(nodes):
    storage, config = FileStorage(), nodes.configs["bank"]
    for name in ("../evil", "/etc", "a/b", "..", "a\nb"):
        context = Context(1, 1, dict(config), RecordDict(), {"run-name": name})
        with pytest.raises(ConfigError, match="run-name"):
            storage.save_model(context, b"x")
        with pytest.raises(ConfigError, match="is not usable"):
            storage.load_model(context, name)
    assert not (nodes.folder / "out").exists()


def test_a_write_that_fails_leaves_the_earlier_part(nodes, monkeypatch):
    storage = FileStorage()
    context = Context(1, 1, dict(nodes.configs["bank"]), RecordDict(), {"run-name": "fit"})
    path = pathlib.Path(storage.save_model(context, b"good"))

    def fail(self, data):
        self.open("wb").write(data[:1])
        raise OSError("disk full")

    monkeypatch.setattr(pathlib.Path, "write_bytes", fail)
    with pytest.raises(OSError, match="disk full"):
        storage.save_model(context, b"better")
    assert [p.name for p in path.parent.iterdir()] == ["bank.model.npz"]
    assert path.read_bytes() == b"good"
    assert storage.load_model(context, "fit") == b"good"
    assert storage.load_model(context) is None  # no run is named
    with pytest.raises(DataError, match="no model from a run named 'other'"):
        storage.load_model(context, "other")
