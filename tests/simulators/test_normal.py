"""A normal sample: draws against their law, exact answers against torch's density, autograd and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.laws import check_batch_of_one, check_permutation_invariance, check_printing, close, equal
from tests.strategies import PROPERTY, seeds
from torch import Tensor

from fishnets.errors import DataError, ShapeError
from fishnets.ragged import Sets
from fishnets.simulators import NormalSample

SIMULATOR = NormalSample()


def simulate(sizes: list[int], seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Sets, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    theta = SIMULATOR.prior.sample(len(sizes), generator).to(dtype)
    return SIMULATOR(theta, torch.tensor(sizes, dtype=torch.int64), generator), theta


def log_density(sets: Sets, theta: Tensor) -> Tensor:
    """Log-likelihood of each set from torch's own density."""
    pairs = zip(sets.to_list(), theta, strict=True)
    return torch.stack([torch.distributions.Normal(m, v.sqrt()).log_prob(y).sum() for y, (m, v) in pairs])


def brute_force(y: Tensor) -> tuple[Tensor, Tensor]:
    """Posterior mean and covariance by Gauss-Legendre sums over the whole box."""
    nodes, weights = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(300))
    low, high = SIMULATOR.prior.low, SIMULATOR.prior.high
    m, v = (low[i] + 0.5 * (high - low)[i] * (nodes + 1) for i in range(2))
    density = torch.distributions.Normal(m[:, None, None], v.sqrt()[:, None]).log_prob(y).sum(-1)  # (mean, variance)
    mass = torch.exp(density - density.max()) * torch.outer(weights, weights)
    points, mass = torch.cartesian_prod(m, v), (mass / mass.sum()).flatten()
    return mass @ points, torch.cov(points.mT, aweights=mass, correction=0)


def test_draws_follow_their_law():
    theta = torch.tensor([[-1.5, 0.3], [0.7, 3.6]], dtype=torch.float64)
    sets = SIMULATOR(theta, torch.tensor([40_000, 60_000]), torch.Generator().manual_seed(1))
    for rows, (mean, variance) in zip(sets.to_list(), theta.tolist(), strict=True):
        white = (rows[:, 0] - mean) / math.sqrt(variance)
        assert abs(float(white.mean())) < 5 / math.sqrt(len(white))
        assert abs(float(white.var()) - 1) < 5 * math.sqrt(2 / len(white))
        assert abs(float(white.pow(3).mean())) < 5 * math.sqrt(15 / len(white))
        assert abs(float(white.pow(4).mean()) - 3) < 5 * math.sqrt(96 / len(white))


@PROPERTY
@given(st.lists(st.sampled_from([0, 1, 2, 30]), min_size=1, max_size=4), seeds)
def test_likelihood_is_the_density_and_the_score_its_gradient(sizes, seed):
    sets, _ = simulate(sizes, seed)
    theta = SIMULATOR.prior.sample(len(sizes), torch.Generator().manual_seed(seed + 1)).requires_grad_()
    expected = log_density(sets, theta)
    close(SIMULATOR.log_likelihood(sets, theta), expected)
    (gradient,) = torch.autograd.grad(expected.sum(), theta)
    close(SIMULATOR.score(sets, theta.detach()), gradient)


def test_laws_of_the_exact_answers():
    sets, theta = simulate([5, 0, 1, 200])
    point = theta[:1]
    check_batch_of_one(lambda x: SIMULATOR.score(x, point.expand(len(x), 2)), sets, close)
    check_permutation_invariance(
        lambda x: SIMULATOR.log_likelihood(x, theta), sets, torch.Generator().manual_seed(1), close
    )
    check_printing(SIMULATOR)


def test_score_has_mean_zero_and_the_fisher_matrix_as_covariance():
    truth, number = torch.tensor([0.4, 0.7], dtype=torch.float64), 20_000
    sets = SIMULATOR(truth.expand(number, 2), torch.full((number,), 20), torch.Generator().manual_seed(2))
    fisher = 20 * SIMULATOR.fisher_per_datum(truth)
    white = SIMULATOR.score(sets, truth.expand(number, 2)) / fisher.diagonal().sqrt()
    assert float(white.mean(0).abs().max()) < 5 / math.sqrt(number)
    # the kurtosis of a sum of 20 squares, 0.6 above normal, widens the error of a variance to √(2.6/n)
    assert float((white.mT @ white / number - torch.eye(2).double()).abs().max()) < 5 * math.sqrt(2.6 / number)


def test_fisher_matrix_is_the_mean_curvature_of_the_density():
    theta = torch.tensor([[0.4, 0.7], [-1.0, 3.0]], dtype=torch.float64)
    # Gauss-Hermite nodes integrate the curvature, a quadratic in y, without error
    nodes, weights = (torch.from_numpy(array) for array in np.polynomial.hermite_e.hermegauss(8))
    for point, fisher in zip(theta, SIMULATOR.fisher_per_datum(theta), strict=True):
        y = point[0] + point[1].sqrt() * nodes
        share = weights / weights.sum()

        def mean_density(at: Tensor, y: Tensor = y, share: Tensor = share) -> Tensor:
            return (share * torch.distributions.Normal(at[0], at[1].sqrt()).log_prob(y)).sum()

        close(fisher, -torch.autograd.functional.hessian(mean_density, point))
        close(SIMULATOR.fisher_per_datum(point), fisher)


