r"""Are levels uniform? A test with one number, and bands that show where they are not.

Calibration checks give T levels :math:`\ell_t` that are uniform if the posterior is calibrated (see
:mod:`fishnets.inference.calibration`). Two answers:

* the Kolmogorov-Smirnov distance :math:`D = \sup_z |\hat F(z) - z|` of their empirical distribution :math:`\hat F`,
  with the exact p-value of Marsaglia, Tsang and Wang (2003, J. Stat. Soft. 8, 18);
* a *simultaneous* band (Säilynoja, Bürkner and Vehtari 2022, arXiv:2103.10522): at each :math:`z_j` the count
  :math:`T \hat F(z_j)` is binomial; the band is the central binomial interval of probability :math:`1 - \gamma`, with
  :math:`\gamma` such that the whole curve stays inside with probability 0.95. It sees the tails, where D is blind.

The probability of staying inside is computed, not simulated. Levels of a Poisson number of sets, given that the number
is T, are T uniform levels; and a Poisson process has independent increments, so

.. math:: P(\text{inside}) = P(\text{Poisson path inside}, N = T) / P(N = T) ,

one convolution per cell, cut to the band after each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fishnets.arrays import ArrayLike, as_float
from fishnets.errors import ConfigError, DataError, NonFiniteError, ShapeError, describe_rows

__all__ = ["Uniformity", "expected_coverage", "rank_histogram_band", "simultaneous_band", "uniformity"]

MIN_SETS = 10
Array = np.ndarray[Any, np.dtype[Any]]
Limits = tuple[Array, Array]  # smallest and largest counts allowed in each cell


@dataclass(frozen=True, eq=False)
class Uniformity:
    """What a test of uniformity found.

    Attributes:
        levels: The levels, sorted, shape (T,).
        statistic: Kolmogorov-Smirnov distance from the uniform distribution, two-sided.
        p_value: Chance of a larger distance under calibration, to 1e-6 up to 10,000 sets and to 1e-3 beyond.
        inside: Whether the empirical distribution lies in the simultaneous 95 % band at all of :attr:`grid`.

    Example:
        >>> print(uniformity((torch.arange(100.0) + 0.5) / 100))
        KS = 0.005, p = 1, inside the 95 % band (100 sets)
    """

    levels: Tensor
    statistic: float
    p_value: float
    inside: bool

    @property
    def num_sets(self) -> int:
        """Number of test sets T."""
        return len(self.levels)

    @property
    def grid(self) -> Tensor:
        """Where the band is tested, shape (G,)."""
        return default_grid(self.num_sets)

    @property
    def difference(self) -> Tensor:
        """Empirical distribution minus the uniform one on :attr:`grid`, shape (G,)."""
        return expected_coverage(self.levels, self.grid) - self.grid

    @property
    def band(self) -> tuple[Tensor, Tensor]:
        """Lower and upper edge of the simultaneous 95 % band around :attr:`difference`, each of shape (G,)."""
        lower, upper = simultaneous_band(self.num_sets, self.grid)
        return lower - self.grid, upper - self.grid

    def __str__(self) -> str:
        side = "inside" if self.inside else "outside"
        return f"KS = {self.statistic:.3f}, p = {self.p_value:.3g}, {side} the 95 % band ({self.num_sets} sets)"


def uniformity(levels: ArrayLike) -> Uniformity:
    r"""Tests whether levels are uniform on [0, 1].

    Testing p parameters at k set sizes makes pk tests: compare the smallest p-value with 0.05 / pk.

    Args:
        levels: One level per test set, shape (T,), T at least 10. Give the columns of :func:`pit` one by one.

    Returns:
        Distance, p-value and whether the 95 % band holds the levels.

    Example:
        >>> found = uniformity(torch.rand(1000, generator=torch.Generator().manual_seed(2)) ** 2)
        >>> found.p_value < 1e-6, found.inside
        (True, False)
    """
    ordered = checked_levels(levels).sort().values
    count = len(ordered)
    steps = torch.arange(count + 1).to(ordered) / count
    distance = max((steps[1:] - ordered).max().item(), (ordered - steps[:-1]).max().item())
    grid = default_grid(count)
    lower, upper = simultaneous_band(count, grid)
    found = expected_coverage(ordered, grid)
    inside = bool(((lower <= found) & (found <= upper)).all())
    return Uniformity(ordered, distance, _survival(distance, count), inside)


def expected_coverage(levels: ArrayLike, grid: ArrayLike) -> Tensor:
    r"""Share of test sets whose level is at most each nominal one: the empirical distribution of the levels.

    For levels of :func:`coverage_levels`, this is the empirical coverage of credible regions of nominal content
    ``grid``; for those of :func:`pit`, give ``(2 * levels - 1).abs()`` and it is the coverage of central intervals.

    Args:
        levels: Levels, shape (T,).
        grid: Nominal levels, shape (G,).

    Returns:
        Empirical coverage, float64, shape (G,).

    Example:
        >>> expected_coverage(torch.arange(10) / 10, [0.25, 0.5])
        tensor([0.3000, 0.6000], dtype=torch.float64)
    """
    ordered = checked_levels(levels).sort().values
    nominal = as_float(grid, "grid").to(ordered)
    return torch.searchsorted(ordered, nominal.contiguous(), right=True).to(torch.float64) / len(ordered)


def simultaneous_band(num_sets: int, grid: ArrayLike, level: float = 0.95) -> tuple[Tensor, Tensor]:
    r"""Band that holds the empirical distribution of uniform levels at all points of a grid at once.

    Counts are whole, so the band is the narrowest one of its family whose probability is at least ``level``.

    Args:
        num_sets: Number of test sets T.
        grid: Points :math:`0 < z_1 < \dots < z_G < 1`, shape (G,).
        level: Probability that the whole curve stays inside.

    Returns:
        Lower and upper edge of the empirical distribution, each float64, shape (G,).

    Example:
        >>> lower, upper = simultaneous_band(1000, [0.25, 0.5, 0.75])
        >>> lower[1], upper[1]
        (tensor(0.4630, dtype=torch.float64), tensor(0.5370, dtype=torch.float64))
    """
    points = tuple(as_float(grid, "grid").to(torch.float64).tolist())
    if not points or any(not low < high for low, high in zip((0.0, *points), (*points, 1.0), strict=True)):
        raise DataError(f"`grid` is {describe_rows(points)} but increasing points between 0 and 1 were expected.")
    _expect_level(num_sets, level)
    low, high = _ecdf_limits(num_sets, points, level)
    return torch.from_numpy(low / num_sets), torch.from_numpy(high / num_sets)


def rank_histogram_band(
    num_sets: int, num_samples: int, num_bins: int, level: float = 0.95
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Band that holds all bars of a histogram of uniform ranks at once.

    The S + 1 ranks go to bins by ``ranks * num_bins // (num_samples + 1)``; bins that get one rank more than others
    have a band of their own.

    Args:
        num_sets: Number of test sets T.
        num_samples: Number of posterior samples S, so that ranks run from 0 to S.
        num_bins: Number of bins B, at most S + 1.
        level: Probability that all bars stay inside.

    Returns:
        Smallest, expected and largest count of each bin, float64, shape (B,) each.

    Example:
        >>> lower, expected, upper = rank_histogram_band(1000, 99, 20)
        >>> lower[0].item(), expected[0].item(), upper[0].item()
        (31.0, 50.0, 72.0)
    """
    _expect_level(num_sets, level)
    if not 2 <= num_bins <= num_samples + 1:
        raise ConfigError(
            f"`num_bins` is {num_bins} but 2 to {num_samples + 1} were expected, for ranks from 0 to {num_samples}."
        )
    bins = np.arange(num_samples + 1) * num_bins // (num_samples + 1)
    shares = np.bincount(bins, minlength=num_bins) / (num_samples + 1)

    def inside(limits: Limits) -> float:
        return _probability_inside(num_sets, shares, limits, (np.zeros(num_bins), np.full(num_bins, num_sets)))

    low, high = _narrowest(num_sets, shares, level, inside)
    return torch.from_numpy(low * 1.0), torch.from_numpy(num_sets * shares), torch.from_numpy(high * 1.0)


