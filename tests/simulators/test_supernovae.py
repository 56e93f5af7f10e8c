"""Supernovae: moduli against closed forms, answers against autograd and plain sums, and the fit of a real survey."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.laws import check_batch_of_one, check_permutation_invariance, check_printing, close, equal
from tests.strategies import normals
from torch import Tensor

from fishnets.errors import DataError, ShapeError
from fishnets.ragged import Sets
from fishnets.simulators import Supernovae

UNION = Path("supernovae", "SCPUnion2.1_mu_vs_z.txt")
LAMBDA, FREE = Supernovae(), Supernovae(dark_energy=True)
both = pytest.mark.parametrize("simulator", [LAMBDA, FREE], ids=["lambda", "free"])
HUBBLE_DISTANCE = 299_792.458 / 70


def point(simulator: Supernovae, omega_m: float = 0.3, w: float = -1.0, offset: float = 0.0) -> Tensor:
    values = [omega_m, w, offset] if simulator.dark_energy else [omega_m, offset]
    return torch.tensor(values, dtype=torch.float64)


def simulate(
    simulator: Supernovae, sizes: list[int], seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Sets, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    theta = simulator.prior.sample(len(sizes), generator).to(dtype)
    return simulator(theta, torch.tensor(sizes, dtype=torch.int64), generator), theta


def plain_modulus(z: Tensor, omega_m: Tensor, w: Tensor, offset: Tensor, nodes: int = 200) -> Tensor:
    """The modulus as it is defined: an integral over redshift, with many nodes; all arguments broadcast."""
    x, weights = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(nodes))
    path = 0.5 * z.unsqueeze(-1) * (x + 1)
    omega_m, w = omega_m.unsqueeze(-1), w.unsqueeze(-1)
    rate = torch.sqrt(omega_m * (1 + path) ** 3 + (1 - omega_m) * (1 + path) ** (3 * (1 + w)))
    distance = (1 + z) * HUBBLE_DISTANCE * 0.5 * z * (weights / rate).sum(-1)
    return 5 * torch.log10(distance * 1e6 / 10) + offset


def universe(simulator: Supernovae, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Matter density, equation of state and offset of one point (p,)."""
    return theta[0], theta[1] if simulator.dark_energy else torch.full_like(theta[0], -1.0), theta[-1]


def plain_log_likelihood(simulator: Supernovae, rows: Tensor, theta: Tensor) -> Tensor:
    """Log-likelihood of one set at one point (p,), from the table's columns."""
    z, mu, sigma = simulator.columns(rows)
    return torch.distributions.Normal(plain_modulus(z, *universe(simulator, theta)), sigma).log_prob(mu).sum()


def brute_force(simulator: Supernovae, sets: Sets, nodes: int = 80) -> tuple[Tensor, Tensor]:
    """Posterior mean and covariance by Gauss-Legendre sums over the whole box; the offset takes three times as many."""
    prior = simulator.prior
    axes, weights = [], []
    numbers = [nodes] * (simulator.num_params - 1) + [3 * nodes]
    for low, high, number in zip(prior.low, prior.high, numbers, strict=True):
        x, weight = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(number))
        axes.append(low + 0.5 * (high - low) * (x + 1))
        weights.append(weight)
    z, mu, sigma = (column.unsqueeze(1) for column in simulator.columns(sets.values))
    universes = torch.cartesian_prod(*axes[:-1]).reshape(-1, simulator.num_params - 1)
    w = universes[:, -1] if simulator.dark_energy else torch.tensor(-1.0, dtype=torch.float64)
    residual = mu - plain_modulus(z, universes[:, 0], w, torch.zeros((), dtype=torch.float64), nodes=30)  # (n, G)
    pull, weight = (residual / sigma**2).sum(0).unsqueeze(1), (1 / sigma**2).sum()
    log_density = axes[-1] * pull - 0.5 * weight * axes[-1] ** 2 - 0.5 * (residual / sigma).square().sum(0).unsqueeze(1)
    shares = torch.cartesian_prod(*weights).reshape(-1, simulator.num_params).prod(1)
    mass = torch.exp(log_density - log_density.max()).flatten() * shares
    points = torch.cartesian_prod(*axes)
    return mass @ points / mass.sum(), torch.cov(points.mT, aweights=mass, correction=0)