@pytest.mark.parametrize("size", [1, 3, 25])
def test_posterior_of_a_small_set_is_the_integral_over_the_box(size):
    sets, _ = simulate([size], seed=size)
    posterior, (mean, covariance) = SIMULATOR.posterior(sets, points=81), brute_force(sets.values[:, 0])
    torch.testing.assert_close(posterior.mean, mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(posterior.covariance, covariance, rtol=1e-3, atol=1e-4)


def test_posterior_of_a_large_set_is_the_closed_form():
    theta = torch.tensor([[0.3, 1.5]], dtype=torch.float64)
    sets = SIMULATOR(theta, torch.tensor([3_000]), torch.Generator().manual_seed(3))
    posterior, y = SIMULATOR.posterior(sets), sets.values[:, 0]
    # under a flat prior the variance is inverse gamma, of shape (n - 3)/2, and the mean given it normal
    number, squares = len(y), float((y - y.mean()).square().sum())
    variance = squares / (number - 5)
    expected = torch.tensor([variance / number, variance**2 / ((number - 7) / 2)], dtype=torch.float64)
    torch.testing.assert_close(posterior.mean, torch.stack([y.mean(), y.new_tensor(variance)]), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(posterior.covariance, torch.diag(expected), rtol=1e-4, atol=1e-10)


def test_set_without_data_gives_the_prior():
    sets, theta = simulate([0])
    posterior = SIMULATOR.posterior(sets)
    close(posterior.mean, SIMULATOR.prior.mean)
    torch.testing.assert_close(posterior.covariance, SIMULATOR.prior.covariance, rtol=1e-6, atol=1e-12)
    assert float(SIMULATOR.log_likelihood(sets, theta)) == 0
    equal(SIMULATOR.score(sets, theta), torch.zeros(1, 2, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_data_follow_theta_and_answers_are_float64(dtype, device):
    theta = torch.tensor([[0.5, 1.0], [0.0, 2.0], [0.0, 0.5]], dtype=dtype, device=device)
    generator = torch.Generator(device).manual_seed(0)
    sets = SIMULATOR(theta, torch.tensor([3, 0, 4], device=device), generator)
    assert (sets.values.dtype, sets.device.type, sets.sizes.tolist()) == (dtype, device.type, [3, 0, 4])
    assert sets.num_features == SIMULATOR.num_features == 1
    assert SIMULATOR.score(sets, theta).dtype == SIMULATOR.log_likelihood(sets, theta).dtype == torch.float64
    assert SIMULATOR.posterior(sets[:1]).mean.dtype == SIMULATOR.fisher_per_datum(theta).dtype == torch.float64


def test_draws_repeat_with_the_generator():
    equal(simulate([20], seed=3)[0].values, simulate([20], seed=3)[0].values)
    assert not torch.equal(simulate([20], seed=3)[0].values, simulate([20], seed=4)[0].values)


def test_covariates_do_not_exist_to_be_kept():
    assert not hasattr(SIMULATOR, "like")


def test_wrong_input_is_refused():
    sets, theta = simulate([2, 3])
    with pytest.raises(ShapeError, match=r"`theta` has shape \(4, 3\) but \(\.\.\., 2\) was expected"):
        SIMULATOR(torch.ones(4, 3), torch.ones(4, dtype=torch.int64))
    with pytest.raises(ShapeError, match=r"`theta` has shape \(1, 2\) and `size` \(2,\) but \(B, 2\) and \(B,\) were"):
        SIMULATOR(torch.ones(1, 2), torch.tensor([1, 2]))
    refused = r"The variance, `theta\[:, 1\]`, must be positive but rows 1 are not; row 1 has (-1|nan)\. If these are"
    for bad in (-1.0, math.nan):
        wrong = torch.tensor([[1.0, 1.0], [1.0, bad]])
        for answer in (SIMULATOR.score, SIMULATOR.log_likelihood):
            with pytest.raises(DataError, match=refused):
                answer(sets, wrong)
        with pytest.raises(DataError, match=refused):
            SIMULATOR(wrong, torch.tensor([1, 1]))
        with pytest.raises(DataError, match=refused):
            SIMULATOR.fisher_per_datum(wrong)
    with pytest.raises(ShapeError, match="One set was expected but 2 were given; take them one by one"):
        SIMULATOR.posterior(sets)
    with pytest.raises(ShapeError, match=r"`theta` has shape \(1, 2\) but one row per set, \(2, 2\), was expected"):
        SIMULATOR.score(sets, theta[:1])
    with pytest.raises(ShapeError, match=r"`values` has shape \(1, 2\) but \(\.\.\., 1\) was expected"):
        SIMULATOR.posterior(Sets.from_list([torch.ones(1, 2)]))


@pytest.mark.gpu
def test_draws_and_answers_on_a_gpu(device):
    theta = torch.tensor([[0.5, 1.0], [-1.0, 3.0]], device=device)
    sets = SIMULATOR(theta, torch.tensor([500, 700], device=device), torch.Generator(device).manual_seed(0))
    close(SIMULATOR.score(sets, theta).cpu(), SIMULATOR.score(sets.to("cpu"), theta.cpu()))
    close(SIMULATOR.posterior(sets[:1]).mean.cpu(), SIMULATOR.posterior(sets[:1].to("cpu")).mean)