def default_grid(num_sets: int) -> Tensor:
    """Points where bands are tested and drawn: 99, or one for every set where there are fewer."""
    cells = min(num_sets, 100)
    return torch.arange(1, cells).to(torch.float64) / cells


def checked_levels(levels: ArrayLike) -> Tensor:
    """Levels in [0, 1], float64, shape (T,)."""
    values = as_float(levels, "levels").to(torch.float64)
    if values.ndim != 1:
        raise ShapeError(
            f"`levels` has shape {tuple(values.shape)} but one level per test set, (T,), was expected. Test the "
            "parameters one by one: `levels[:, 0]`."
        )
    if len(values) < MIN_SETS:
        raise DataError(f"`levels` holds {len(values)} test sets but at least {MIN_SETS} were expected (better 1000).")
    wrong = values.isnan().nonzero().flatten().tolist()
    if wrong:
        raise NonFiniteError(f"`levels` is NaN in {len(wrong)} test sets, {describe_rows(wrong)}.")
    wrong = ((values < 0) | (values > 1)).nonzero().flatten().tolist()
    if wrong:
        raise DataError(
            f"`levels` is {values[wrong[0]].item():g} in test set {wrong[0]} but levels lie between 0 and 1. Divide "
            "ranks by the number of samples plus one, or use `pit`."
        )
    return values


