"""Figures: what they hold, what they refuse, and that contours enclose what they say."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from fishnets.errors import ConfigError, DataError, MissingExtraError, NonFiniteError, ShapeError
from fishnets.inference.plots import _density, _heights, corner_plot, coverage_plot, ecdf_plot, rank_plot

pytest.importorskip("matplotlib")


@pytest.fixture
def levels(generator: torch.Generator) -> Tensor:
    return torch.rand(300, generator=generator)


def drawn(figure) -> list[str]:
    """Renders a figure and returns the texts of its legend."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    assert len(file.getvalue()) > 5000
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


@pytest.mark.parametrize("plot", [ecdf_plot, coverage_plot])
def test_curves_of_levels_have_a_band_and_a_legend(plot, levels: Tensor) -> None:
    figure = plot({"PIT": levels, "TARP": levels[:100].numpy()})
    assert drawn(figure) == ["PIT", "TARP", "95 % band, simultaneous"]
    assert len(figure.axes[0].collections) == 3  # a band for each number of sets, and the one in the legend


def test_calibrated_levels_are_drawn_inside_the_band(levels: Tensor) -> None:
    axis = ecdf_plot({"PIT": levels}).axes[0]
    curve = axis.lines[1].get_ydata()
    assert np.abs(curve).max() < 0.09
    assert curve[-1] == pytest.approx(0)
    assert coverage_plot({"PIT": levels}).axes[0].lines[1].get_ydata()[-1] == 1


def test_ranks_have_a_panel_each(generator: torch.Generator) -> None:
    ranks = torch.randint(501, (1000, 3), generator=generator)
    figure = rank_plot(ranks, 500, ["a", "b", "c"])
    assert drawn(figure) == ["95 % band", "expected"]
    assert [axis.get_xlabel() for axis in figure.axes] == ["rank of a", "rank of b", "rank of c"]
    bars = [patch.get_height() for patch in figure.axes[0].patches if type(patch).__name__ == "Rectangle"]
    assert len(bars) == 20
    assert sum(bars) == 1000


def test_few_sets_get_few_bars(generator: torch.Generator) -> None:
    figure = rank_plot(torch.randint(100, (40, 1), generator=generator), 99)
    assert sum(type(patch).__name__ == "Rectangle" for patch in figure.axes[0].patches) == 4


def test_corner_has_a_triangle_of_panels_and_marks_the_truth(generator: torch.Generator) -> None:
    exact, learned, other = torch.randn(3, 1000, 3, generator=generator)
    figure = corner_plot(
        {"exact": exact, "Fishnets": learned, "Deep Sets": 2 * other},
        ["a", "b", "c"],
        truth=[0.0, 0.5, 1.0],
        filled=["exact"],
        dashed=["Deep Sets"],
    )
    assert drawn(figure) == ["exact", "Fishnets", "Deep Sets", "truth"]
    assert len(figure.axes) == 6
    assert [axis.get_xlabel() for axis in figure.axes[3:]] == ["a", "b", "c"]
    assert [line.get_linestyle() for line in figure.axes[0].lines[:3]] == ["-", "-", "--"]


@pytest.mark.parametrize("num_params", [1, 2])
def test_corner_of_few_parameters(num_params: int, generator: torch.Generator) -> None:
    figure = corner_plot({"HMC": torch.randn(500, num_params, generator=generator).numpy()})
    assert drawn(figure) == ["HMC"]
    assert figure.axes[-1].get_xlabel() == rf"$\theta_{{{num_params}}}$"


def test_corner_draws_a_parameter_that_never_varies(generator: torch.Generator) -> None:
    samples = torch.randn(500, 2, generator=generator)
    samples[:, 1] = 3.0
    assert drawn(corner_plot({"stuck": samples})) == ["stuck"]


@pytest.mark.parametrize("correlation", [0.0, 0.99])
def test_contours_enclose_their_mass_and_follow_correlations(correlation: float, generator: torch.Generator) -> None:
    samples = torch.randn(20_000, 2, generator=generator, dtype=torch.float64)
    samples[:, 1] = correlation * samples[:, 0] + (1 - correlation**2) ** 0.5 * samples[:, 1]
    (x, y), density = _density(samples)
    inverse = torch.tensor([[1, -correlation], [-correlation, 1]]).double().numpy() / (1 - correlation**2)
    points = np.stack([x, y], -1)
    radius = np.einsum("...i,ij,...j->...", points, inverse, points)
    for height, mass in zip(_heights(density), (0.95, 0.68), strict=True):
        assert 1 - np.exp(-radius[density > height].max() / 2) == pytest.approx(mass, abs=0.05)


def test_marginal_densities_have_unit_area(generator: torch.Generator) -> None:
    samples = 3 + 2 * torch.randn(20_000, 1, generator=generator, dtype=torch.float64)
    (x,), density = _density(samples)
    assert float(torch.trapezoid(torch.from_numpy(density), torch.from_numpy(x))) == pytest.approx(1, abs=1e-3)
    assert density.max() == pytest.approx(1 / (2 * np.sqrt(2 * np.pi)), rel=0.05)


def test_drawing_needs_matplotlib(monkeypatch: pytest.MonkeyPatch, levels: Tensor) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"Drawing figures needs `matplotlib`.*pip install 'fishnets\[plots\]'"):
        ecdf_plot({"PIT": levels})


def test_input_is_checked(levels: Tensor) -> None:
    with pytest.raises(DataError, match=r"`levels_by_label` is empty; give at least one entry"):
        ecdf_plot({})
    with pytest.raises(DataError, match=r"levels lie between 0 and 1"):
        coverage_plot({"ranks": 100 * levels})
    with pytest.raises(ShapeError, match=r"`ranks` has shape \(300,\), torch.float32, but integers \(T, p\) were"):
        rank_plot(levels, 100)
    with pytest.raises(DataError, match=r"`ranks` runs from 0 to 99 but 0 to 50 was expected. `num_samples` is"):
        rank_plot(torch.arange(100).reshape(100, 1), 50)
    with pytest.raises(ShapeError, match=r"`names` holds 2 names but there are 1 parameters"):
        rank_plot(torch.arange(100).reshape(100, 1), 100, ["a", "b"])


def test_samples_of_a_corner_are_checked() -> None:
    good = torch.zeros(20, 2)
    with pytest.raises(DataError, match=r"`samples_by_label` is empty"):
        corner_plot({})
    with pytest.raises(ShapeError, match=r"samples of `b` have shape \(20, 3\) but \(S, 2\) was expected"):
        corner_plot({"a": good, "b": torch.zeros(20, 3)})
    with pytest.raises(NonFiniteError, match=r"samples of `a` are NaN or infinite in rows 0, 1, 2, 3, 4 and 15 more"):
        corner_plot({"a": good / 0})
    with pytest.raises(ConfigError, match=r"`filled` or `dashed` names \['c'\] but the labels are \['a'\]"):
        corner_plot({"a": good}, filled=["c"])
    with pytest.raises(ShapeError, match=r"`truth` has shape \(3,\) but \(2,\) was expected"):
        corner_plot({"a": good}, truth=[0.0, 0.0, 0.0])
