"""Unbounded coordinates, the frames of Gaussians in them, and standardisation."""

from __future__ import annotations

import pytest
import torch

from fishnets import Gaussian
from fishnets.inference.coordinates import Coordinates
from fishnets.inference.standardisation import Standard, Trend
from fishnets.priors import Box, Normal

BOX = Box([-1.0, 0.0], [3.0, 0.5])


@pytest.mark.parametrize("prior", [BOX, Normal([1.0, 2.0], [4.0, 0.01])], ids=["box", "normal"])
def test_there_and_back_again(prior: Box | Normal, generator: torch.Generator) -> None:
    coordinates, theta = Coordinates.of(prior), prior.sample(50, generator)
    v, log_det = coordinates.unbounded(theta)
    torch.testing.assert_close(coordinates.bounded(v), theta)
    jacobian = torch.autograd.functional.jacobian(lambda t: coordinates.unbounded(t)[0], theta[7])
    torch.testing.assert_close(torch.linalg.slogdet(jacobian)[1], log_det[7])


def test_corners_of_the_box_are_finite_and_inside() -> None:
    coordinates = Coordinates.of(BOX)
    corners = torch.stack([BOX.low, BOX.high])
    v, log_det = coordinates.unbounded(corners)
    assert torch.isfinite(v).all()
    assert torch.isfinite(log_det).all()
    far = coordinates.bounded(torch.tensor([[1e3, -1e3]], dtype=torch.float64))
    assert bool(((far >= BOX.low) & (far <= BOX.high)).all())


@pytest.mark.parametrize("unit", [-0.5, 0.0, 0.02, 0.5, 1.0, 1.3])
@pytest.mark.parametrize("sd", [1e-5, 0.01, 0.3])
def test_frame_covers_a_gaussian_cut_by_the_box(unit: float, sd: float, generator: torch.Generator) -> None:
    """The residual of the cut Gaussian is of order one, wherever its centre is."""
    unit = min(max(unit, -5 * sd), 1 + 5 * sd)
    width = BOX.high - BOX.low
    gaussian = Gaussian(BOX.low + unit * width, torch.diag((sd * width) ** -2))
    centre, factor = Coordinates.of(BOX).frame(gaussian)
    level = torch.rand(2000, 2, generator=generator, dtype=torch.float64)
    below, above = (torch.special.ndtr(torch.tensor((edge - unit) / sd, dtype=torch.float64)) for edge in (0, 1))
    cut = unit + sd * torch.special.ndtri(below + level * (above - below))
    v, _ = Coordinates.of(BOX).unbounded(BOX.low + cut.clamp(0, 1) * width)
    white = (v - centre) / factor.diagonal()
    assert white.median(0).values.abs().max() < 0.1
    assert ((white.abs() < 1).double().mean(0) - 0.68).abs().max() < 0.1


def test_frame_away_from_the_walls_is_the_tangent() -> None:
    covariance = 1e-8 * torch.tensor([[1.0, 0.05], [0.05, 0.01]], dtype=torch.float64)
    gaussian = Gaussian(BOX.mean, torch.linalg.inv(covariance))
    centre, factor = Coordinates.of(BOX).frame(gaussian)
    slope = 4 / (BOX.high - BOX.low)  # of a logit at one half
    torch.testing.assert_close(centre, torch.zeros(2, dtype=torch.float64))
    torch.testing.assert_close(factor @ factor.T, covariance * torch.outer(slope, slope), rtol=1e-6, atol=0.0)


def test_columns_that_do_not_vary_are_zero(generator: torch.Generator) -> None:
    columns = torch.stack([torch.randn(100, generator=generator), torch.full((100,), 3.7)], dim=-1).double()
    standard = Standard(2)
    standard.measure(columns)
    assert standard.varies.tolist() == [True, False]
    assert (standard(columns + 1)[:, 1] == 0).all()
    torch.testing.assert_close(standard.restore(standard(columns)), columns)


@pytest.mark.parametrize("drivers", [2, 7])
def test_a_polynomial_trend_is_taken_off(drivers: int, generator: torch.Generator) -> None:
    x = torch.randn(4000, drivers, generator=generator, dtype=torch.float64).clamp(-2, 2)
    weight = 1 + 9 * torch.rand(4000, generator=generator, dtype=torch.float64)
    columns = weight.unsqueeze(-1) * (1 + x[:, :1] * x[:, 1:2] - 0.5 * x[:, :1])
    trend = Trend(drivers, 1)
    trend.measure(columns, x, weight)
    assert (columns - trend(x, weight)).std() < 0.05 * columns.std()
    constant = torch.ones(50, drivers, dtype=torch.float64)  # a single set size
    trend.measure(constant[:, :1], constant, torch.ones(50, dtype=torch.float64))
    torch.testing.assert_close(trend(constant, constant[:, 0]), constant[:, :1], rtol=1e-5, atol=1e-5)