def _expect_level(num_sets: int, level: float) -> None:
    if num_sets < MIN_SETS:
        raise DataError(f"`num_sets` is {num_sets} but at least {MIN_SETS} test sets were expected.")
    if not 0 < level < 1:
        raise ConfigError(f"`level` is {level} but a probability between 0 and 1 was expected, 0.95 say.")


@lru_cache(maxsize=32)
def _ecdf_limits(num_sets: int, points: tuple[float, ...], level: float) -> Limits:
    """Smallest and largest number of levels below each point."""
    cells = np.diff(points, prepend=0.0, append=1.0)

    def inside(limits: Limits) -> float:
        low, high = (np.append(edge, num_sets) for edge in limits)
        largest = high - np.append(0, low[:-1])
        return _probability_inside(num_sets, cells, (np.zeros(len(cells)), largest), (low, high))

    return _narrowest(num_sets, np.array(points), level, inside)


def _narrowest(num_sets: int, shares: Array, level: float, inside: Callable[[Limits], float]) -> Limits:
    """Bisects for the pointwise miss probability whose binomial intervals hold all counts with chance ``level``."""
    tables = [_binomial(num_sets, share) for share in shares]
    narrow, wide = math.log(1 - level), math.log((1 - level) / len(shares))  # the wide end is Bonferroni's
    for _ in range(18):
        middle = (narrow + wide) / 2
        if inside(_central(tables, math.exp(middle))) >= level:
            wide = middle
        else:
            narrow = middle
    return _central(tables, math.exp(wide))


def _central(tables: Sequence[tuple[int, Array]], miss: float) -> Limits:
    """Central intervals that each cell's count leaves with probability ``miss`` or less."""
    low = [first + np.searchsorted(cumulated, miss / 2, side="right") for first, cumulated in tables]
    high = [first + np.searchsorted(cumulated, 1 - miss / 2) for first, cumulated in tables]
    return np.array(low), np.array(high)


