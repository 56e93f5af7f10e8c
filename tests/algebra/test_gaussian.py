"""The Gaussian posterior and the training loss, against torch's own density and direct formulas."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.laws import close
from tests.strategies import PROPERTY, conditions, gradcheck, normals, num_params, positive_definite, seeds
from torch.distributions import MultivariateNormal

from fishnets.algebra import Gaussian, gaussian_loss
from fishnets.errors import NotPositiveDefiniteError, ShapeError

batches = st.lists(st.integers(1, 3), max_size=2)


@PROPERTY
@given(batches, num_params, seeds, conditions)
def test_log_prob_is_that_of_torch(batch, p, seed, condition):
    mean, precision = normals(seed, *batch, p), positive_definite(seed + 1, *batch, p, condition=condition)
    theta = normals(seed + 2, 4, *batch, p)
    expected = MultivariateNormal(mean, precision_matrix=precision).log_prob(theta)
    close(Gaussian(mean, precision).log_prob(theta), expected)


@PROPERTY
@given(num_params, seeds, conditions)
def test_covariance_and_standard_deviation_invert_the_precision(p, seed, condition):
    precision = positive_definite(seed, 3, p, condition=condition)
    gaussian = Gaussian(normals(seed + 1, 3, p), precision)
    inverse = torch.linalg.inv(precision)
    close(gaussian.covariance, inverse)
    close(gaussian.standard_deviation, inverse.diagonal(dim1=-2, dim2=-1).sqrt())


@pytest.mark.parametrize("p", [1, 2, 4])
def test_samples_have_the_stated_moments(p):
    number = 20_000
    precision = positive_definite(p, 2, p, condition=30.0)
    gaussian = Gaussian(normals(p + 1, 2, p), precision)
    samples = gaussian.sample(number, torch.Generator().manual_seed(7))
    assert samples.shape == (number, 2, p)
    # whitened by the independent covariance, the samples are standard normal: 5 standard errors are allowed
    root = torch.linalg.cholesky(torch.linalg.inv(precision))
    white = torch.linalg.solve(root, (samples - gaussian.mean).unsqueeze(-1)).squeeze(-1)
    assert float(white.mean(0).abs().max()) < 5 / math.sqrt(number)
    for b in range(2):
        covariance = white[:, b].mT @ white[:, b] / number
        assert float((covariance - torch.eye(p, dtype=torch.float64)).abs().max()) < 5 * math.sqrt(2 / number)


def test_samples_repeat_with_the_generator_and_follow_dtype_and_device(device, dtype):
    precision = torch.eye(2, dtype=dtype, device=device).expand(3, 2, 2)
    gaussian = Gaussian(torch.zeros(3, 2, dtype=dtype, device=device), precision)
    first, second = (gaussian.sample(5, torch.Generator(device).manual_seed(1)) for _ in range(2))
    assert torch.equal(first, second)
    assert first.dtype == dtype
    assert first.device.type == device.type


@PROPERTY
@given(batches, num_params, seeds, conditions)
def test_loss_is_the_direct_formula_with_inverse_and_slogdet(batch, p, seed, condition):
    score, offset = normals(seed, *batch, p), normals(seed + 1, *batch, p)
    precision = positive_definite(seed + 2, *batch, p, condition=condition)
    error = offset - (torch.linalg.inv(precision) @ score.unsqueeze(-1)).squeeze(-1)
    quadratic = (error.unsqueeze(-2) @ precision @ error.unsqueeze(-1)).squeeze(-1).squeeze(-1)
    close(gaussian_loss(score, precision, offset), 0.5 * quadratic - 0.5 * torch.linalg.slogdet(precision)[1])


@PROPERTY
@given(num_params, seeds)
def test_loss_is_the_negative_log_posterior_without_its_constant(p, seed):
    score, theta, fiducial = normals(seed, 3, p), normals(seed + 1, 3, p), normals(seed + 2, p)
    precision = positive_definite(seed + 3, 3, p)
    posterior = Gaussian(fiducial + torch.linalg.solve(precision, score), precision)
    constant = 0.5 * p * math.log(2 * math.pi)
    close(gaussian_loss(score, precision, theta - fiducial), -posterior.log_prob(theta) - constant)


def test_loss_is_lowest_at_the_mean_and_equals_minus_half_the_log_determinant_there():
    precision, score = positive_definite(0, 3), normals(1, 3)
    mean = torch.linalg.solve(precision, score)
    lowest = gaussian_loss(score, precision, mean)
    close(lowest, -0.5 * torch.linalg.slogdet(precision)[1])
    assert bool((gaussian_loss(score, precision, mean + normals(2, 50, 3)) > lowest).all())


def test_gradient_of_the_loss_and_of_the_density():
    precision, score, offset = positive_definite(0, 2, 3), normals(1, 2, 3), normals(2, 2, 3)
    gradcheck(lambda t, m, u: gaussian_loss(t, m + m.mT, u), score, precision, offset)
    gradcheck(lambda mean, m, x: Gaussian(mean, m + m.mT).log_prob(x), score, precision, offset)


@pytest.mark.parametrize(
    "bad",
    [
        [[1.0, 2.0], [2.0, 1.0]],
        [[-1.0, 0.0], [0.0, 1.0]],
        [[0.0, 0.0], [0.0, 0.0]],
        [[math.nan, 0.0], [0.0, 1.0]],
    ],
)
def test_loss_of_a_matrix_that_is_not_positive_definite_is_not_finite_and_leaves_the_others_alone(bad):
    precision = torch.stack([torch.tensor(bad, dtype=torch.float64), torch.eye(2, dtype=torch.float64)])
    loss = gaussian_loss(torch.ones(2, 2, dtype=torch.float64), precision, torch.zeros(2, 2, dtype=torch.float64))
    assert not math.isfinite(loss[0])
    close(loss[1], torch.tensor(1.0, dtype=torch.float64))


def test_density_of_a_matrix_that_is_not_positive_definite_is_refused_by_name():
    gaussian = Gaussian(torch.zeros(2, 2), torch.stack([torch.eye(2), -torch.eye(2)]))
    for use in (lambda: gaussian.log_prob(torch.zeros(2)), lambda: gaussian.sample(3), lambda: gaussian.covariance):
        with pytest.raises(NotPositiveDefiniteError, match="`precision` is indefinite or singular at batch element 1"):
            use()


@pytest.mark.parametrize(("mean", "precision"), [((3,), (3,)), ((3,), (2, 3)), ((3,), (2, 2)), ((), ())])
def test_mean_and_precision_must_fit(mean, precision):
    with pytest.raises(ShapeError, match=r"`precision` has shape .* was expected"):
        Gaussian(torch.zeros(mean), torch.zeros(precision))


def test_parameters_of_another_width_are_refused():
    with pytest.raises(ShapeError, match=r"`theta` has shape \(3,\) but \(\.\.\., 2\) was expected"):
        Gaussian(torch.zeros(2), torch.eye(2)).log_prob(torch.zeros(3))
    with pytest.raises(ShapeError, match=r"`score` has shape \(3,\) but \(\.\.\., 2\) was expected"):
        gaussian_loss(torch.zeros(3), torch.eye(2), torch.zeros(2))
    with pytest.raises(ShapeError, match=r"`offset` has shape \(1,\) but \(\.\.\., 2\) was expected"):
        gaussian_loss(torch.zeros(2), torch.eye(2), torch.zeros(1))
