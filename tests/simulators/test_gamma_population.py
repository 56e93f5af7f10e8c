"""The gamma population: draws against their law, exact answers against independent sums and known values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fishnets.errors import ConfigError, DataError, ShapeError, SupportError
from fishnets.ragged import Sets
from fishnets.simulators import GammaPopulation

scipy_stats = pytest.importorskip("scipy.stats")

TARGETS = [(5.1, 0.82), (3.0, 0.5), (2.0, 0.8), (8.0, 1.0)]
# Fisher matrices of 500 data from an independent quadrature (scipy densities, 4,001 nodes, central differences)
FISHER = [(116.95, -66.28, 323.8), (335.1, -167.6, 879.7), (340.3, -120.0, 309.2), (55.8, -35.7, 193.6)]
CENSORED = [(0.1022, 0.0664), (0.0630, 0.0397), (0.0693, 0.0643), (0.1430, 0.0799)]  # standard deviations at n = 500
ACCEPTANCE = [0.956, 0.795, 0.558, 0.997]


def point(theta: tuple[float, float]) -> Tensor:
    return torch.tensor(theta, dtype=torch.float64)


def simulate(theta: tuple[float, float], size: int, seed: int = 0, **options: object) -> Sets:
    simulator = GammaPopulation(**options)  # type: ignore[arg-type]
    return simulator(point(theta)[None], torch.tensor([size]), torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("theta", "fisher"), list(zip(TARGETS, FISHER, strict=True)))
def test_fisher_matrix_is_the_known_one(theta, fisher):
    given = 500 * GammaPopulation().fisher_per_datum(point(theta))
    torch.testing.assert_close(given[[0, 0, 1], [0, 1, 1]], torch.tensor(fisher).double(), rtol=5e-3, atol=0.2)


@pytest.mark.parametrize(("theta", "spread", "share"), list(zip(TARGETS, CENSORED, ACCEPTANCE, strict=True)))
def test_censored_fisher_matrix_and_acceptance_are_the_known_ones(theta, spread, share):
    simulator = GammaPopulation(threshold=25)
    fisher = 500 * simulator.fisher_per_datum(point(theta))
    torch.testing.assert_close(
        torch.linalg.inv(fisher).diagonal().sqrt(), torch.tensor(spread).double(), rtol=5e-3, atol=1e-4
    )
    assert float(simulator.acceptance(point(theta))) == pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize("theta", [(5.1, 0.82), (0.6, 1.4), (9.9, 0.11)])
def test_likelihood_is_the_integral_over_the_latent_decay_time(theta):
    sets = simulate(theta, 6)
    time, count = (column.numpy() for column in GammaPopulation().columns(sets.values))
    shape, scale = theta[0] / theta[1], theta[1]
    import numpy as np
    from scipy.integrate import quad

    total = 0.0
    for t, s in zip(time, count, strict=True):
        # in ln γ and in pieces, so that a narrow integrand is not missed
        def integrand(x, t=t, s=s):
            g = np.exp(x)
            return scipy_stats.poisson.pmf(s, 500 * np.exp(-t / g)) * scipy_stats.gamma.pdf(g, shape, scale=scale) * g

        total += np.log(sum(quad(integrand, a, a + 0.25, epsabs=0)[0] for a in np.arange(-50, 5, 0.25)))
    given = GammaPopulation().log_likelihood(sets, point(theta)[None])
    assert float(given) == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("threshold", [None, 25])
@pytest.mark.parametrize("theta", [(5.0, 0.8), (0.7, 1.2)])
def test_score_is_the_gradient_of_the_likelihood(theta, threshold):
    sets = simulate((2.0, 0.8), 40, threshold=threshold)
    simulator, at = GammaPopulation(threshold), point(theta)
    log_likelihood, score = simulator.per_datum(sets.values, at)
    torch.testing.assert_close(log_likelihood.sum()[None], simulator.log_likelihood(sets, at[None]))
    for i, direction in enumerate(1e-5 * torch.eye(2, dtype=torch.float64)):
        ahead, behind = (simulator.log_likelihood(sets, (at + sign * direction)[None]) for sign in (1, -1))
        assert float(score[:, i].sum()) == pytest.approx(float(ahead - behind) / 2e-5, rel=1e-5, abs=1e-4)
    torch.testing.assert_close(simulator.score(sets, at[None])[0], score.sum(0))


@pytest.mark.parametrize("threshold", [None, 25])
def test_score_has_mean_zero_and_the_fisher_matrix_as_covariance(threshold):
    theta = (2.0, 0.8)
    sets = simulate(theta, 40_000, seed=3, threshold=threshold)
    simulator = GammaPopulation(threshold)
    _, score = simulator.per_datum(sets.values, point(theta))
    fisher = simulator.fisher_per_datum(point(theta))
    error = (fisher.diagonal() / len(score)).sqrt()
    assert bool((score.mean(0).abs() < 4 * error).all())
    torch.testing.assert_close(score.mT.cov(), fisher, rtol=0.04, atol=0.01)


def test_posterior_covers_the_truth_and_narrows_with_the_data():
    spreads = []
    for size in (200, 3_200):
        posterior = GammaPopulation().posterior(simulate((5.1, 0.82), size, seed=1))
        spread = posterior.covariance.diagonal().sqrt()
        assert bool(((posterior.mean - point((5.1, 0.82))).abs() < 4 * spread).all())
        spreads.append(spread)
    torch.testing.assert_close(spreads[0] / spreads[1], torch.full((2,), 4.0).double(), rtol=0.15, atol=0)


@pytest.mark.parametrize("threshold", [None, 25])
def test_posterior_does_not_depend_on_the_grid(threshold):
    sets = simulate((0.7, 1.3), 60, threshold=threshold)
    coarse, fine = (GammaPopulation(threshold).posterior(sets, points) for points in (41, 121))
    torch.testing.assert_close(coarse.mean, fine.mean, rtol=5e-4, atol=0)
    torch.testing.assert_close(coarse.covariance, fine.covariance, rtol=2e-3, atol=1e-6)


def test_members_are_independent_draws():
    sets = simulate((0.6, 0.8), 20_000, threshold=25)
    assert len(torch.unique(sets.values, dim=0)) > 19_900
    halves = [GammaPopulation().columns(half)[1] for half in sets.values.chunk(2)]
    assert scipy_stats.ks_2samp(*(half.numpy() for half in halves)).pvalue > 1e-3


@pytest.mark.parametrize("theta", [(5.1, 0.82), (0.6, 0.8)])
def test_censoring_keeps_what_plain_rejection_keeps(theta):
    plain = GammaPopulation().columns(simulate(theta, 60_000, seed=1).values)
    kept = plain[1] >= 25
    time, count = GammaPopulation(25).columns(simulate(theta, 8_000, seed=2, threshold=25).values)
    assert float(count.min()) >= 25
    assert scipy_stats.ks_2samp(time.numpy(), plain[0][kept].numpy()).pvalue > 1e-3
    assert scipy_stats.ks_2samp(count.numpy(), plain[1][kept].numpy()).pvalue > 1e-3
    share = float(GammaPopulation(25).acceptance(point(theta)))
    assert float(kept.double().mean()) == pytest.approx(share, abs=4 * (share * (1 - share) / 60_000) ** 0.5)


@pytest.mark.parametrize("features", ["paper", "log"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_times_and_counts_are_read_back(features, dtype):
    simulator = GammaPopulation(features=features)
    theta = torch.tensor([[5.0, 0.8], [0.5, 1.5]], dtype=dtype)
    sets = simulator(theta, torch.tensor([300, 0]), torch.Generator().manual_seed(0))
    assert sets.values.dtype == dtype
    assert sets.num_features == simulator.num_features
    assert bool(torch.isfinite(sets.values).all())
    time, count = simulator.columns(sets.values)
    assert bool((count == count.round()).all() and (time >= 0).all() and (time <= 10).all())
    paper = GammaPopulation()(theta, torch.tensor([300, 0]), torch.Generator().manual_seed(0))
    assert bool((GammaPopulation().columns(paper.values)[1] == count).all())


def test_redrawn_data_keep_their_times_unless_censored():
    theta = torch.tensor([[3.0, 0.5]], dtype=torch.float64)
    for threshold, kept in ((None, True), (25, False)):
        simulator = GammaPopulation(threshold)
        sets = simulate((5.0, 0.8), 50, threshold=threshold)
        again = simulator.like(sets, theta, torch.Generator().manual_seed(7))
        assert bool((again.values[:, 0] == sets.values[:, 0]).all()) is kept
        assert not bool((again.values[:, 1] == sets.values[:, 1]).all())


def test_wrong_input_is_refused():
    simulator, generator = GammaPopulation(25), torch.Generator()
    with pytest.raises(ConfigError, match='`features` is "raw" but "paper" or "log" was expected'):
        GammaPopulation(features="raw")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="`threshold` is 600 but 1 to 500"):
        GammaPopulation(threshold=600)
    with pytest.raises(ShapeError, match=r"`theta` has shape \(1, 2\) and `size` \(2,\)"):
        simulator(torch.ones(1, 2), torch.tensor([1, 2]), generator)
    with pytest.raises(DataError, match="`theta` must be positive but rows 0 are not"):
        simulator(torch.tensor([[1.0, -1.0]]), torch.tensor([1]), generator)
    with pytest.raises(ShapeError, match="One set was expected but 2 were given"):
        simulator.posterior(Sets.from_list([torch.ones(1, 2), torch.ones(1, 2)]))
    with pytest.raises(DataError, match=r"1 of 2 data are impossible here: rows 1; row 1 has time 1 and count 10"):
        simulator.per_datum(torch.tensor([[0.1, 0.5], [0.1, 0.02]]), point((5.0, 0.8)))
    with pytest.raises(ShapeError, match=r"one row per set, \(1, 2\)"):
        simulator.like(simulate((5.0, 0.8), 3), torch.ones(2, 2))


@pytest.mark.gpu
def test_draws_and_answers_on_a_gpu(device):
    theta = torch.tensor([[5.1, 0.82], [0.6, 1.4]], device=device)
    for threshold in (None, 25):
        simulator = GammaPopulation(threshold, "log")
        generator = torch.Generator(device).manual_seed(0)
        sets = simulator(theta, torch.tensor([2_000, 2_000], device=device), generator)
        there, here = simulator.score(sets, theta).cpu(), simulator.score(sets.to("cpu"), theta.cpu())
        torch.testing.assert_close(there, here, rtol=1e-8, atol=1e-6)
        a, b = simulator.posterior(sets[:1]), simulator.posterior(sets[:1].to("cpu"))
        torch.testing.assert_close(a.covariance.cpu(), b.covariance, rtol=1e-8, atol=1e-12)


def test_parameters_beyond_the_grid_are_refused():
    with pytest.raises(SupportError, match=r"At theta = \[60.0, 20.0\] decay times reach beyond the grid"):
        GammaPopulation().fisher_per_datum(point((60.0, 20.0)))
    with pytest.raises(ConfigError, match=r"`amplitude` is -5 and `time_max` 10.0; both must be positive"):
        GammaPopulation(amplitude=-5)