@pytest.fixture(scope="module")
def union() -> np.ndarray:
    """Redshift, modulus and error of the 580 supernovae of Union2.1, shape (580, 3)."""
    root = Path(__file__).parents[2]
    folders = [Path(os.environ["FISHNETS_DATA"])] if "FISHNETS_DATA" in os.environ else []
    for folder in [*folders, root.parent / "shared" / "datasets"]:
        if (folder / UNION).is_file():
            return np.loadtxt(folder / UNION, usecols=(1, 2, 3))
    pytest.skip(f"needs the Union2.1 table; set FISHNETS_DATA to the folder that holds {UNION}")


def test_modulus_is_the_closed_form_where_there_is_one():
    z = torch.logspace(math.log10(0.005), math.log10(2.5), 60, dtype=torch.float64)
    matter, empty = 2 * (1 - (1 + z).rsqrt()), z  # Einstein-de Sitter, de Sitter
    for omega_m, distance in ((1.0, matter), (0.0, empty)):
        expected = 5 * torch.log10((1 + z) * HUBBLE_DISTANCE * distance) + 25 + 0.2
        for simulator in (LAMBDA, FREE):
            given = simulator.modulus(z, point(simulator, omega_m, offset=0.2))
            torch.testing.assert_close(given, expected, rtol=0, atol=1e-9)


def test_modulus_is_the_integral_over_redshift():
    z = torch.logspace(math.log10(0.005), math.log10(2.5), 40, dtype=torch.float64)
    theta = FREE.prior.sample(50, torch.Generator().manual_seed(0))
    theta[:5, 1], theta[:10, 0] = -2.0, torch.linspace(0, 0.1, 10, dtype=torch.float64)
    for given_theta in theta:
        expected = plain_modulus(z, *given_theta)
        torch.testing.assert_close(FREE.modulus(z, given_theta), expected, rtol=0, atol=1e-9)
        single = FREE.modulus(z.float(), given_theta.float()).double()
        torch.testing.assert_close(single, expected, rtol=0, atol=2e-5)  # the spacing of float32 there is 4e-6


def test_modulus_is_that_of_an_adaptive_quadrature():
    integrate = pytest.importorskip("scipy.integrate")
    for z, omega_m, w in ((0.015, 0.28, -1.03), (1.414, 0.05, -1.9), (2.5, 0.9, -0.45)):
        rate = lambda x, m=omega_m, w=w: (m * (1 + x) ** 3 + (1 - m) * (1 + x) ** (3 * (1 + w))) ** -0.5  # noqa: E731
        distance = (1 + z) * HUBBLE_DISTANCE * integrate.quad(rate, 0, z, epsabs=0, epsrel=1e-12)[0]
        given = FREE.modulus(torch.tensor([z], dtype=torch.float64), point(FREE, omega_m, w))
        assert float(given) == pytest.approx(5 * math.log10(distance) + 25, abs=1e-9)


@both
def test_likelihood_is_the_density_and_the_score_its_gradient(simulator):
    sets, _ = simulate(simulator, [5, 0, 1, 40, 300])
    for seed in range(3):
        theta = simulator.prior.sample(len(sets), torch.Generator().manual_seed(seed)).requires_grad_()
        expected = torch.stack(
            [plain_log_likelihood(simulator, rows, at) for rows, at in zip(sets.to_list(), theta, strict=True)]
        )
        torch.testing.assert_close(simulator.log_likelihood(sets, theta), expected, rtol=1e-9, atol=1e-8)
        (gradient,) = torch.autograd.grad(expected.sum(), theta)
        torch.testing.assert_close(simulator.score(sets, theta.detach()), gradient, rtol=1e-8, atol=1e-8)


