r"""Pools: data simulated around a point, on which the local score is measured.

Mean and covariance come from data drawn at the point itself, in pairs where the covariates are given. The slope comes
from data a step :math:`\pm h` away along each parameter, with the same random numbers on both sides, so that much of
the noise cancels where the simulator is smooth in its parameters. A step is a fifth of what a single datum leaves
uncertain, or of the prior's standard deviation where that is less: a likelihood changes little on that scale. It is
shorter on a side where the prior's support ends.

Where the simulator can redraw a set under its own conditions (``like``), every draw is at the observed covariates;
where it cannot, sets whose points nearly agree share a pool.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fishnets.errors import ConfigError, DataError, describe_rows
from fishnets.ops.segment_information import segment_sum
from fishnets.priors import Prior
from fishnets.ragged import Sets
from fishnets.sets.centring import Centring
from fishnets.sets.sources import Simulator, simulate
from fishnets.sets.support import supported

__all__ = ["LocalModel", "Pools", "expect_loss_and_spread"]

SMALLEST_POOL = 20_000  # for the covariance to be known to a per cent
SLOPE_POOL = (50_000, 500_000)  # fewest and most data on either side of a slope
STEP = 0.2  # of the standard deviation of the prior, or after one datum, between the point and either side
SHARED_WIDTHS, SHARED_WAY = 2.0, 0.05  # farthest from a shared point, in widths of the posterior and of the prior


def expect_loss_and_spread(loss: float, spread: str) -> None:
    """Raises :class:`ConfigError` for a share of information or a source of covariances that makes no sense."""
    if not 0 < loss < 1:
        raise ConfigError(f"`loss` is {loss} but a share of the information between 0 and 1 was expected.")
    if spread not in ("simulated", "observed"):
        raise ConfigError(f'`spread` is {spread!r} but "simulated" or "observed" was expected.')


class LocalModel(Protocol):
    """What a pool asks of a model."""

    @property
    def prior(self) -> Prior: ...

    @property
    def theta_scale(self) -> Tensor: ...

    @property
    def num_features(self) -> int: ...

    def row_scores(self, sets: Sets, at: Tensor) -> Tensor: ...


class _Moments(NamedTuple):
    mean: Tensor  # (B, p)
    covariance: Tensor  # (B, p, p)
    number: Tensor  # data behind them, (B,)


@dataclass(frozen=True, eq=False)
class Pools:
    """Simulations on demand.

    Args:
        model: A model with local networks.
        simulator: The simulator; a method ``like(sets, theta, generator)`` redraws sets at their own covariates.
        loss: Share of information that the intercept's noise may cost: n / loss data are simulated for a set of n, but
            not fewer than the covariance needs.
        spread: Where the covariance of the score comes from: ``"simulated"`` data, or the ``"observed"`` rows, which
            holds for data that the simulator describes badly.
        generator: Source of randomness on the sets' device.
        chunk: Rows simulated at once.
    """

    model: LocalModel
    simulator: Simulator
    loss: float
    spread: Literal["simulated", "observed"]
    generator: torch.Generator
    chunk: int

    def __post_init__(self) -> None:
        if not callable(self.simulator):
            raise DataError(
                f"`simulator` is a {type(self.simulator).__name__} but a simulator, called as `simulator(theta, size, "
                "generator)`, was expected."
            )
        expect_loss_and_spread(self.loss, self.spread)

    @property
    def at_covariates(self) -> bool:
        """Whether data are drawn at the observed covariates."""
        return callable(getattr(self.simulator, "like", None))

    @property
    def _draws(self) -> int:
        """Times that every row of a template is drawn."""
        return 2 if self.at_covariates else 1

    def shared(self, points: Tensor, precision: Tensor | None = None, at: Tensor | None = None) -> Tensor:
        """Points with those that nearly agree moved to their mean, so that they share a pool.

        Args:
            points: Points, shape (B, p).
            precision: Posterior precisions that say how far is near, shape (B, p, p); by default the prior alone does.
            at: Expansion points, shape (B, p); only points with the same one are moved together.
        """
        if self.at_covariates:
            return points
        points, scale = points.clone(), self.model.theta_scale.to(points)
        left = torch.arange(len(points), device=points.device)
        while len(left):
            offset = points[left] - points[left[0]]
            close = (offset.abs() / scale).amax(-1) <= SHARED_WAY
            if precision is not None:
                column = offset.unsqueeze(-1)
                close &= (column.mT @ precision[left] @ column).flatten() <= len(scale) * SHARED_WIDTHS**2
            if at is not None:
                close &= (at[left] == at[left[0]]).all(-1)
            points[left[close]] = points[left[close]].mean(0)
            left = left[~close]
        return points

    def measure(self, sets: Sets, at: Tensor, around: Tensor, rough: float = 1.0) -> Centring:
        """Measures mean, slope and covariance of each set's local score.

        Args:
            sets: The observed sets, B of them.
            at: Expansion points, shape (B, p).
            around: Parameters of the simulated data, inside the prior's support, shape (B, p).
            rough: By how much fewer data than the wanted loss asks for will do.
        """
        self._expect_rows(sets, at.shape[1])
        filled = sets.sizes.nonzero().flatten()
        if len(filled) < max(1, len(sets)):  # an empty set has no covariates, and nothing to centre
            found = self.measure(sets[filled], at[filled], around[filled], rough) if len(filled) else None
            return Centring.of_nothing(around) if found is None else Centring.of_nothing(around).updated(filled, found)
        keys = torch.arange(len(sets), device=at.device).unsqueeze(1).to(at) if self.at_covariates else at[:, :0]
        _, group = torch.cat([keys, at, around], dim=1).unique(dim=0, return_inverse=True)
        sizes = sets.sizes.tolist()
        first: dict[int, int] = {}
        wanted: dict[int, int] = {}
        for i, key in enumerate(group.tolist()):
            number = max(math.ceil(SMALLEST_POOL / rough), math.ceil(sizes[i] / min(0.5, self.loss * rough)))
            first.setdefault(key, i)
            wanted[key] = max(number, wanted.get(key, 0))
        order = torch.tensor([first[key] for key in sorted(first)], device=at.device)
        counts = [wanted[key] for key in sorted(first)]
        low, high = (math.ceil(bound / rough) for bound in SLOPE_POOL)
        sides = [min(max(count // (2 * at.shape[1]), low), high) for count in counts]
        found = self.measured(sets[order], at[order], around[order], counts, sides)
        every = Centring(*(getattr(found, field.name)[group] for field in fields(found)))
        return every if self.spread == "simulated" else replace(every, spread=self._observed_spread(sets, at))

    def measured(
        self, sets: Sets, at: Tensor, around: Tensor, wanted: Sequence[int], on_a_side: Sequence[int]
    ) -> Centring:
        """Measures with given numbers of data for each set: for the mean, and on either side of each slope."""
        centre = self._moments(sets, at, around, wanted)
        width = centre.covariance.diagonal(dim1=-2, dim2=-1).clamp(min=1e-300).rsqrt()
        length = STEP * torch.minimum(width, self.model.theta_scale.to(around))
        above, below = self._steps_inside(around, length), self._steps_inside(around, -length)
        columns, total = [], centre.number
        for j in range(at.shape[1]):
            state, sides = self.generator.get_state(), []
            for steps in (above, below):
                point = around.clone()
                point[:, j] += steps[:, j]
                self.generator.set_state(state)
                sides.append(self._moments(sets, at, point, on_a_side))
            columns.append((sides[0].mean - sides[1].mean) / (above - below)[:, j : j + 1])
            total = total + sides[0].number + sides[1].number
        slope = torch.stack(columns, dim=-1)
        spread, count = centre.covariance, centre.number.to(at)
        return Centring(around, centre.mean, slope, spread, spread, count, total.long())

    def _moments(self, sets: Sets, at: Tensor, theta: Tensor, wanted: Sequence[int]) -> _Moments:
        """Mean and covariance of the score of data drawn at parameters (B, p).

        At given covariates the mean differs from row to row: the covariance then comes from pairs of draws.
        """
        num_sets, p = at.shape
        total, outer, number = at.new_zeros(num_sets, p), at.new_zeros(num_sets, p * p), at.new_zeros(num_sets)
        for rows, template in self._batches(sets, wanted):
            drawn = [self._draw(template, theta[rows].to(sets.values.dtype)) for _ in range(self._draws)]
            scores = [self.model.row_scores(one, at[rows]) for one in drawn]
            spread = scores[0] if len(drawn) == 1 else (scores[0] - scores[1])
            products = (spread.unsqueeze(-1) * spread.unsqueeze(-2)).flatten(1)
            outer.index_add_(0, rows, segment_sum(products, drawn[0].offsets))
            for one, score in zip(drawn, scores, strict=True):
                total.index_add_(0, rows, segment_sum(score, one.offsets))
                number.index_add_(0, rows, one.sizes.to(number))
        self._expect_drawn(number)
        count = number.unsqueeze(-1)
        mean, second = total / count, (outer / count).unflatten(1, (p, p))
        if self.at_covariates:
            return _Moments(mean, second, number)
        return _Moments(mean, second - mean.unsqueeze(-1) * mean.unsqueeze(-2), number)

    @staticmethod
    def _expect_drawn(number: Tensor) -> None:
        """Raises :class:`DataError` where selection has left too few data for a covariance."""
        few = (number <= 1).nonzero().flatten().tolist()
        if few:
            raise DataError(
                f"The simulator returned {int(number[few[0]])} data around the estimate of set {few[0]}, of which many "
                "more were asked for; where it selects data, it should draw until there are enough."
            )

    def _draw(self, template: Sets, theta: Tensor) -> Sets:
        """New data for parameters (G, p), at the rows of a template, or as many as it has."""
        simulator: Any = self.simulator
        draw = partial(_redraw, simulator, template) if self.at_covariates else simulator
        drawn = simulate(draw, theta, template.sizes, self.generator, template.num_features).check_finite()
        if self.at_covariates and not torch.equal(drawn.offsets, template.offsets):
            raise DataError("The simulator's `like` returned sets of other sizes than it was given.")
        return drawn

    def _batches(self, sets: Sets, wanted: Sequence[int]) -> Iterator[tuple[Tensor, Sets]]:
        """Numbers of sets (G,) and templates with the rows that are wanted of each, over all draws of a template.

        A set that wants more rows than fit at once comes several times, in part or in whole.
        """
        rows: list[int] = []
        parts: list[Tensor] = []
        for i, part in self._parts(sets, wanted):
            if parts and sum(map(len, parts)) + len(part) > self.chunk // self._draws:
                yield self._template(rows, parts)
                rows, parts = [], []
            rows.append(i)
            parts.append(part)
        if parts:
            yield self._template(rows, parts)

    def _parts(self, sets: Sets, wanted: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        """Number of a set and rows of its template, at most a chunk over all its draws."""
        most = max(1, self.chunk // self._draws)
        for i, own in enumerate(sets.to_list()):
            if not self.at_covariates:
                blank = own.new_zeros(1, sets.num_features)
                yield from ((i, part) for part in blank.expand(wanted[i], -1).split(most))
                continue
            rounds = math.ceil(wanted[i] / (self._draws * len(own)))
            for piece in own.split(most):
                copies = max(1, most // len(piece))
                for done in range(0, rounds, copies):
                    yield i, piece.repeat(min(copies, rounds - done), 1)

    @staticmethod
    def _template(rows: list[int], parts: list[Tensor]) -> tuple[Tensor, Sets]:
        sizes = torch.tensor([0, *map(len, parts)], device=parts[0].device)
        return torch.tensor(rows, device=parts[0].device), Sets(torch.cat(parts), sizes.cumsum(0))

    def _steps_inside(self, points: Tensor, steps: Tensor) -> Tensor:
        """Steps (B, p) along each parameter, halved until they end in the prior's support."""
        steps = steps.clone()
        for j in range(points.shape[1]):
            for _ in range(50):
                moved = points.clone()
                moved[:, j] += steps[:, j]
                inside = supported(self.model.prior, moved)
                if bool(inside.all()):
                    break
                steps[:, j] = torch.where(inside, steps[:, j], steps[:, j] / 2)
            else:  # on the edge itself there is no way out
                steps[:, j] = torch.where(inside, steps[:, j], torch.zeros_like(steps[:, j]))
        return steps

    def _expect_rows(self, sets: Sets, num_params: int) -> None:
        """Raises :class:`DataError` where a covariance is to come from too few rows; an empty set needs none."""
        few = ((sets.sizes > 0) & (sets.sizes <= num_params)).nonzero().flatten().tolist()
        if few and self.spread == "observed":
            raise DataError(
                f"Sets {describe_rows(few)} have too few rows for the covariance of their scores; use "
                '`spread="simulated"`.'
            )

    def _observed_spread(self, sets: Sets, at: Tensor) -> Tensor:
        """Covariance (B, p, p) of the scores of observed rows."""
        num_sets, p = at.shape
        total, outer = at.new_zeros(num_sets, p), at.new_zeros(num_sets, p * p)
        for first, piece in sets.chunks(self.chunk):
            rows = slice(first, first + len(piece))
            scores = self.model.row_scores(piece, at[rows])
            products = (scores.unsqueeze(-1) * scores.unsqueeze(-2)).flatten(1)
            total[rows] += segment_sum(scores, piece.offsets)
            outer[rows] += segment_sum(products, piece.offsets)
        count = sets.sizes.to(at).view(-1, 1, 1)
        mean = (total / count.squeeze(-1)).unsqueeze(-1)
        spread: Tensor = (outer.unflatten(1, (p, p)) - count * mean @ mean.mT) / (count - 1)
        return spread


def _redraw(simulator: Any, template: Sets, theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
    """New data for parameters (G, p) at the covariates of a template."""
    drawn: Sets = simulator.like(template, theta, generator)
    return drawn
