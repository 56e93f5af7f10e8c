"""Uniformity: exact p-values, and bands that hold what they promise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fishnets.errors import ConfigError, DataError, NonFiniteError, ShapeError
from fishnets.inference.uniformity import (
    expected_coverage,
    rank_histogram_band,
    simultaneous_band,
    uniformity,
)


def uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("num_sets", [10, 37, 250, 1000, 12_000])
@pytest.mark.parametrize("power", [1.0, 1.1, 1.5])
def test_kolmogorov_smirnov_agrees_with_scipy(num_sets: int, power: float, generator: torch.Generator) -> None:
    stats = pytest.importorskip("scipy.stats")
    levels = uniform(generator, num_sets) ** power
    found, expected = uniformity(levels), stats.kstest(levels.numpy(), "uniform")
    assert found.statistic == pytest.approx(expected.statistic, abs=1e-12)
    exact = num_sets <= 10_000 and expected.pvalue > 1e-3
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-5 if exact else 0.05, abs=1e-7)


def test_p_values_of_uniform_levels_are_uniform(generator: torch.Generator) -> None:
    found = torch.tensor([uniformity(uniform(generator, 50)).p_value for _ in range(400)])
    assert uniformity(found).p_value > 0.01


def test_the_largest_and_smallest_distances_have_known_p_values() -> None:
    """A distance of 1 / 2n is the least there is; one of 1 - 1/n and more has probability 2 / n^n."""
    assert uniformity((torch.arange(20.0) + 0.5) / 20).p_value == 1
    assert uniformity(torch.zeros(1000)).p_value < 1e-300
    assert uniformity(torch.zeros(10)).statistic == 1


@pytest.mark.parametrize(("num_sets", "cells"), [(30, 30), (200, 50), (1000, 100)])
def test_the_band_holds_the_whole_curve_as_often_as_it_says(
    num_sets: int, cells: int, generator: torch.Generator
) -> None:
    grid = torch.arange(1, cells).double() / cells
    lower, upper = simultaneous_band(num_sets, grid)
    drawn = uniform(generator, 2000, num_sets).sort().values
    curves = torch.searchsorted(drawn, grid.expand(2000, -1).contiguous(), right=True).double() / num_sets
    held = ((lower <= curves) & (curves <= upper)).all(1).double().mean()
    assert abs(held - 0.95) < 0.02


@pytest.mark.parametrize(("num_samples", "num_bins"), [(99, 10), (500, 20)])
def test_the_histogram_band_holds_all_bars_as_often_as_it_says(
    num_samples: int, num_bins: int, generator: torch.Generator
) -> None:
    lower, expected, upper = rank_histogram_band(1000, num_samples, num_bins)
    drawn = torch.randint(num_samples + 1, (2000, 1000), generator=generator) * num_bins // (num_samples + 1)
    bars = torch.nn.functional.one_hot(drawn, num_bins).sum(1)
    held = ((lower <= bars) & (bars <= upper)).all(1).double().mean()
    assert abs(held - 0.95) < 0.02
    assert (bars.double().mean(0) - expected).abs().max() < 1
    assert expected.sum() == pytest.approx(1000)


def test_a_single_point_needs_no_correction() -> None:
    """At one point the band is the central binomial interval."""
    stats = pytest.importorskip("scipy.stats")
    lower, upper = simultaneous_band(1000, [0.3])
    assert [round(1000 * lower.item()), round(1000 * upper.item())] == [*stats.binom(1000, 0.3).interval(0.95)]


def test_the_band_widens_with_points_and_probability() -> None:
    one, many = simultaneous_band(500, [0.5]), simultaneous_band(500, torch.arange(1, 50) / 50)
    sure = simultaneous_band(500, [0.5], level=0.999)
    assert many[0][24] < one[0][0] < 0.5 < one[1][0] < many[1][24]
    assert sure[0] < one[0]


def test_the_band_sees_tails_that_the_distance_does_not(generator: torch.Generator) -> None:
    levels = uniform(generator, 1000)
    levels[:30] = 1e-3 * uniform(generator, 30)  # three sets in a hundred lie at the very edge
    found = uniformity(levels)
    assert found.p_value > 0.01
    assert not found.inside


def test_curve_and_band_are_given_on_one_grid(generator: torch.Generator) -> None:
    found = uniformity(uniform(generator, 300))
    lower, upper = found.band
    assert found.inside
    assert found.num_sets == 300
    assert found.grid.shape == found.difference.shape == lower.shape == upper.shape == (99,)
    assert bool(((lower <= found.difference + 1e-12) & (found.difference <= upper + 1e-12)).all())
    assert torch.equal(found.levels, found.levels.sort().values)


def test_printing_says_what_was_found(generator: torch.Generator) -> None:
    assert str(uniformity(uniform(generator, 1000) ** 3)).endswith("outside the 95 % band (1000 sets)")


def test_expected_coverage_is_the_share_of_levels_below() -> None:
    found = expected_coverage(torch.arange(100) / 100, [0.0, 0.495, 1.0])
    assert found.tolist() == [0.01, 0.5, 1.0]


@pytest.mark.parametrize(
    ("levels", "error", "message"),
    [
        (torch.zeros(20, 2), ShapeError, r"`levels` has shape \(20, 2\) but one level per test set.*`levels\[:, 0\]`"),
        (torch.zeros(9), DataError, r"`levels` holds 9 test sets but at least 10 were expected"),
        (torch.full((20,), math.nan), NonFiniteError, r"`levels` is NaN in 20 test sets, 0, 1, 2, 3, 4 and 15 more"),
        (torch.arange(20.0), DataError, r"`levels` is 2 in test set 2 but levels lie between 0 and 1. Divide ranks"),
    ],
)
def test_levels_are_checked(levels: Tensor, error: type[Exception], message: str) -> None:
    for function in (uniformity, lambda given: expected_coverage(given, [0.5])):
        with pytest.raises(error, match=message):
            function(levels)


def test_settings_of_bands_are_checked() -> None:
    for grid in ([], [0.0, 0.5], [0.5, 0.5], [0.5, 1.0]):
        with pytest.raises(DataError, match=r"`grid` is .* but increasing points between 0 and 1 were expected"):
            simultaneous_band(100, grid)
    with pytest.raises(DataError, match=r"`num_sets` is 5 but at least 10 test sets were expected"):
        simultaneous_band(5, [0.5])
    with pytest.raises(ConfigError, match=r"`level` is 95 but a probability between 0 and 1 was expected, 0.95 say"):
        simultaneous_band(100, [0.5], level=95)
    with pytest.raises(ConfigError, match=r"`num_bins` is 30 but 2 to 21 were expected, for ranks from 0 to 20"):
        rank_histogram_band(100, 20, 30)