@both
def test_fisher_matrix_is_the_sum_of_squared_slopes(simulator):
    sets, theta = simulate(simulator, [7, 1, 60])
    fisher = simulator.fisher(sets, theta)
    for rows, at, given in zip(sets.to_list(), theta, fisher, strict=True):
        z, _, sigma = simulator.columns(rows)
        slopes = torch.autograd.functional.jacobian(lambda at, z=z: plain_modulus(z, *universe(simulator, at)), at)
        close(given, (slopes / sigma.unsqueeze(1)).mT @ (slopes / sigma.unsqueeze(1)))


@both
def test_score_has_mean_zero_and_the_fisher_matrix_as_covariance(simulator):
    number, truth = 4_000, point(simulator, 0.35, -1.2, 0.1)
    sets = simulator(truth.expand(number, -1), torch.full((number,), 30), torch.Generator().manual_seed(2))
    theta = truth.expand(number, -1)
    factor = torch.linalg.cholesky(simulator.fisher(sets, theta))
    white = torch.linalg.solve_triangular(factor, simulator.score(sets, theta).unsqueeze(-1), upper=False).squeeze(-1)
    # given redshifts and errors the whitened score is standard normal
    assert float(white.mean(0).abs().max()) < 5 / math.sqrt(number)
    excess = white.mT @ white / number - torch.eye(simulator.num_params, dtype=torch.float64)
    assert float(excess.abs().max()) < 5 * math.sqrt(2 / number)


@both
@pytest.mark.parametrize("shift", [0.0, 0.6], ids=["inside", "offset beyond the prior"])
def test_posterior_is_the_integral_over_the_box(simulator, shift):
    theta = point(simulator, 0.4, -0.9).unsqueeze(0)
    sets = simulator(theta, torch.tensor([40]), torch.Generator().manual_seed(5))
    sets = Sets(sets.values + torch.tensor([shift, 0.0, 0.0], dtype=torch.float64), sets.offsets)
    posterior, (mean, covariance) = simulator.posterior(sets, points=121), brute_force(simulator, sets)
    spread = covariance.diagonal().sqrt()
    assert float(((posterior.mean - mean) / spread).abs().max()) < 1e-4
    assert float(((posterior.covariance - covariance) / torch.outer(spread, spread)).abs().max()) < 5e-4


@both
def test_posterior_does_not_depend_on_the_grid(simulator):
    sets, _ = simulate(simulator, [400], seed=4)
    coarse, fine = (simulator.posterior(sets, points) for points in (81, 161))
    spread = fine.covariance.diagonal().sqrt()
    assert float(((coarse.mean - fine.mean) / spread).abs().max()) < 1e-4
    assert float(((coarse.covariance - fine.covariance) / torch.outer(spread, spread)).abs().max()) < 5e-4


@both
def test_posterior_of_a_large_set_is_the_normal_one_about_the_truth(simulator):
    truth = point(simulator, 0.3, -1.1, 0.05).unsqueeze(0)
    sets = simulator(truth, torch.tensor([200_000]), torch.Generator().manual_seed(6))
    posterior = simulator.posterior(sets)
    score, fisher = simulator.score(sets, truth)[0], simulator.fisher(sets, truth)[0]
    covariance = torch.linalg.inv(fisher)
    spread = covariance.diagonal().sqrt()
    assert float(((posterior.mean - truth[0] - covariance @ score) / spread).abs().max()) < 0.2
    assert float((posterior.covariance / covariance - 1).abs().max()) < 0.1


@both
def test_posterior_covers_the_truth(simulator):
    sets, theta = simulate(simulator, [200] * 100, seed=8)
    distances = []
    for i, truth in enumerate(theta):
        posterior = simulator.posterior(sets[i : i + 1], points=41)
        error = truth - posterior.mean
        distances.append(float(error @ torch.linalg.solve(posterior.covariance, error)))
    # under the posterior the squared distance has mean p whatever its shape
    assert abs(np.mean(distances) - simulator.num_params) < 4 * np.std(distances) / 10


