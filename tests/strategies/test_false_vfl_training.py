"""How a training of FALSE-VFL ends: with its best networks, or with an error that helps."""

import numpy as np
import pandas as pd
import pytest
from deep_runs import COLUMNS, SMALL, TOLD, OpenFalseVFL, make_data

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError, ProtocolError
from strategies.false_vfl.strategy import FalseVFL

SHORT = SMALL | {"epochs": 1, "prediction_samples": 2}


def test_the_first_stage_ends_with_the_networks_that_validated_best():
    """Those of a run that ends at that epoch; parties are told by messages that go in any case."""
    tables, labels, _ = make_data(n=80, seed=2)
    how = SHORT | {
        "pretrain_learning_rate": 0.1,
        "validation_share": 0.3,
        "validate_every": 2,
        "patience": 6,
    }
    long = OpenFalseVFL(variant="II", pretrain_epochs=200, **how)
    whole = simulate(long, tables, labels, aggregation="plain", progress=False)
    found = TOLD.pop()
    best = int(whole.metrics["pretrain_best_epoch"])
    assert 0 < best < whole.metrics["pretrain_epochs"]
    short = OpenFalseVFL(variant="II", pretrain_epochs=best, **how)
    simulate(short, tables, labels, aggregation="plain", progress=False)
    expected = TOLD.pop()
    for name in [*COLUMNS, "server"]:
        np.testing.assert_array_equal(found[name]["parameters"], expected[name]["parameters"])
    steps = whole.ledger.to_frame().groupby("step")["round"].nunique()
    n = whole.metrics["pretrain_epochs"]  # a step an epoch, and the last gradients are given up
    assert steps["encode"] == n + n // 2 + 2
    assert steps["go_backward"] == n


@pytest.mark.parametrize("rate", [1e4, 1e20])
def test_a_training_that_diverges_names_party_and_step_and_keeps_its_snapshot(rate, tmp_path):
    """Embeddings leave their range, or are no numbers any more."""
    tables, labels, _ = make_data(n=40)
    kept = {"checkpoint": tmp_path, "checkpoint_every": 1, "progress": False}
    strategy = FalseVFL(pretrain_epochs=20, **SHORT | {"pretrain_learning_rate": rate})
    messages = []
    for resume in (False, True):
        with pytest.raises(PartyError) as caught:
            simulate(strategy, tables, labels, resume=resume, **kept)
        messages.append(str(caught.value))
        assert "pretrain_learning_rate" in messages[-1]
    # It goes on from the last snapshot, to the same end.
    assert messages[0] == messages[1]
    assert any(f"party '{name}' failed in step 'encode'" in messages[0] for name in COLUMNS)
    assert "epoch 2, step 2 of the first stage" in messages[0]
    other = FalseVFL(pretrain_epochs=20, **SHORT | {"h_dim": 6})
    with pytest.raises((ConfigError, ProtocolError), match=r"another run.*h_dim|h_dim"):
        simulate(other, tables, labels, resume=True, **kept)


def test_a_class_whose_samples_all_were_left_out_is_refused():
    tables, labels, classes = make_data(n=40, seed=6, held=0.5)
    holders = pd.DataFrame({k: pd.Series(1, index=t.index) for k, t in tables.items()})
    alone = holders.index[holders.sum(axis=1) == 1]
    labels = classes.copy()
    labels[alone[:2]] = 7.0
    strategy = FalseVFL(pretrain_epochs=1, **SHORT)
    agreed = {"exchanges": "embeddings", "modules": f"{FalseVFL.__module__}:FalseVFL"}
    with pytest.raises(
        DataError, match=r"none of the 2 samples with the label 7 takes part.*'lone-embeddings'"
    ):
        simulate(strategy, tables, labels, policy=agreed, progress=False)


def test_a_class_of_one_sample_trains_even_where_half_validate():
    tables, labels, _ = make_data(n=40, held=2.0)
    labels.iloc[3] = 5.0
    for seed in range(3):
        strategy = FalseVFL(pretrain_epochs=1, validation_share=0.5, **SHORT)
        result = simulate(strategy, tables, labels, seed=seed, progress=False)
        assert "probability_5" in result.predictions
        assert np.isfinite([line["loss"] for line in result.history]).all()


def test_labels_that_the_fit_did_not_have_are_told_of():
    tables, labels, classes = make_data(n=40)
    result = simulate(FalseVFL(pretrain_epochs=1, **SHORT), tables, labels, progress=False)
    classes.iloc[:3] = 9.0
    again = result.predict(tables, classes, progress=False)
    assert again.metrics["accuracy"] <= 37 / 40
    assert "3 samples have labels [9.0], of which the fit had none" in again.notes[-1]


def test_a_sample_that_no_party_holds_takes_no_part():
    tables, labels, _ = make_data(n=40)
    labels["nobody"] = 1.0
    labels["nothing"] = np.nan
    result = simulate(FalseVFL(pretrain_epochs=1, **SHORT), tables, labels, progress=False)
    assert not {"nobody", "nothing"} & set(result.predictions.index)
    assert len(result.predictions) == labels.iloc[:40].isna().sum()
