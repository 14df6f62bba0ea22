"""VertiGAN: gradients against one graph, what is learnt, and what is refused."""

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")

from ledgered import Nodes  # noqa: E402

from flwr_vertical import simulate  # noqa: E402
from flwr_vertical.errors import DataError, PartyError  # noqa: E402
from strategies.vertigan import VertiGAN  # noqa: E402
from strategies.vertigan.networks import NOISE, PENALTY, Blocks, Branch, Trunk  # noqa: E402

N = 300


def tables():
    rng = np.random.default_rng(0)
    ids = [f"s{i:03}" for i in range(N)]
    common = rng.normal(size=N)
    level = np.array(list("uv"))[(common > 0.5).astype(int)]
    bank = pd.DataFrame({"x": common, "y": -common, "level": level}, index=ids)
    court = pd.DataFrame({"count": rng.poisson(3, N)}, index=ids)
    return {"bank": bank.iloc[20:], "court": court}


def branches():
    blocks = Blocks((1, 3), (0, 3)), Blocks((1, 1), (0, 0))
    return [Branch(b, 10 * k, 1e-3) for k, b in enumerate(blocks)]


def test_the_sum_of_gradients_is_that_of_one_generator():
    """A trunk with two branches, and the sum of what two critics say: one graph, by autograd."""
    trunk, two = Trunk(3, 1e-3), branches()
    noise = torch.randn(20, NOISE, generator=torch.Generator().manual_seed(0))
    whole = trunk.hidden(noise)
    loss = -sum(b.critic(b.made(whole)).mean() for b in two)
    expected = torch.autograd.grad(loss, [*trunk.net.parameters(), *two[1].head.parameters()])
    before = [p.detach().clone() for p in two[1].head.parameters()]
    hidden = trunk.hidden(noise)
    gradient = sum(b.update_head(hidden.detach()) for b in two)
    trunk.update(hidden, gradient)
    found = [p.grad for p in (*trunk.net.parameters(), *two[1].head.parameters())]
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-7)
    assert all((a != b).any() for a, b in zip(before, two[1].head.parameters(), strict=True))


def test_the_critics_loss_has_the_gradient_penalty():
    """Of a linear critic the slope is its weights, whatever the point."""
    branch, _ = branches()
    branch.critic, weights = torch.nn.Linear(4, 1), torch.tensor([[3.0, 0.0, 4.0, 0.0]])
    with torch.no_grad():
        branch.critic.weight.copy_(weights)
    real, made, mix = torch.rand(9, 4), torch.rand(9, 4), torch.rand(9, 1)
    expected = (made - real).mean(0) @ weights[0] + PENALTY * (5.0 - 1.0) ** 2
    torch.testing.assert_close(branch.critic_loss(real, made, mix), expected)


@pytest.mark.slow
def test_a_branch_learns_what_its_critic_sees():
    """Its columns' means and how they go together; no federation is needed for that."""
    rng = np.random.default_rng(0)
    x = np.clip(0.7 + 0.1 * rng.normal(size=800), 0, 1)
    real = torch.tensor(np.column_stack([x, 1.0 - x])).float()
    trunk, branch = Trunk(0, 3e-4), Branch(Blocks((1, 1), (0, 0)), 1, 3e-4)
    draws = torch.Generator().manual_seed(1)

    def hidden(n=64):
        return trunk.hidden(torch.randn(n, NOISE, generator=draws))

    seen = []
    for step in range(120):
        for _ in range(5):
            rows = torch.randint(0, 800, (64,), generator=draws)
            mix = torch.rand(64, 1, generator=draws)
            branch.update_critic(real[rows], hidden().detach(), mix)
        given = hidden()
        trunk.update(given, branch.update_head(given.detach()))
        if step >= 60:  # players go round each other: what they are around is compared
            seen.append(branch.made(given).detach().numpy().mean(axis=0))
    np.testing.assert_allclose(np.mean(seen, axis=0), [0.7, 0.3], atol=0.12)
    made = branch.made(hidden(2000)).detach().numpy()
    assert np.corrcoef(made.T)[0, 1] < -0.6
    assert 0.04 < made[:, 0].std() < 0.2


@pytest.fixture(scope="module")
def trained():
    strategy = VertiGAN(iterations=4, batch=16, rows=50)
    return simulate(strategy, tables())


def test_synthetic_tables_have_valid_values_of_nobody(trained):
    given = tables()
    for name, table in trained.tables.items():
        assert list(table.columns) == list(given[name].columns)
        assert not table.isna().any().any()
        assert len(table) == 50
        assert not table.index.isin(given[name].index).any()
    assert trained.tables["bank"].index.equals(trained.tables["court"].index)
    assert set(trained.tables["bank"]["level"]) <= {"u", "v"}
    assert trained.tables["court"]["count"].dtype == given["court"]["count"].dtype
    assert trained.metrics["rows_learnt_from"] == N - 20


def test_a_step_is_one_round_and_modes_agree(trained):
    steps = trained.ledger.to_frame().drop_duplicates("round")["step"].tolist()
    assert steps == ["hello", "share_ids", "start", *["train"] * 4, "make", "finish"]
    strategy = VertiGAN(iterations=4, batch=16, rows=50)
    plain = simulate(strategy, tables(), aggregation="plain")
    for name, table in plain.tables.items():
        numeric = table.select_dtypes("number").columns
        np.testing.assert_allclose(table[numeric], trained.tables[name][numeric], atol=1.0)
    assert plain.history[-1]["gradient"] == pytest.approx(trained.history[-1]["gradient"], rel=1e-3)


def test_nodes_must_agree_and_have_enough_samples(tmp_path):
    nodes = Nodes(tmp_path, {name: t.rename_axis("id") for name, t in tables().items()})
    nodes.refused("exchanges", VertiGAN(iterations=1))
    few = {name: table.iloc[:60] for name, table in tables().items()}
    with pytest.raises(PartyError, match=r"40 of the samples that all parties have .* 100 or more"):
        simulate(VertiGAN(iterations=1), few)
    whole = tables()["court"]
    apart = {"a": whole.iloc[:150], "b": whole.iloc[100:250], "c": whole.iloc[200:]}
    with pytest.raises(DataError, match="no sample is held by all parties"):
        simulate(VertiGAN(iterations=1), apart)
