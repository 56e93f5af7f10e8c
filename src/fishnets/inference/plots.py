"""Figures of posteriors and of their calibration; each function returns a matplotlib figure to show or to save.

Figures are made without pyplot, so drawing changes no global state; save them with ``figure.savefig(path)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fishnets.arrays import ArrayLike, as_float, as_tensor
from fishnets.errors import ConfigError, DataError, MissingExtraError, NonFiniteError, ShapeError, describe_rows
from fishnets.inference.uniformity import (
    checked_levels,
    default_grid,
    expected_coverage,
    rank_histogram_band,
    simultaneous_band,
)

__all__ = ["corner_plot", "coverage_plot", "ecdf_plot", "new_figure", "rank_plot"]

COLOURS = ("#d6336c", "#1c6dd0", "#e08a00", "#2b8a3e", "#7048c8", "#0b8a8f", "#8a5a2b", "#5c6370")
STYLES = ("solid", "dashed", "dashdot", "dotted")
DARK, BAND, GREY = "#1f2430", "#e4e7eb", "#9aa0a6"
CELLS = 80  # per axis of the histograms behind contours and marginal densities
MASSES = (0.95, 0.68)
Array = np.ndarray[Any, np.dtype[Any]]


def ecdf_plot(levels_by_label: Mapping[str, ArrayLike], level: float = 0.95) -> Any:
    """Empirical distribution of levels minus the uniform one, in the band that should hold all of it.

    It serves PIT, coverage and TARP levels alike. Above zero at the left and below it at the right is over-confident
    for PIT; for coverage levels, below zero everywhere is.

    Args:
        levels_by_label: Levels of each check or parameter, shape (T,), by the name in the legend.
        level: Probability that a calibrated curve stays inside the band. One band is drawn for each number of sets.

    Returns:
        The figure.

    Example:
        >>> ecdf_plot({"TARP": torch.rand(200, generator=torch.Generator().manual_seed(0))}).axes[0].get_xlabel()
        'level'
    """
    figure = new_figure(5.4, 3.9)
    axis = figure.subplots()
    _draw_curves(axis, levels_by_label, level, slope=0)
    axis.set(xlabel="level", ylabel="empirical − uniform distribution")
    _legend_above(figure, axis)
    return figure


def coverage_plot(levels_by_label: Mapping[str, ArrayLike], level: float = 0.95) -> Any:
    """Empirical against nominal coverage: below the diagonal is over-confident, above it is too wide.

    Args:
        levels_by_label: Levels of :func:`coverage_levels` or :func:`tarp_levels`, shape (T,), by the name in the
            legend; for PIT levels give ``(2 * levels - 1).abs()``, the levels of central intervals.
        level: Probability that a calibrated curve stays inside the band. One band is drawn for each number of sets.

    Returns:
        The figure.

    Example:
        >>> coverage_plot({"exact": torch.rand(200, generator=torch.Generator().manual_seed(0))}).axes[0].get_ylabel()
        'empirical coverage'
    """
    figure = new_figure(4.4, 4.9)
    axis = figure.subplots()
    _draw_curves(axis, levels_by_label, level, slope=1)
    axis.set(xlabel="nominal coverage", ylabel="empirical coverage", ylim=(0, 1), aspect="equal")
    _legend_above(figure, axis)
    return figure


def rank_plot(
    ranks: ArrayLike,
    num_samples: int,
    names: Sequence[str] | None = None,
    num_bins: int | None = None,
    level: float = 0.95,
) -> Any:
    """Histogram of the ranks of each parameter, with the band that should hold all bars.

    A valley says over-confident, a hill too wide, a slope biased.

    Args:
        ranks: Ranks from 0 to ``num_samples``, integers, shape (T, p).
        num_samples: Number of posterior samples S.
        names: Names of the parameters.
        num_bins: Number of bars; 20, or fewer so that each expects 10 sets, when absent.
        level: Probability that all bars of one calibrated parameter stay inside.

    Returns:
        The figure.

    Example:
        >>> ranks = torch.arange(200).reshape(200, 1) % 100
        >>> rank_plot(ranks, 99, ["slope"]).axes[0].get_xlabel()
        'rank of slope'
    """
    values = _checked_ranks(ranks, num_samples)
    count, num_params = values.shape
    bins = min(20, max(2, count // 10), num_samples + 1) if num_bins is None else num_bins
    lower, expected, upper = (edge.numpy() for edge in rank_histogram_band(count, num_samples, bins, level))
    figure = new_figure(max(3.6, 2.9 * num_params), 2.9)
    axes = figure.subplots(1, num_params, sharey=True, squeeze=False)[0]
    edges = np.linspace(0, num_samples + 1, bins + 1)
    for axis, column, name in zip(axes, values.mT, _names(names, num_params), strict=True):
        bars = torch.bincount(column * bins // (num_samples + 1), minlength=bins).numpy()
        axis.bar(edges[:-1], bars, np.diff(edges), align="edge", color=COLOURS[1], alpha=0.55, edgecolor="white")
        axis.stairs(upper, edges, baseline=lower, color=DARK, alpha=0.16, fill=True, label=f"{100 * level:g} % band")
        axis.stairs(expected, edges, color=DARK, linewidth=1, linestyle="dashed", baseline=None, label="expected")
        axis.set(xlabel=f"rank of {name}", xlim=(0, num_samples + 1))
    axes[0].set_ylabel("test sets")
    _legend_above(figure, axes[0])
    return figure


def corner_plot(
    samples_by_label: Mapping[str, ArrayLike],
    names: Sequence[str] | None = None,
    truth: ArrayLike | None = None,
    filled: Sequence[str] = (),
    dashed: Sequence[str] = (),
) -> Any:
    """Posteriors on top of each other: marginal densities, and contours that enclose 68 and 95 % of the mass.

    Densities are histograms smoothed by a Gaussian kernel of Scott's width and the shape of the posterior; contours of
    few samples are a little wide.

    Args:
        samples_by_label: Samples of each posterior, shape (S, p), by the name in the legend.
        names: Names of the parameters; mathematics like ``r"$\\mu$"`` is set as such.
        truth: True parameters, marked by lines, shape (p,).
        filled: Labels to draw as filled contours; they go behind the others.
        dashed: Labels to draw dashed. When neither is given for any, line styles alternate.

    Returns:
        The figure.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> exact, learned = torch.randn(2, 500, 3, generator=generator)
        >>> figure = corner_plot({"exact": exact, "Fishnets": learned}, ["a", "b", "c"], filled=["exact"])
        >>> len(figure.axes)
        6
    """
    posteriors = _posteriors(samples_by_label, [*filled, *dashed])
    num_params = next(iter(posteriors.values())).shape[1]
    marks = None if truth is None else _checked_truth(truth, num_params)
    columns = [[samples[:, i] for samples in posteriors.values()] for i in range(num_params)]
    limits = [_limits(columns[i], None if marks is None else marks[i]) for i in range(num_params)]
    side = 2.7 if num_params <= 3 else 1.9  # of a panel; the upper triangle of few panels must hold the legend
    figure = new_figure(max(3.6, side * num_params), max(3.8, side * num_params + 0.3))
    grid = figure.add_gridspec(num_params, num_params)
    axes = {(i, j): figure.add_subplot(grid[i, j]) for i in range(num_params) for j in range(i + 1)}
    handles = []
    for k, (label, samples) in enumerate(posteriors.items()):
        line = ("dashed" if label in dashed else "solid") if filled or dashed else _style(k)
        look: dict[str, Any] = {"color": _colour(k), "linestyle": line, "filled": label in filled}
        for (i, j), axis in axes.items():
            if i == j:
                _draw_marginal(axis, samples[:, i], **look)
            else:
                _draw_contours(axis, samples[:, [j, i]], **look)
        handles.append((label, look))
    _finish_corner(axes, limits, _names(names, num_params), marks)
    _corner_legend(figure, handles, marks is not None)
    figure.align_labels()
    return figure


def _draw_curves(axis: Any, levels_by_label: Mapping[str, ArrayLike], level: float, slope: int) -> None:
    """Empirical distributions with their bands, as they are (slope 1) or less the diagonal (slope 0)."""
    _expect_some("levels_by_label", levels_by_label)
    levels = {label: checked_levels(values).cpu() for label, values in levels_by_label.items()}
    for count in sorted({len(values) for values in levels.values()}):
        grid = torch.cat([torch.zeros(1), default_grid(count), torch.ones(1)])
        lower, upper = (
            torch.cat([torch.zeros(1), edge, torch.ones(1)]) - (1 - slope) * grid
            for edge in simultaneous_band(count, grid[1:-1], level)
        )
        axis.fill_between(grid.numpy(), lower.numpy(), upper.numpy(), color=BAND, linewidth=0)
    axis.plot([0, 1], [0, slope], color=GREY, linewidth=0.8)
    grid = torch.linspace(0, 1, 501, dtype=torch.float64)
    for k, (label, values) in enumerate(levels.items()):
        curve = expected_coverage(values, grid) - (1 - slope) * grid
        axis.plot(grid.numpy(), curve.numpy(), color=_colour(k), linestyle=_style(k), linewidth=1.6, label=label)
    axis.fill_between([], [], [], color=BAND, linewidth=0, label=f"{100 * level:g} % band, simultaneous")
    axis.set_xlim(0, 1)


def _draw_marginal(axis: Any, values: Tensor, *, color: str, linestyle: str, filled: bool) -> None:
    (where,), density = _density(values.reshape(-1, 1))
    axis.plot(where, density, color=color, linestyle=linestyle, linewidth=1.6, zorder=1 if filled else 2)
    if filled:
        axis.fill_between(where, density, color=color, alpha=0.25, linewidth=0, zorder=1)


def _draw_contours(axis: Any, pair: Tensor, *, color: str, linestyle: str, filled: bool) -> None:
    (x, y), density = _density(pair)
    heights = _heights(density)
    if filled:
        shades = [(color, 0.28), (color, 0.6)]
        axis.contourf(x, y, density, [*heights, 1.001 * float(density.max())], colors=shades, zorder=1)
    axis.contour(x, y, density, heights, colors=color, linestyles=linestyle, linewidths=1.4, zorder=1 if filled else 2)


def _density(values: Tensor) -> tuple[list[Array], Array]:
    """Smoothed density of samples (S, d) on a grid of d axes, and the d coordinates of its points.

    The grid and the kernel follow the covariance of the samples, so that narrow, correlated posteriors stay narrow.
    """
    mean, std = values.mean(0), values.std(0)
    std = torch.where(std > 0, std, 1e-3 * mean.abs().clamp(min=1))
    scaled = (values - mean) / std
    correlation = (0.9999 * scaled.mT @ scaled / len(values)).fill_diagonal_(1.0)
    factor = torch.linalg.cholesky(correlation)
    white = torch.linalg.solve_triangular(factor, scaled.mT, upper=False).mT
    edges = [np.linspace(*_limits([column], None, margin=0.3), CELLS + 1) for column in white.mT]
    density, _ = np.histogramdd(white.numpy(), edges)
    for axis, (column, edge) in enumerate(zip(white.mT, edges, strict=True)):
        width = 1.06 * _spread(column) * len(values) ** (-1 / (4 + white.shape[1]))  # Scott's
        density = np.apply_along_axis(_smooth, axis, density, max(width / (edge[1] - edge[0]), 0.5))
    cells = [torch.from_numpy((edge[1:] + edge[:-1]) / 2) for edge in edges]
    points = torch.stack(torch.meshgrid(*cells, indexing="ij"), dim=-1) @ factor.mT * std + mean
    volume = float(factor.diagonal().prod() * std.prod()) * float(np.prod([edge[1] - edge[0] for edge in edges]))
    return [points[..., i].numpy() for i in range(points.shape[-1])], density / (density.sum() * volume)


def _smooth(row: Array, width: float) -> Array:
    """Convolves with a Gaussian of a width in cells."""
    reach = min((len(row) - 1) // 2, int(4 * width) + 1)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    smooth: Array = np.convolve(row, kernel / kernel.sum(), mode="same")
    return smooth


def _heights(density: Array) -> list[float]:
    """Density at the edge of the regions that enclose each of the masses, lowest first."""
    ordered = np.sort(density.ravel())[::-1]
    mass = np.cumsum(ordered) / ordered.sum()
    heights = [float(ordered[min(int(np.searchsorted(mass, share)), len(mass) - 1)]) for share in MASSES]
    if not heights[0] < heights[1] < ordered[0]:  # nearly all mass in one cell: contours still need an order
        heights = [0.1 * float(ordered[0]), 0.5 * float(ordered[0])]
    return heights


def _spread(values: Tensor) -> float:
    """Standard deviation, or what the quartiles say where tails make it larger."""
    low, high = torch.quantile(values, torch.tensor([0.25, 0.75], dtype=values.dtype)).tolist()
    spread = float(values.std())
    return min(spread, (high - low) / 1.349) if high > low else spread


def _limits(columns: Sequence[Tensor], truth: float | None, margin: float = 0.1) -> tuple[float, float]:
    """Range of one parameter: nearly all samples of every posterior, and the truth."""
    tails = torch.tensor([0.002, 0.998], dtype=torch.float64)
    ends = torch.stack([torch.quantile(values, tails) for values in columns]).flatten().tolist()
    ends += [] if truth is None else [truth]
    reach = margin * (max(ends) - min(ends)) or 1e-3 * max(abs(max(ends)), 1.0)
    return min(ends) - reach, max(ends) + reach


def _finish_corner(
    axes: Mapping[tuple[int, int], Any], limits: Any, names: Sequence[str], truth: Sequence[float] | None
) -> None:
    """Limits, ticks, labels and the truth; only the outer panels carry text."""
    from matplotlib.ticker import MaxNLocator

    last = len(names) - 1
    for (i, j), axis in axes.items():
        axis.set_xlim(*limits[j])
        axis.xaxis.set_major_locator(MaxNLocator(3, prune="both"))
        if truth is not None:
            axis.axvline(truth[j], color=DARK, linewidth=0.9, zorder=3)
        if i == j:
            axis.set(yticks=[], ylim=(0, None))
        else:
            axis.set_ylim(*limits[i])
            axis.yaxis.set_major_locator(MaxNLocator(3, prune="both"))
            if truth is not None:
                axis.axhline(truth[i], color=DARK, linewidth=0.9, zorder=3)
        axis.tick_params(labelsize=8, labelbottom=i == last, labelleft=j == 0 and i > 0)
        axis.set_xlabel(names[j] if i == last else "")
        axis.set_ylabel(names[i] if j == 0 and i > 0 else "")


def _corner_legend(figure: Any, handles: Sequence[tuple[str, dict[str, Any]]], truth: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: list[Any] = []
    for label, look in handles:
        if look["filled"]:
            entries.append(Patch(facecolor=(look["color"], 0.4), edgecolor=look["color"], label=label))
        else:
            entries.append(Line2D([], [], color=look["color"], linestyle=look["linestyle"], label=label))
    if truth:
        entries.append(Line2D([], [], color=DARK, linewidth=0.9, label="truth"))
    where = "upper right" if len(figure.axes) > 1 else "outside upper right"  # the upper triangle is empty
    figure.legend(handles=entries, loc=where, frameon=False, fontsize=9)


def _legend_above(figure: Any, axis: Any) -> None:
    """A legend outside the axes, where it hides no curve."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, fontsize=9)


