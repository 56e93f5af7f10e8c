"""Linear regression: exact sites against the normal equations, and the numbers that networks are measured with."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.laws import (
    check_batch_of_one,
    check_compress_then_merge,
    check_permutation_invariance,
    close,
    equal,
    same_information,
)
from tests.strategies import PROPERTY, normals, seeds
from torch import Tensor

from fishnets.algebra import Gaussian
from fishnets.errors import ConfigError, ShapeError
from fishnets.priors import Normal
from fishnets.ragged import Sets
from fishnets.simulators import LinearRegression

FEATURES = ["paper", "log", "authors"]


def simulate(sizes: list[int], seed: int = 0, features: str = "paper", dtype: torch.dtype = torch.float64) -> Sets:
    theta = normals(seed, len(sizes), 2, dtype=dtype)
    simulator = LinearRegression(features)  # type: ignore[arg-type]
    return simulator(theta, torch.tensor(sizes, dtype=torch.int64), torch.Generator().manual_seed(seed))


def normal_equations(rows: Tensor, prior: Normal) -> tuple[Tensor, Tensor]:
    """Mean and precision of the posterior from the dense design matrix and noise covariance of one set."""
    y, x, variance = rows.double().unbind(1)
    design = torch.stack([x, torch.ones_like(x)], dim=1)
    noise_precision = torch.linalg.inv(torch.diag(variance))
    prior_precision = torch.linalg.inv(prior.covariance)
    precision = design.mT @ noise_precision @ design + prior_precision
    return torch.linalg.inv(precision) @ (design.mT @ noise_precision @ y + prior_precision @ prior.mean), precision


def posteriors(num_data: int, num_sets: int, seed: int, chunk: int) -> tuple[Tensor, Gaussian]:
    """Parameters from the prior and the exact posteriors of their sets, a chunk of sets in memory at a time."""
    simulator, generator = LinearRegression(), torch.Generator().manual_seed(seed)
    theta = simulator.prior.sample(num_sets, generator)
    parts = []
    for piece in theta.split(chunk):
        sets = simulator(piece, torch.full((len(piece),), num_data), generator)
        parts.append(simulator.posterior(sets))
    return theta, Gaussian(torch.cat([part.mean for part in parts]), torch.cat([part.precision for part in parts]))


@PROPERTY
@given(st.lists(st.sampled_from([0, 1, 2, 30]), min_size=1, max_size=4), seeds, st.sampled_from(FEATURES))
def test_posterior_is_that_of_the_normal_equations(sizes, seed, features):
    sets, paper = simulate(sizes, seed, features), simulate(sizes, seed)
    for prior in (None, Normal([0.7, -1.5], [[2.0, 0.3], [0.3, 0.5]])):
        posterior = LinearRegression(features).posterior(sets, prior)
        for i, rows in enumerate(paper.to_list()):
            mean, precision = normal_equations(rows, prior or Normal([0.0, 0.0], [1.0, 1.0]))
            torch.testing.assert_close(posterior.mean[i], mean, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(posterior.precision[i], precision, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("num_data", [500, 2000])
def test_posterior_is_exact_at_the_sizes_of_the_paper(num_data):
    sets = simulate([num_data])
    mean, precision = normal_equations(sets.values, Normal([0.0, 0.0], [1.0, 1.0]))
    posterior = LinearRegression().posterior(sets)
    torch.testing.assert_close(posterior.mean[0], mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(posterior.precision[0], precision, rtol=1e-10, atol=1e-10)


@PROPERTY
@given(seeds)
def test_information_does_not_depend_on_the_fiducial(seed):
    sets, point = simulate([5, 0, 40], seed), 3 * normals(seed + 1, 2)
    simulator = LinearRegression()
    same_information(simulator.information(sets, point), simulator.information(sets).at(point))


def test_site_is_the_gradient_and_expected_curvature_of_the_log_likelihood():
    simulator, point = LinearRegression(), normals(4, 2)
    values = simulate([6]).values

    def log_likelihood(theta: Tensor, row: Tensor) -> Tensor:
        y, x, variance = row
        return torch.distributions.Normal(theta[0] * x + theta[1], variance.sqrt()).log_prob(y)

    score, fisher_packed = simulator.sites(values, point)
    for i, row in enumerate(values):
        gradient = torch.autograd.functional.jacobian(lambda theta, row=row: log_likelihood(theta, row), point)
        curvature = torch.autograd.functional.hessian(lambda theta, row=row: log_likelihood(theta, row), point)
        close(score[i], gradient)
        close(fisher_packed[i], -curvature[[0, 1, 1], [0, 0, 1]])


def test_laws_of_the_exact_information():
    first, second = simulate([5, 0, 1, 200]), simulate([3, 2, 0, 1], seed=9)
    compress = LinearRegression().information
    check_compress_then_merge(compress, lambda a, b: a + b, first, second, same_information)
    check_permutation_invariance(compress, first, torch.Generator().manual_seed(1), same_information)
    check_batch_of_one(compress, first, same_information)


@pytest.mark.parametrize(
    ("num_data", "num_sets", "chunk", "optimum", "deviations", "tolerance"),
    [(500, 4000, 500, -4.0045, (0.0480, 0.274), 0.004), (10_000, 300, 50, -6.9696, (0.0109, 0.0631), 0.004)],
)
def test_optimal_loss_and_widths_are_those_of_the_specification(
    num_data, num_sets, chunk, optimum, deviations, tolerance
):
    theta, posterior = posteriors(num_data, num_sets, seed=11, chunk=chunk)
    error = (theta - posterior.mean).unsqueeze(-1)
    quadratic = (error.mT @ posterior.precision @ error).flatten()
    half_log_det = 0.5 * torch.linalg.slogdet(posterior.precision)[1]
    loss = 0.5 * quadratic - half_log_det
    assert abs(float(loss.mean()) - optimum) < 4 * float(loss.std()) / math.sqrt(num_sets)
    # the quadratic has mean p = 2 exactly, which leaves only the small spread of the log-determinant
    assert abs(1 - float(half_log_det.mean()) - optimum) < tolerance
    widths = posterior.standard_deviation.mean(0)
    torch.testing.assert_close(widths, torch.tensor(deviations, dtype=torch.float64), rtol=5e-3, atol=0)


def test_posterior_is_calibrated():
    """Whitened errors are standard normal: neither over-confident, nor too wide, nor biased."""
    theta, posterior = posteriors(50, 4000, seed=5, chunk=4000)
    factor = torch.linalg.cholesky(posterior.precision)
    white = (factor.mT @ (theta - posterior.mean).unsqueeze(-1)).squeeze(-1)
    assert float(white.mean(0).abs().max()) < 5 / math.sqrt(4000)
    covariance = white.mT @ white / 4000
    assert float((covariance - torch.eye(2, dtype=torch.float64)).abs().max()) < 5 * math.sqrt(2 / 4000)


def test_score_at_the_truth_has_mean_zero_and_the_fisher_matrix_as_covariance():
    simulator, number = LinearRegression(), 4000
    truth = torch.tensor([1.3, -0.4], dtype=torch.float64)
    sets = simulator(truth.expand(number, 2), torch.full((number,), 30), torch.Generator().manual_seed(2))
    info = simulator.information(sets, truth)
    # given x and sigma the whitened score is standard normal
    white = torch.linalg.solve(torch.linalg.cholesky(info.fisher), info.score.unsqueeze(-1)).squeeze(-1)
    assert float(white.mean(0).abs().max()) < 5 / math.sqrt(number)
    covariance = white.mT @ white / number
    assert float((covariance - torch.eye(2, dtype=torch.float64)).abs().max()) < 5 * math.sqrt(2 / number)


def test_expected_fisher_matrix_is_the_mean_of_the_sites():
    simulator, number = LinearRegression(x_range=(-1.0, 4.0), sigma_range=(0.5, 3.0)), 200_000
    theta = torch.zeros(1, 2, dtype=torch.float64)
    values = simulator(theta, torch.tensor([number]), torch.Generator().manual_seed(3)).values
    _, fisher_packed = simulator.sites(values, theta[0])
    expected = simulator.fisher_per_datum()[[0, 1, 1], [0, 0, 1]]
    allowed = 5 * fisher_packed.std(0) / math.sqrt(number)
    assert bool(((fisher_packed.mean(0) - expected).abs() < allowed).all())


@pytest.mark.parametrize("features", FEATURES)
def test_columns_are_read_back_from_every_kind_of_features(features):
    simulator = LinearRegression(features)
    sets = simulate([40], features=features)
    assert sets.num_features == simulator.num_features
    for got, expected in zip(
        simulator.columns(sets.values), LinearRegression().columns(simulate([40]).values), strict=True
    ):
        close(got, expected)


def test_authors_features_are_the_sufficient_ones():
    y, x, weight, x_weight, y_weight = simulate([40], features="authors").values.unbind(1)
    close(x_weight, x * weight)
    close(y_weight, y * weight)


def test_inputs_and_noise_follow_their_laws():
    y, x, sigma = LinearRegression().columns(
        LinearRegression()(torch.tensor([[2.0, -1.0]]), torch.tensor([50_000]), torch.Generator().manual_seed(4)).values
    )
    assert float(x.min()) >= 0
    assert float(x.max()) <= 10
    assert float(sigma.min()) > 0.999
    assert float(sigma.max()) < 10.001
    assert abs(float(x.mean()) - 5) < 5 * 10 / math.sqrt(12 * 50_000)
    assert abs(float(sigma.mean()) - 5.5) < 5 * 9 / math.sqrt(12 * 50_000)
    noise = ((y - 2 * x + 1) / sigma).double()
    assert abs(float(noise.mean())) < 5 / math.sqrt(50_000)
    assert abs(float(noise.var()) - 1) < 5 * math.sqrt(2 / 50_000)


@pytest.mark.parametrize("features", FEATURES)
def test_like_keeps_inputs_and_noise_levels_and_redraws_responses(features):
    simulator, sets = LinearRegression(features), simulate([30, 0, 5], features=features)
    theta = torch.tensor([[50.0, 0.0], [0.0, 0.0], [0.0, -70.0]], dtype=torch.float64)
    again = simulator.like(sets, theta, torch.Generator().manual_seed(8))
    equal(again.offsets, sets.offsets)
    y, x, sigma = simulator.columns(again.values)
    before, x_before, sigma_before = simulator.columns(sets.values)
    close(x, x_before)
    close(sigma, sigma_before)
    assert not bool((y == before).any())
    residual = y - theta[sets.index, 0] * x - theta[sets.index, 1]
    assert float((residual / sigma).abs().max()) < 5
    equal(simulator.like(sets, theta, torch.Generator().manual_seed(8)).values, again.values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_data_follow_the_dtype_and_device_of_theta_and_answers_are_float64(dtype, device):
    theta = torch.zeros(2, 2, dtype=dtype, device=device)
    generator = torch.Generator(device).manual_seed(0)
    sets = LinearRegression()(theta, torch.tensor([3, 0], device=device), generator)
    assert sets.values.dtype == dtype
    assert sets.device.type == device.type
    assert sets.sizes.tolist() == [3, 0]
    assert LinearRegression().posterior(sets).mean.dtype == torch.float64


def test_set_without_data_gives_the_prior():
    posterior = LinearRegression().posterior(simulate([0, 3, 0]))
    equal(posterior.mean[0], torch.zeros(2, dtype=torch.float64))
    equal(posterior.precision[2], torch.eye(2, dtype=torch.float64))


def test_draws_repeat_with_the_generator():
    same_seed, other_seed = simulate([20], seed=3), simulate([20], seed=4)
    equal(simulate([20], seed=3).values, same_seed.values)
    assert not torch.equal(other_seed.values, same_seed.values)


def test_what_cannot_be_simulated_is_refused():
    with pytest.raises(ConfigError, match='`features` is "raw" but "paper", "log" or "authors" was expected'):
        LinearRegression("raw")  # type: ignore[arg-type]
    simulator = LinearRegression()
    with pytest.raises(ShapeError, match=r"`theta` has shape \(4, 3\) but \(\.\.\., 2\) was expected"):
        simulator(torch.zeros(4, 3), torch.ones(4, dtype=torch.int64))
    with pytest.raises(ShapeError, match=r"`theta` has shape \(4, 2\) and `size` \(3,\) but \(B, 2\) and \(B,\) were"):
        simulator(torch.zeros(4, 2), torch.ones(3, dtype=torch.int64))
    with pytest.raises(ShapeError, match=r"`theta` has shape \(2,\) and `size` \(2,\) but"):
        simulator(torch.zeros(2), torch.ones(2, dtype=torch.int64))
    with pytest.raises(ShapeError, match=r"`theta` has shape \(1, 2\) but one row per set, \(2, 2\), was expected"):
        simulator.like(simulate([1, 2]), torch.zeros(1, 2))
    with pytest.raises(ShapeError, match=r"`values` has shape \(4, 3\) but \(\.\.\., 5\) was expected"):
        LinearRegression("authors").columns(torch.zeros(4, 3))
