"""What FALSE-VFL computes in: the density in one operation, mixed precision."""

import numpy as np
import pytest
import torch
from deep_runs import SMALL, make_data

from flwr_vertical import simulate
from strategies.false_vfl.networks import NetworkSettings, PartyNets, bounded
from strategies.false_vfl.posterior import SharedDraws, draw_normals, log_density, row_log_density
from strategies.false_vfl.strategy import FalseVFL
from strategies.neural import hardware

F64 = torch.float64
BOUNDS = (-2.0, 1.5)


def numbers(*shape):
    return torch.tensor(np.random.default_rng(len(shape)).normal(size=shape) * 1.5)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("one_x", [False, True])
def test_the_density_in_one_operation_is_the_composed_one(one_x, holes):
    given = numbers(4, 3, 10).requires_grad_()
    x = numbers(4, 1 if one_x else 3, 5).requires_grad_()
    known = (numbers(4, 5) > 0).to(F64) if holes else torch.ones(4, 5, dtype=F64)
    found = row_log_density(given, x, BOUNDS, known if holes else None)
    mean, raw = given.chunk(2, -1)
    expected = (log_density(x, mean, bounded(raw, BOUNDS)) * known[:, None]).sum(-1)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    weights = numbers(4, 3)
    own = torch.autograd.grad((weights * found).sum(), (given, x))
    composed = torch.autograd.grad((weights * expected).sum(), (given, x))
    for one, other in zip(own, composed, strict=True):
        assert other.abs().max() > 0.1
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_the_density_of_extreme_numbers_stays_finite():
    given = torch.tensor([[[0.0, 0.0, -1e6, 1e6]]], requires_grad=True)
    found = row_log_density(given, torch.tensor([[[1.0, 1.0]]]), BOUNDS)
    (gradient,) = torch.autograd.grad(found.sum(), given)
    assert torch.isfinite(found).all()
    assert torch.isfinite(gradient).all()


@pytest.fixture
def native(monkeypatch):
    """PyTorch computes in bfloat16 on any processor; only its speed depends on it."""
    monkeypatch.setattr(hardware, "has_bfloat16", lambda device: True)


def party_nets(mixed):
    settings = NetworkSettings(h_dim=6, party_width=16, mixed=mixed)
    return PartyNets(5, settings, "II", seed=1, name="bank")


def terms_and_gradients(nets):
    x, places = numbers(3, 5).float(), torch.tensor([0, 2, 3])
    h, noise = numbers(4, 8, 6).float(), numbers(4, 8, 5).float()
    terms = nets.log_terms(x, torch.ones_like(x), places, h, noise)
    parameters = [*nets.decoder.parameters(), *nets.indicator.parameters()]
    return terms, torch.autograd.grad(terms.sum(), parameters)


def test_mixed_precision_rounds_matrix_products_and_nothing_else(native):
    (exact, of_exact), (found, of_found) = (
        terms_and_gradients(party_nets(mixed)) for mixed in (False, True)
    )
    assert not torch.equal(exact, found)
    assert found.dtype == torch.float32
    # bfloat16 has 8 bits: one part in 256, of numbers of about 10 and of sums of 24 terms.
    torch.testing.assert_close(found, exact, rtol=0.02, atol=0.05)
    for one, other in zip(of_found, of_exact, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.05 * other.norm()
    again, of_again = terms_and_gradients(party_nets(True))
    assert torch.equal(found, again)
    assert all(torch.equal(one, other) for one, other in zip(of_found, of_again, strict=True))


def test_without_bfloat16_mixed_is_float32(monkeypatch):
    monkeypatch.setattr(hardware, "has_bfloat16", lambda device: False)
    exact, found = (terms_and_gradients(party_nets(mixed))[0] for mixed in (False, True))
    assert torch.equal(exact, found)


def test_draws_that_all_nodes_make_are_made_once_and_few_are_kept():
    draws = SharedDraws(n_bytes=4 * 100)
    first = draws.normals(7, "h", (5, 10))
    assert torch.equal(first, draw_normals(7, "h", (5, 10)))
    assert draws.normals(7, "h", (5, 10)) is first
    assert not torch.equal(draws.normals(8, "h", (5, 10)), first)  # 400 bytes are kept now
    assert draws.normals(7, "h", (5, 10)) is first
    draws.normals(9, "h", (5, 10))  # in place of 8, which was used least recently
    assert draws.normals(7, "h", (5, 10)) is first
    large = draws.normals(7, "h", (101,))
    assert draws.normals(7, "h", (101,)) is not large
    assert draws.normals(7, "h", (5, 10)) is first
    assert draws.normals(7, "h", (5, 10), F64).dtype == F64


def test_who_lacks_bfloat16_is_named(monkeypatch):
    monkeypatch.setattr(hardware, "has_bfloat16", lambda device: False)
    tables, labels, _ = make_data(n=30, seed=2)
    short = {"pretrain_epochs": 1, "epochs": 1, **SMALL}
    result = simulate(FalseVFL(precision="mixed", **short), tables, labels, progress=False)
    (note,) = result.notes
    assert "precision='mixed', but bank, court, shop, the server computed in float32" in note