@both
def test_set_without_data_gives_the_prior(simulator):
    sets, theta = simulate(simulator, [0])
    posterior = simulator.posterior(sets)
    close(posterior.mean, simulator.prior.mean)
    torch.testing.assert_close(posterior.covariance, simulator.prior.covariance, rtol=1e-6, atol=1e-12)
    equal(simulator.log_likelihood(sets, theta), torch.zeros(1, dtype=torch.float64))
    equal(simulator.score(sets, theta), torch.zeros_like(theta))
    equal(simulator.fisher(sets, theta), torch.zeros(1, *simulator.prior.covariance.shape, dtype=torch.float64))
    assert simulator.like(sets, theta).num_data == 0


def test_union_gives_the_published_matter_density(union):
    posterior = LAMBDA.posterior(Sets.from_list([LAMBDA.pack(*union.T)]))
    mean, spread = float(posterior.mean[0]), float(posterior.covariance[0, 0].sqrt())
    assert mean == pytest.approx(0.279, abs=0.002)
    assert spread == pytest.approx(0.020, abs=0.001)

    # the same from plain sums on a grid, with the offset free of bounds and integrated out
    z, mu, sigma = (torch.from_numpy(column.copy()).unsqueeze(1) for column in union.T)
    omega_m, zero = torch.linspace(0.1, 0.5, 401, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    residual, weight = mu - plain_modulus(z, omega_m, zero - 1, zero, nodes=30), sigma**-2
    chi_square = (residual**2 * weight).sum(0) - (residual * weight).sum(0) ** 2 / weight.sum()
    mass = torch.softmax(-0.5 * chi_square, dim=0)
    assert mean == pytest.approx(float(mass @ omega_m), abs=1e-6)
    assert spread == pytest.approx(float(torch.cov(omega_m, aweights=mass, correction=0).sqrt()), abs=1e-6)


def test_union_agrees_with_a_cosmological_constant(union):
    posterior = FREE.posterior(Sets.from_list([FREE.pack(*union.T)]))
    spread = posterior.covariance.diagonal().sqrt()
    torch.testing.assert_close(posterior.mean, torch.tensor([0.275, -1.03, 0.0]).double(), rtol=0, atol=0.005)
    torch.testing.assert_close(spread, torch.tensor([0.077, 0.203, 0.0146]).double(), rtol=0.01, atol=0)


def summaries(log_z: np.ndarray, log_sigma: np.ndarray) -> np.ndarray:
    """What tells surveys apart: quantiles of redshift and error, nearby share, growth of errors, total weight."""
    z, steps = np.exp(log_z), [0.05, 0.25, 0.5, 0.75, 0.95, 1.0]
    x, y = (a - a.mean(-1, keepdims=True) for a in (np.log1p(z), log_sigma))
    single = [(z < 0.1).mean(-1), (x * y).sum(-1) / (x * x).sum(-1), y.std(-1), np.exp(-2 * log_sigma).sum(-1)]
    return np.stack([*np.quantile(z, steps, axis=-1), *np.quantile(log_sigma, [0.0, *steps], axis=-1), *single])


def test_union_lies_well_inside_the_law_of_the_surveys(union):
    rows = LAMBDA.pack(*union.T).numpy()
    values = simulate(LAMBDA, [580] * 500)[0].values.reshape(500, 580, 3).numpy()
    surveys, real = summaries(values[..., 1], values[..., 2]), summaries(rows[:, 1], rows[:, 2])
    share = (real > surveys.T).mean(0)
    assert share.min() > 0.1
    assert share.max() < 0.9
    # jointly: a cell of 0.3 in ln z and ln sigma about any supernova holds many of the simulated ones
    cloud = values[::5].reshape(-1, 3)
    inside = [(np.abs(cloud[:, 1:] - row[1:]) < 0.15).all(1).mean() for row in rows]
    assert min(inside) > 1e-3


@both
def test_surveys_differ_and_keep_to_their_ranges(simulator):
    sets, _ = simulate(simulator, [200] * 300, seed=1, dtype=torch.float32)
    z, _, sigma = (column.reshape(300, 200) for column in simulator.columns(sets.values))
    assert float(z.min()) > 0.01 - 1e-6
    assert float(z.max()) < 2 + 1e-5
    assert float(sigma.min()) > 0.05 - 1e-6
    assert float(sigma.max()) < 1.5 + 1e-5
    depth, typical = z.max(1).values, sigma.median(1).values
    assert float(depth.quantile(0.1)) < 0.45
    assert float(depth.quantile(0.9)) > 1.3
    assert float(typical.quantile(0.1)) < 0.13
    assert float(typical.quantile(0.9)) > 0.4


@both
def test_moduli_scatter_about_the_universe_of_their_set_by_their_errors(simulator):
    sets, theta = simulate(simulator, [3_000] * 20, seed=3)
    z, mu, sigma = simulator.columns(sets.values)
    white = (mu - simulator.modulus(z, theta[sets.index])) / sigma
    assert abs(float(white.mean())) < 5 / math.sqrt(len(white))
    assert abs(float(white.var()) - 1) < 5 * math.sqrt(2 / len(white))


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_like_keeps_redshifts_and_errors_and_redraws_moduli(simulator, dtype):
    sets, theta = simulate(simulator, [300, 0, 5], dtype=dtype)
    again = simulator.like(sets, theta.double(), torch.Generator().manual_seed(8))
    equal(again.offsets, sets.offsets)
    equal(again.values[:, 1:], sets.values[:, 1:])
    assert again.values.dtype == dtype
    assert not bool((again.values[:, 0] == sets.values[:, 0]).any())
    z, mu, sigma = simulator.columns(again.values)
    assert float(((mu - simulator.modulus(z, theta[sets.index])) / sigma).abs().max()) < 5
    equal(simulator.like(sets, theta, torch.Generator().manual_seed(8)).values, again.values)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_table_is_read_back_from_its_rows(dtype, tolerance):
    z = torch.logspace(-2, math.log10(2), 50, dtype=torch.float64)
    sigma = torch.logspace(math.log10(0.05), math.log10(1.5), 50, dtype=torch.float64).flip(0)
    mu = LAMBDA.modulus(z, point(LAMBDA, 0.2, offset=0.1)) + sigma * normals(0, 50)
    values = LAMBDA.pack(z.to(dtype), mu.to(dtype), sigma.to(dtype))
    assert values.dtype == dtype
    assert values.shape == (50, LAMBDA.num_features)
    for given, expected in zip(LAMBDA.columns(values), (z, mu, sigma), strict=True):
        torch.testing.assert_close(given.double(), expected, rtol=tolerance, atol=0)
    arrays = FREE.pack(z.numpy(), mu.numpy(), sigma.numpy())
    equal(arrays, FREE.pack(z, mu, sigma))


def test_rows_of_the_reference_universe_have_no_residual():
    z = torch.tensor([0.02, 0.5, 1.9], dtype=torch.float64)
    values = LAMBDA.pack(z, LAMBDA.modulus(z, point(LAMBDA)), torch.full_like(z, 0.2))
    close(values[:, 0], torch.zeros(3, dtype=torch.float64))
    close(values[:, 1:].exp(), torch.stack([z, torch.full_like(z, 0.2)], dim=1))


@both
def test_laws_of_the_exact_answers(simulator):
    sets, _ = simulate(simulator, [5, 0, 1, 200])
    at = point(simulator, 0.4, -1.3, 0.1)
    for answer in (simulator.score, simulator.log_likelihood, simulator.fisher):

        def compress(x: Sets, answer=answer) -> Tensor:
            return answer(x, at.expand(len(x), -1))

        check_batch_of_one(compress, sets, close)
        check_permutation_invariance(compress, sets, torch.Generator().manual_seed(1), close)
    check_printing(simulator, f"dark_energy={simulator.dark_energy}")


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_data_follow_theta_and_answers_are_float64(simulator, dtype, device):
    theta = point(simulator).to(device=device, dtype=dtype).expand(3, -1)
    generator = torch.Generator(device).manual_seed(0)
    sets = simulator(theta, torch.tensor([3, 0, 20], device=device), generator)
    assert (sets.values.dtype, sets.device.type, sets.sizes.tolist()) == (dtype, device.type, [3, 0, 20])
    for answer in (simulator.score, simulator.log_likelihood, simulator.fisher):
        assert answer(sets, theta).dtype == torch.float64
    assert simulator.posterior(sets[:1]).covariance.dtype == torch.float64


def test_draws_repeat_with_the_generator():
    equal(simulate(FREE, [20], seed=3)[0].values, simulate(FREE, [20], seed=3)[0].values)
    assert not torch.equal(simulate(FREE, [20], seed=3)[0].values, simulate(FREE, [20], seed=4)[0].values)


@both
def test_wrong_shapes_are_refused(simulator):
    p = simulator.num_params
    sets, theta = simulate(simulator, [2, 3])
    with pytest.raises(ShapeError, match=rf"`theta` has shape \(4, 5\) but \(\.\.\., {p}\) was expected"):
        simulator(torch.ones(4, 5), torch.ones(4, dtype=torch.int64))
    with pytest.raises(ShapeError, match=rf"and `size` \(2,\) but \(B, {p}\) and \(B,\) were expected"):
        simulator(theta[:1], torch.tensor([1, 2]))
    for answer in (simulator.like, simulator.score, simulator.log_likelihood, simulator.fisher):
        with pytest.raises(ShapeError, match=rf"`theta` has shape \(1, {p}\) but one row per set, \(2, {p}\), was"):
            answer(sets, theta[:1])
    with pytest.raises(ShapeError, match="One set was expected but 2 were given; take them one by one"):
        simulator.posterior(sets)
    with pytest.raises(ShapeError, match=r"`values` has shape \(4, 2\) but \(\.\.\., 3\) was expected"):
        simulator.columns(torch.zeros(4, 2))
    with pytest.raises(ShapeError, match=r"`z` \(2,\), `mu` \(3,\), `sigma` \(2,\) but one and the same \(n,\) was"):
        simulator.pack([0.1, 0.2], [38.0, 39.0, 40.0], [0.1, 0.1])


@both
def test_impossible_universes_and_tables_are_refused(simulator):
    sets, theta = simulate(simulator, [2, 3])
    for column, bad in ((0, -0.1), (-1, math.nan)):
        wrong = theta.clone()
        wrong[1, column] = bad
        refused = r"The matter density, `theta\[:, 0\]`, must not be negative, .* but rows 1 are not so; row 1 is \["
        for answer in (simulator.like, simulator.score, simulator.log_likelihood, simulator.fisher):
            with pytest.raises(DataError, match=refused):
                answer(sets, wrong)
        with pytest.raises(DataError, match=refused):
            simulator(wrong, torch.tensor([1, 1]))
    refused = r"1 of 2 supernovae are impossible: rows 1; row 1 has \(z, mu, sigma\) = \(0.2, 40, -0.1\), and finite"
    with pytest.raises(DataError, match=refused):
        simulator.pack([0.1, 0.2], [38.0, 40.0], [0.1, -0.1])
    with pytest.raises(DataError, match="1 of 2 supernovae are impossible: rows 0"):
        simulator.pack([0.0, 0.2], [38.0, 40.0], [0.1, 0.1])
    with pytest.raises(DataError, match="1 of 2 supernovae are impossible: rows 0"):
        simulator.pack([0.1, 0.2], [math.inf, 40.0], [0.1, 0.1])


@pytest.mark.gpu
@both
def test_draws_and_answers_on_a_gpu(simulator, device):
    theta = point(simulator, 0.3, -1.2).to(device=device, dtype=torch.float32).expand(2, -1)
    sets = simulator(theta, torch.tensor([500, 700], device=device), torch.Generator(device).manual_seed(0))
    for answer in (simulator.score, simulator.log_likelihood, simulator.fisher):
        torch.testing.assert_close(answer(sets, theta).cpu(), answer(sets.to("cpu"), theta.cpu()), rtol=1e-8, atol=1e-6)
    there, here = simulator.posterior(sets[:1]), simulator.posterior(sets[:1].to("cpu"))
    torch.testing.assert_close(there.covariance.cpu(), here.covariance, rtol=1e-8, atol=1e-12)
