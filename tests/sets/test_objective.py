"""The training loss against dense float64 algebra, on both sides of the unrolled form."""

from __future__ import annotations

import pytest
import torch
from tests.sets.helpers import generator, tiny
from torch import Tensor

from fishnets import Fishnet, Sets
from fishnets.priors import Box, Normal, Prior
from fishnets.sets.objective import UNROLLED, WIDEST, LocalObjective, Objective, build_objective, local_rows
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
    losses = Objective(model.networks, model.standards, half=False, compiled=False)(Batch(sets, theta.float()))
    assert losses.shape == (2, 4)
    constant = num_params / 2 * torch.tensor(2 * torch.pi).log() + model.theta_scale.log().sum()
    for loss, information in zip(losses, model.compress(sets, members="separate"), strict=True):
        expected = -information.posterior(prior).log_prob(theta) - constant
        torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-4)


def test_gradients_reach_every_weight() -> None:
    model = tiny(members=2)
    sets = Sets.from_list([torch.randn((n, 3), generator=generator(n)) for n in (5, 9)])
    Objective(model.networks, model.standards, False, False)(Batch(sets, torch.ones(2, 2))).sum().backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.networks.parameters())


def boxed(num_params: int) -> Box:
    low = torch.arange(num_params, dtype=torch.float64)
    return Box(low, 2 * low + 3)


def local_objective(model: Fishnet) -> LocalObjective:
    return build_objective(model, half=False, compiled=False)  # type: ignore[return-value]


def dense_local_loss(model: Fishnet, prior: Prior, sets: Sets, theta: Tensor, noise: Tensor) -> Tensor:
    """Minus the log-density of the truth under the law it has around the point, set by set, in float64: (K, B)."""
    scale = prior.covariance.diagonal().sqrt()
    firsts = model.compress(sets, members="separate")
    own = torch.linalg.inv(prior.covariance)
    precision = torch.stack([(first.fisher + own) * torch.outer(scale, scale) for first in firsts]).mean(0)
    width = precision.diagonal(dim1=-2, dim2=-1).rsqrt().clamp(max=WIDEST) * scale
    point = theta + width * noise
    losses = []
    for local in model.compress(sets, at=point, members="separate"):
        rows = []
        for i in range(len(sets)):
            total = local.fisher[i] + torch.diag(width[i] ** -2)
            score = local.score[i]
            if isinstance(prior, Normal):  # the prior times the law of the point; any other is flat over a width
                total, score = total + own, score - own @ (point[i] - prior.mean)
            mean = point[i] + torch.linalg.solve(total, score)
            law = torch.distributions.MultivariateNormal(mean, precision_matrix=0.5 * (total + total.mT))
            rows.append(-law.log_prob(theta[i]))
        losses.append(torch.stack(rows))
    return torch.stack(losses)


@pytest.mark.parametrize("num_params", [1, 2, UNROLLED + 1])
@pytest.mark.parametrize("kind", [correlated, boxed], ids=["normal", "box"])
@pytest.mark.parametrize("factor", ["full", "rank-1"])
def test_local_loss_is_minus_the_log_posterior_around_the_truth(num_params: int, kind, factor: str) -> None:
    prior = kind(num_params)
    model = tiny(prior, members=2, factor=factor, fiducial=prior.mean + 0.3, refine=True)
    sets = Sets.from_list([torch.randn((n, 3), generator=generator(n)) for n in (5, 0, 1, 4000)])
    theta = prior.sample(4, generator(2))
    noise = torch.randn((4, num_params), generator=generator(3), dtype=torch.float64)
    objective = local_objective(model)
    assert isinstance(objective, LocalObjective)
    losses = objective(Batch(sets, theta.float(), noise.float()))
    first = objective.first(Batch(sets, theta.float()))
    assert losses.shape == (2, 4)
    constant = num_params / 2 * torch.tensor(2 * torch.pi).log() + model.theta_scale.log().sum()
    expected = dense_local_loss(model, prior, sets, theta, noise) - constant
    torch.testing.assert_close((losses - first).double(), expected, rtol=2e-4, atol=2e-3)


def test_width_is_what_the_first_networks_leave_uncertain_and_no_more_than_the_widest() -> None:
    """Seen through the loss: where the noise is zero the point is the truth, whatever the width."""
    model = tiny(refine=True)
    sets = Sets.from_list([torch.randn((n, 3), generator=generator(n)) for n in (0, 10_000)])
    precision = model.compress(sets).posterior(model.prior).precision.diagonal(dim1=-2, dim2=-1)
    width = precision.rsqrt().clamp(max=WIDEST)
    assert width[0].tolist() == [WIDEST, WIDEST]
    assert bool((width[1] < WIDEST).all())
    theta = torch.tensor([[0.3, -0.2], [0.1, 0.4]], dtype=torch.float64)
    objective = local_objective(model)
    batch = Batch(sets, theta.float(), torch.zeros(2, 2))
    local = model.compress(sets, at=theta)
    total = local.fisher + torch.diag_embed(width**-2) + torch.eye(2)
    pulled = local.score - theta
    expected = 0.5 * (pulled.unsqueeze(1) @ torch.linalg.solve(total, pulled.unsqueeze(-1))).flatten()
    expected = expected - 0.5 * torch.logdet(total)
    found = (objective(batch) - objective.first(batch))[0].double()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def test_gradients_reach_every_weight_of_both_networks_but_not_through_the_width() -> None:
    model = tiny(members=2, refine=True)
    sets = Sets.from_list([torch.randn((n, 3), generator=generator(n)) for n in (5, 900)])
    batch = Batch(sets, torch.ones(2, 2), torch.ones(2, 2))
    objective = local_objective(model)
    objective(batch).sum().backward()
    assert model.local is not None
    for networks in (model.networks, model.local):
        assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in networks.parameters())
    together = [p.grad.clone() for p in model.networks.parameters()]  # type: ignore[union-attr]
    model.zero_grad()
    objective.first(batch).sum().backward()
    for grad, p in zip(together, model.networks.parameters(), strict=True):
        torch.testing.assert_close(grad, p.grad)


@pytest.mark.parametrize("sizes", [[3, 3], [2, 0, 4]], ids=["one size", "ragged"])
def test_rows_of_a_set_end_in_its_point(sizes: list[int]) -> None:
    sets = Sets.from_list([torch.randn((n, 2), generator=generator(n), dtype=torch.float64) for n in sizes])
    point = torch.arange(3.0 * len(sizes)).view(len(sizes), 3)
    rows = local_rows(sets.values, point, sets)
    assert rows.dtype == torch.float64
    assert torch.equal(rows[:, :2], sets.values)
    assert torch.equal(rows[:, 2:], point.double()[sets.index])
