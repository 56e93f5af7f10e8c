r"""Posteriors on a grid: two parameters, any shape, exact up to the spacing.

The grid adapts itself: it starts as wide as the prior, and each pass keeps the part where the density is within
:math:`e^{-20}` of its maximum, until nothing is left to cut away. Sums over what remains are exact to rounding for a
density that is smooth and vanishes at the edges; where the prior cuts it off, Gregory's end weights keep them accurate
to the fourth power of the spacing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fishnets.errors import ConfigError, DataError

__all__ = ["GridPosterior", "adaptive_grid"]

DEPTH = 20.0  # what lies this far below the maximum, in logarithm, is cut away
FINER = 4  # samples come from a grid this many times finer


@dataclass(frozen=True, eq=False)
class GridPosterior:
    """A density over two parameters, tabulated on a rectangular grid.

    Args:
        first: Values of the first parameter, equally spaced, shape (G,).
        second: Values of the second, shape (H,).
        log_density: Logarithm of the density at each pair, up to a constant, shape (G, H).

    Example:
        >>> x = torch.linspace(-6, 6, 41, dtype=torch.float64)
        >>> grid = GridPosterior(x, x, -0.5 * (x**2).unsqueeze(1) - 2 * x**2)
        >>> grid.covariance.diagonal()
        tensor([1.0000, 0.2500], dtype=torch.float64)
    """

    first: Tensor
    second: Tensor
    log_density: Tensor

    @property
    def mass(self) -> Tensor:
        """Probability at each grid point, shape (G, H), summing to one."""
        weight = torch.exp(self.log_density - self.log_density.max())
        weight = weight * torch.outer(_end_weights(self.first), _end_weights(self.second))
        return weight / weight.sum()

    @property
    def mean(self) -> Tensor:
        """Posterior mean, shape (2,)."""
        mass = self.mass
        return torch.stack([mass.sum(1) @ self.first, mass.sum(0) @ self.second])

    @property
    def covariance(self) -> Tensor:
        """Posterior covariance, shape (2, 2)."""
        mass, mean = self.mass, self.mean
        x, y = self.first - mean[0], self.second - mean[1]
        cross = x @ mass @ y
        return torch.stack([mass.sum(1) @ x**2, cross, cross, mass.sum(0) @ y**2]).reshape(2, 2)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws parameters, shape (num_samples, 2).

        The logarithm of the density is interpolated on a four times finer grid; a sample lies anywhere in its cell.
        """
        shape = [FINER * (len(axis) - 1) + 1 for axis in (self.first, self.second)]
        table = self.log_density.clamp(min=float(self.log_density.max()) - 100)[None, None]
        fine = torch.nn.functional.interpolate(table, shape, mode="bicubic", align_corners=True)[0, 0]
        axes = [torch.linspace(float(a[0]), float(a[-1]), n).to(a) for a, n in zip(self._axes, shape, strict=True)]
        mass = GridPosterior(axes[0], axes[1], fine).mass
        chosen = torch.multinomial(mass.flatten(), num_samples, replacement=True, generator=generator)
        jitter = torch.rand((num_samples, 2), generator=generator, dtype=mass.dtype, device=mass.device) - 0.5
        columns = []
        for i, (axis, position) in enumerate(zip(axes, (chosen // shape[1], chosen % shape[1]), strict=True)):
            moved = axis[position] + jitter[:, i] * (axis[1] - axis[0])
            # the cell at an end is half a cell, inside the grid
            columns.append(torch.where(moved < axis[0], 2 * axis[0] - moved, moved))
            columns[i] = torch.where(columns[i] > axis[-1], 2 * axis[-1] - columns[i], columns[i])
        return torch.stack(columns, dim=1)

    @property
    def _axes(self) -> tuple[Tensor, Tensor]:
        return self.first, self.second


def adaptive_grid(
    log_density: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, points: int = 41, passes: int = 12
) -> GridPosterior:
    """Tabulates a density where it matters.

    Args:
        log_density: Parameters (K, 2) to log-densities (K,), up to a constant.
        low: Lower corner of the prior's box, shape (2,).
        high: Upper corner, shape (2,).
        points: Grid points along each parameter.
        passes: Most refinements before giving up.

    Returns:
        The posterior on the last grid.
    """
    if points < 10:
        raise ConfigError(f"`points` is {points} but at least 10 along each parameter were expected.")
    start, end = low.clone(), high.clone()
    for _ in range(passes):
        axes = [start[i] + (end[i] - start[i]) * _unit(points, start) for i in range(2)]
        pairs = torch.cartesian_prod(*axes)
        table = log_density(pairs).reshape(points, points)
        if not bool(torch.isfinite(table.max())):
            raise DataError(
                f"The log-density is {float(table.max())} at its largest on a grid from {start.tolist()} to "
                f"{end.tolist()}; no parameter of the prior explains the data: check them for impossible values."
            )
        near = table > table.max() - DEPTH
        settled = True
        new_start, new_end = start.clone(), end.clone()
        for i in range(2):
            inside = near.any(1 - i).nonzero().flatten()
            first, last = int(inside[0]), int(inside[-1])
            # a density that reaches the edge of the window is followed beyond it, up to the edge of the box
            cut = (first == 0 and bool(start[i] > low[i])) or (last == points - 1 and bool(end[i] < high[i]))
            settled = settled and not cut and last - first >= points // 2
            margin = 2 * (end[i] - start[i]) / (points - 1)
            new_start[i] = torch.maximum(low[i], axes[i][first] - margin)
            new_end[i] = torch.minimum(high[i], axes[i][last] + margin)
        if settled:
            break
        start, end = new_start, new_end
    else:
        raise DataError(
            f"The grid has not settled after {passes} refinements: the density is too narrow, or has several peaks."
        )
    return GridPosterior(axes[0], axes[1], table)


def _unit(points: int, like: Tensor) -> Tensor:
    return torch.linspace(0, 1, points, dtype=torch.float64, device=like.device)


def _end_weights(axis: Tensor) -> Tensor:
    """Weights of a sum that stands for an integral: one, and Gregory's values at the three points of either end."""
    weights = torch.ones_like(axis)
    ends = torch.tensor([3 / 8, 7 / 6, 23 / 24]).to(axis)
    weights[:3], weights[-3:] = ends, ends.flip(0)
    return weights
