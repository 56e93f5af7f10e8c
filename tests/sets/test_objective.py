"""The training loss against dense float64 algebra, on both sides of the unrolled form."""

from __future__ import annotations

import pytest
import torch
from tests.sets.helpers import generator, tiny

from fishnets import Sets
from fishnets.priors import Normal
from fishnets.sets.objective import UNROLLED, Objective, Standards
from fishnets.sets.sources import Batch


def correlated(num_params: int) -> Normal:
    root = torch.randn((num_params, num_params), generator=generator(1), dtype=torch.float64)
    covariance = root @ root.mT + torch.eye(num_params, dtype=torch.float64)
    return Normal(torch.arange(num_params, dtype=torch.float64), covariance)


@pytest.mark.parametrize("num_params", [1, 2, UNROLLED, UNROLLED + 1])
@pytest.mark.parametrize("factor", ["full", "diagonal", "rank-1"])
def test_loss_is_minus_the_log_posterior_of_every_member(num_params: int, factor: str) -> None:
    prior = correlated(num_params)
    model = tiny(prior, members=2, factor=factor, fiducial=prior.mean + 0.3)
    sets = Sets.from_list([torch.randn((n, 3), generator=generator(n)) for n in (5, 0, 1, 30)])
    theta = prior.sample(4, generator(2))
    losses = Objective(model.networks, model._standards(), half=False, compiled=False)(Batch(sets, theta.float()))
    assert losses.shape == (2, 4)
    constant = num_params / 2 * torch.tensor(2 * torch.pi).log() + model.theta_scale.log().sum()
    for loss, information in zip(losses, model.compress(sets, members="separate"), strict=True):
        expected = -information.posterior(prior).log_prob(theta) - constant
        torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-4)


def test_gradients_reach_every_weight() -> None:
    model = tiny(members=2)
    sets = Sets.from_list([torch.randn((n, 3), generator=generator(n)) for n in (5, 9)])
    Objective(model.networks, model._standards(), False, False)(Batch(sets, torch.ones(2, 2))).sum().backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.networks.parameters())


def test_standards_shift_and_scale() -> None:
    numbers = [torch.tensor(values, dtype=torch.float64) for values in ([1.0, 2.0], [2.0, 4.0], [3.0], [0.5])]
    standards = Standards(*numbers, torch.eye(1), torch.zeros(1))
    assert standards.features(torch.tensor([[3.0, 4.0]])).tolist() == [[1.0, 0.5]]
    assert standards.features(torch.tensor([[3.0, 4.0]], dtype=torch.float64)).dtype == torch.float64
    assert standards.parameters(torch.tensor([[4.0]])).tolist() == [[2.0]]