def _binomial(num_sets: int, share: float) -> tuple[int, Array]:
    """Cumulated binomial probabilities within twelve standard deviations, and the count they start at."""
    reach = 12 * math.sqrt(num_sets * share * (1 - share)) + 12
    first, last = max(0, int(num_sets * share - reach)), min(num_sets, int(num_sets * share + reach))
    k = np.arange(first, last + 1)
    log_choose = math.lgamma(num_sets + 1) - _log_factorial(k) - _log_factorial(num_sets - k)
    return first, np.cumsum(np.exp(log_choose + k * math.log(share) + (num_sets - k) * math.log1p(-share)))


def _probability_inside(num_sets: int, shares: Array, increments: Limits, totals: Limits) -> float:
    """Chance that the counts of all cells, and their running totals, stay within their limits."""
    state, offset = np.ones(1), 0
    for share, least, most, low, high in zip(shares, *increments, *totals, strict=True):
        k = np.arange(int(least), int(most) + 1)
        rate = num_sets * share
        state = np.convolve(state, np.exp(k * math.log(rate) - rate - _log_factorial(k)))
        first = offset + int(least)
        offset = max(first, int(low))
        state = state[offset - first : int(high) - first + 1]
    if not offset <= num_sets < offset + len(state):
        return 0.0
    log_total = num_sets * math.log(num_sets) - num_sets - math.lgamma(num_sets + 1)
    return float(state[num_sets - offset]) / math.exp(log_total)


def _log_factorial(k: Array) -> Array:
    values: Array = torch.lgamma(torch.from_numpy(k + 1.0)).numpy()
    return values


def _survival(distance: float, count: int) -> float:
    """Chance that the Kolmogorov-Smirnov distance of ``count`` uniform levels exceeds ``distance``."""
    scaled = count * distance**2
    if scaled > 7.24 or (scaled > 3.76 and count > 99):  # their tail, to seven decimals; 1 - P would lose digits
        return min(1.0, 2 * math.exp(-(2.000071 + 0.331 / math.sqrt(count) + 1.409 / count) * scaled))
    if count > 10_000:  # the limit, with Stephens' effective count
        root = (math.sqrt(count) + 0.12 + 0.11 / math.sqrt(count)) * distance
        series = sum((-1.0) ** (k - 1) * math.exp(-2 * (k * root) ** 2) for k in range(1, 101))
        return min(1.0, max(0.0, 2 * series))
    return min(1.0, max(0.0, 1 - _within(distance, count)))


def _within(distance: float, count: int) -> float:
    r"""Exact :math:`P(D_n < d) = n!\, n^{-n} [H^n]_{kk}` of Marsaglia, Tsang and Wang, with their matrix H."""
    k = int(count * distance) + 1
    size, h = 2 * k - 1, k - count * distance
    index = torch.arange(size, dtype=torch.float64)
    gap = index.unsqueeze(1) - index + 1
    matrix = (gap >= 0).to(torch.float64)
    matrix[:, 0] -= h ** (index + 1)
    matrix[-1] -= h ** (size - index)
    matrix[-1, 0] += max(0.0, 2 * h - 1) ** size
    matrix *= torch.exp(-torch.lgamma(gap.clamp(min=0) + 1))
    result, log_scale, log_power = torch.eye(size, dtype=torch.float64), 0.0, 0.0
    for bit in reversed(bin(count)[2:]):  # H^n by squaring; scales are kept apart, as H^n overflows
        if bit == "1":
            result, log_scale = result @ matrix, log_scale + log_power
        matrix = matrix @ matrix
        top = float(matrix.abs().max())
        matrix, log_power = matrix / top, 2 * log_power + math.log(top)
        peak = float(result.abs().max())
        result, log_scale = result / peak, log_scale + math.log(peak)
    centre = float(result[k - 1, k - 1])
    if centre <= 0:
        return 0.0
    return math.exp(math.log(centre) + log_scale + math.lgamma(count + 1) - count * math.log(count))
