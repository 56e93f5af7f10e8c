"""Efficiency: known answers, and the errors it carries."""

from __future__ import annotations

import math

import pytest
import torch

from fishnets.errors import ShapeError
from fishnets.inference import Measured, efficiency, excess
from fishnets.inference.efficiency import mean_with_error, paired_chi2


def test_the_exact_estimator_has_efficiency_one(generator: torch.Generator) -> None:
    exact = torch.randn(50, 2, generator=generator, dtype=torch.float64)
    assert efficiency(exact, exact, torch.eye(2)) == Measured(1.0, 0.0)


def test_throwing_away_data_costs_what_it_should(generator: torch.Generator) -> None:
    """The mean of half of the data has twice the variance: excess 1, efficiency one half."""
    data = torch.randn(20_000, 40, generator=generator, dtype=torch.float64)
    found = efficiency(data[:, :20].mean(1, keepdim=True), data.mean(1, keepdim=True), 40 * torch.eye(1))
    assert abs(found.value - 0.5) < 4 * found.error
    assert found.error < 0.01


def test_excess_does_not_depend_on_the_units_of_the_parameters(generator: torch.Generator) -> None:
    a, b = torch.randn(2, 30, 3, generator=generator, dtype=torch.float64)
    mix = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    inverse = torch.linalg.inv(mix)
    assert excess(a @ mix.T, b @ mix.T, inverse.T @ inverse).value == pytest.approx(excess(a, b, torch.eye(3)).value)


def test_a_fisher_matrix_per_set_is_accepted() -> None:
    found = excess(torch.ones(2, 1), torch.zeros(2, 1), torch.tensor([[[1.0]], [[3.0]]]))
    assert found.value == 2.0


def test_error_of_a_mean_shrinks_with_the_root_of_the_number(generator: torch.Generator) -> None:
    found = mean_with_error(torch.randn(10_000, generator=generator))
    assert found.error == pytest.approx(0.01, rel=0.05)
    assert math.isnan(mean_with_error(torch.ones(1)).error)


def test_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"`estimate` has shape \(3, 2\) and `exact` \(3, 1\) but both must be"):
        efficiency(torch.zeros(3, 2), torch.zeros(3, 1), torch.eye(2))


def test_paired_chi2_is_one_for_the_efficient_step_and_counts_what_is_added(generator: torch.Generator) -> None:
    fisher = torch.tensor([[40.0, -6.0], [-6.0, 9.0]], dtype=torch.float64)
    score = torch.randn(4000, 2, generator=generator, dtype=torch.float64) @ torch.linalg.cholesky(fisher).mT
    theta = torch.randn(4000, 2, generator=generator, dtype=torch.float64)
    best = theta + torch.linalg.solve(fisher, score.mT).mT
    assert paired_chi2(best, theta, score, fisher).value == pytest.approx(1.0)
    noise = torch.randn(4000, 2, generator=generator, dtype=torch.float64) @ torch.linalg.inv(
        torch.linalg.cholesky(fisher)
    )
    found = paired_chi2(best + 0.5 * noise, theta, score, fisher)
    assert abs(found.value - 1.25) < 4 * found.error
    assert found.error < 0.03


def test_shapes_of_paired_chi2_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"`theta` \(3, 2\) and `score` \(3, 1\) but all must be \(T, p\)"):
        paired_chi2(torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(3, 1), torch.eye(2))
