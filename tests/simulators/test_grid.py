"""Grid posteriors against Gaussians whose moments are known."""

from __future__ import annotations

import pytest
import torch

from fishnets.algebra import Gaussian
from fishnets.errors import ConfigError, DataError
from fishnets.simulators.grid import adaptive_grid

LOW, HIGH = torch.tensor([-5.0, -5.0]).double(), torch.tensor([5.0, 5.0]).double()


def gaussian(spread: tuple[float, float], correlation: float, mean: tuple[float, float] = (1.0, -2.0)) -> Gaussian:
    cross = correlation * spread[0] * spread[1]
    covariance = torch.tensor([[spread[0] ** 2, cross], [cross, spread[1] ** 2]], dtype=torch.float64)
    return Gaussian(torch.tensor(mean, dtype=torch.float64), torch.linalg.inv(covariance))


@pytest.mark.parametrize("spread", [(0.3, 0.2), (0.01, 0.2), (0.002, 0.001)])
@pytest.mark.parametrize("correlation", [0.0, 0.9, -0.7])
def test_moments_are_those_of_the_density(spread, correlation):
    target = gaussian(spread, correlation)
    grid = adaptive_grid(target.log_prob, LOW, HIGH)
    torch.testing.assert_close(grid.mean, target.mean, rtol=1e-6, atol=1e-6 * min(spread))
    torch.testing.assert_close(grid.covariance, target.covariance, rtol=1e-4, atol=1e-9 * min(spread) ** 2)


def test_density_cut_by_the_box_keeps_its_moments():
    grid = adaptive_grid(gaussian((0.5, 0.3), 0.0, (5.0, 0.0)).log_prob, LOW, HIGH)
    # half a normal: mean 0.5 √(2/π) below the edge, variance 0.25 (1 − 2/π)
    assert float(grid.mean[0]) == pytest.approx(5 - 0.5 * (2 / torch.pi) ** 0.5, abs=1e-4)
    assert float(grid.covariance[0, 0]) == pytest.approx(0.25 * (1 - 2 / torch.pi), rel=1e-3)


def test_samples_have_the_moments_of_the_grid():
    grid = adaptive_grid(gaussian((0.3, 0.2), 0.6).log_prob, LOW, HIGH)
    samples = grid.sample(100_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(samples.mean(0), grid.mean, rtol=0, atol=4e-3)
    torch.testing.assert_close(samples.mT.cov(), grid.covariance, rtol=0.03, atol=0)


def test_samples_stay_inside_the_box():
    grid = adaptive_grid(gaussian((0.5, 0.3), 0.0, (5.0, -5.0)).log_prob, LOW, HIGH)
    samples = grid.sample(20_000, torch.Generator().manual_seed(0))
    assert bool(((samples >= LOW) & (samples <= HIGH)).all())


def test_density_that_is_nowhere_finite_is_refused():
    with pytest.raises(DataError, match=r"-inf at its largest on a grid .*; no parameter of the prior explains"):
        adaptive_grid(lambda pairs: pairs.new_full((len(pairs),), -torch.inf), LOW, HIGH)


def test_density_too_narrow_is_refused():
    with pytest.raises(DataError, match="has not settled after 2 refinements"):
        adaptive_grid(gaussian((1e-4, 1e-4), 0.0).log_prob, LOW, HIGH, passes=2)


def test_few_points_are_refused():
    with pytest.raises(ConfigError, match="`points` is 5 but at least 10"):
        adaptive_grid(gaussian((0.3, 0.2), 0.0).log_prob, LOW, HIGH, points=5)
