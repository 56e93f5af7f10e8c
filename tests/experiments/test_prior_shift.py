"""The toy of the shifted prior: its exact answer, and that both networks find it."""

from __future__ import annotations

import math

import pytest
import torch

from fishnets.experiments.prior_shift import posterior_mean, prior_shift
from fishnets.experiments.records import Metric

NAMES = ("deepset", "fishnets", "exact-under-training-prior")


@pytest.fixture(scope="module")
def metrics() -> dict[str, Metric]:
    return prior_shift(300, 0, "cpu", progress=False)


@pytest.mark.parametrize("num_data", [1, 10, 200])
def test_the_posterior_mean_is_the_integral(num_data: int) -> None:
    average = torch.tensor([-0.3, 0.0, 0.1, 0.7, 1.0, 1.9, 2.2], dtype=torch.float64)
    theta = torch.linspace(0, 2, 200_001, dtype=torch.float64)
    log_density = -0.5 * num_data * (average.unsqueeze(1) - theta).square()
    density = torch.exp(log_density - log_density.amax(1, keepdim=True))
    expected = torch.trapezoid(density * theta, theta) / torch.trapezoid(density, theta)
    assert torch.allclose(posterior_mean(average, num_data), expected, rtol=1e-6)


def test_the_posterior_mean_is_symmetric_and_stays_in_the_prior() -> None:
    average = torch.linspace(-1.0, 3.0, 41, dtype=torch.float64)
    found = posterior_mean(average, 10)
    assert torch.allclose(found, 2 - found.flip(0))
    assert ((found > 0) & (found < 2)).all()
    assert (found.diff() > 0).all()


def test_a_run_measures_everything(metrics: dict[str, Metric]) -> None:
    assert set(metrics) == {
        f"prior-shift/{what}/{name}/{law}"
        for what in ("mse-over-sample-mean", "bias")
        for name in NAMES
        for law in ("training", "shifted")
    }
    assert all(math.isfinite(found.value) and 0 < found.error < 0.01 for found in metrics.values())


@pytest.mark.parametrize(("name", "tolerance"), [("deepset", 1.02), ("fishnets", 1.1)])
def test_networks_learn_the_posterior_mean_of_the_training_prior(
    name: str, tolerance: float, metrics: dict[str, Metric]
) -> None:
    found, exact = (metrics[f"prior-shift/mse-over-sample-mean/{n}/training"].value for n in (name, NAMES[2]))
    assert 0.995 * exact < found < tolerance * exact
    assert abs(metrics[f"prior-shift/bias/{name}/training"].value) < 0.02


def test_under_the_training_law_nothing_beats_the_posterior_mean(metrics: dict[str, Metric]) -> None:
    exact = metrics["prior-shift/mse-over-sample-mean/exact-under-training-prior/training"]
    assert exact.value < 1 - 10 * exact.error, "the prior helps"
    assert metrics["prior-shift/bias/exact-under-training-prior/training"].value == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_under_the_shift_all_are_pulled_to_the_training_prior(name: str, metrics: dict[str, Metric]) -> None:
    bias = metrics[f"prior-shift/bias/{name}/shifted"]
    assert 0.05 < bias.value < 0.12
    assert bias.value > 10 * bias.error


def test_the_exact_bias_under_the_shift_is_the_expected_one(metrics: dict[str, Metric]) -> None:
    """The average of ten data around N(0.5, 0.1) is N(0.5, √(0.01 + 0.1)), over which the exact mean is integrated."""
    spread = math.sqrt(0.1**2 + 1 / 10)
    average = torch.linspace(0.5 - 5 * spread, 0.5 + 5 * spread, 4001, dtype=torch.float64)
    weight = torch.exp(-0.5 * ((average - 0.5) / spread).square())
    expected = float((weight * posterior_mean(average, 10)).sum() / weight.sum()) - 0.5
    found = metrics["prior-shift/bias/exact-under-training-prior/shifted"]
    assert found.value == pytest.approx(expected, abs=4 * found.error)