def new_figure(width: float, height: float) -> Any:
    """An empty figure, drawn without pyplot and its global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots", "Drawing figures") from error
    return Figure(figsize=(width, height), layout="constrained")


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _style(index: int) -> str:
    return STYLES[index % len(STYLES)]


def _names(names: Sequence[str] | None, num_params: int) -> list[str]:
    if names is None:
        return [rf"$\theta_{{{i + 1}}}$" for i in range(num_params)]
    if len(names) != num_params:
        raise ShapeError(f"`names` holds {len(names)} names but there are {num_params} parameters.")
    return list(names)


def _expect_some(name: str, given: Mapping[str, ArrayLike]) -> None:
    if not given:
        raise DataError(f'`{name}` is empty; give at least one entry, {{"Fishnets": ...}} say.')


def _checked_ranks(ranks: ArrayLike, num_samples: int) -> Tensor:
    values = as_tensor(ranks, "ranks").cpu()
    if values.ndim != 2 or values.is_floating_point() or values.numel() == 0:
        raise ShapeError(f"`ranks` has shape {tuple(values.shape)}, {values.dtype}, but integers (T, p) were expected.")
    if values.min() < 0 or values.max() > num_samples:
        raise DataError(
            f"`ranks` runs from {int(values.min())} to {int(values.max())} but 0 to {num_samples} was expected. "
            "`num_samples` is the number of posterior samples per test set."
        )
    return values.to(torch.int64)


def _checked_truth(truth: ArrayLike, num_params: int) -> list[float]:
    marks = as_float(truth, "truth")
    if marks.shape != (num_params,):
        raise ShapeError(f"`truth` has shape {tuple(marks.shape)} but ({num_params},) was expected.")
    return [float(mark) for mark in marks]


def _posteriors(samples_by_label: Mapping[str, ArrayLike], named: Sequence[str]) -> dict[str, Tensor]:
    """Samples of every posterior, float64 (S, p), with one p for all."""
    _expect_some("samples_by_label", samples_by_label)
    unknown = [label for label in named if label not in samples_by_label]
    if unknown:
        raise ConfigError(f"`filled` or `dashed` names {unknown} but the labels are {list(samples_by_label)}.")
    found: dict[str, Tensor] = {}
    for label, samples in samples_by_label.items():
        values = as_float(samples, label).detach().cpu().to(torch.float64)
        width = next(iter(found.values())).shape[1] if found else values.shape[-1]
        if values.ndim != 2 or len(values) < 2 or values.shape[1] != width:
            raise ShapeError(f"samples of `{label}` have shape {tuple(values.shape)} but (S, {width}) was expected.")
        wrong = (~values.isfinite().all(1)).nonzero().flatten().tolist()
        if wrong:
            raise NonFiniteError(f"samples of `{label}` are NaN or infinite in rows {describe_rows(wrong)}.")
        found[label] = values
    return found
