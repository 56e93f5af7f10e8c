r"""Pools: data simulated around a point, on which the local score is measured.

The mean comes from data drawn at the point itself, in pairs whose differences give the covariance. The slope comes from
data a step :math:`\pm h` away along each parameter, with the same random numbers on both sides, so that much of the
noise cancels where the simulator is smooth in its parameters. Where the simulator can redraw a set under its own
conditions (``like``), every draw is at the observed covariates; where it cannot, sets whose points nearly agree share a pool.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fishnets.errors import ConfigError, DataError
from fishnets.priors import Prior
from fishnets.ragged import Sets
from fishnets.sets.centring import Centring
from fishnets.sets.sources import Simulator, simulate
from fishnets.sets.support import supported

__all__ = ["LocalModel", "Pools", "stacked"]

SMALLEST_POOL = 20_000  # for the covariance to be known to a per cent
SLOPE_POOL = (50_000, 500_000)  # fewest and most data on either side of a slope
STEP = 0.2  # of the prior's standard deviation, between the point and either side
SHARED_WIDTHS, SHARED_WAY = 2.0, 0.05  # farthest from a shared point, in widths of the posterior and of the prior


class LocalModel(Protocol):
    """What a pool asks of a model."""

    @property
    def prior(self) -> Prior: ...

    @property
    def theta_scale(self) -> Tensor: ...

    def row_scores(self, sets: Sets, at: Tensor) -> Tensor: ...


class _Moments(NamedTuple):
    mean: Tensor
    covariance: Tensor
    number: int


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
        if not 0 < self.loss < 1:
            raise ConfigError(f"`loss` is {self.loss} but a share of the information between 0 and 1 was expected.")
        if self.spread not in ("simulated", "observed"):
            raise ConfigError(f'`spread` is {self.spread!r} but "simulated" or "observed" was expected.')

    @property
    def at_covariates(self) -> bool:
        """Whether data are drawn at the observed covariates."""
        return hasattr(self.simulator, "like")

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
        keys = torch.arange(len(sets), device=at.device).unsqueeze(1).to(at) if self.at_covariates else at[:, :0]
        _, group = torch.cat([keys, at, around], dim=1).unique(dim=0, return_inverse=True)
        measured: dict[int, tuple[Tensor, ...]] = {}
        for i, key in enumerate(group.tolist()):
            if key not in measured:
                largest = int(sets.sizes[group == key].max())
                wanted = max(SMALLEST_POOL, math.ceil(largest / min(0.5, self.loss * rough)))
                on_a_side = min(max(wanted // (2 * at.shape[1]), SLOPE_POOL[0]), SLOPE_POOL[1])
                measured[key] = self.measure_one(sets[i], at[i], around[i], wanted, on_a_side)
        found = stacked(around, [measured[key] for key in group.tolist()])
        return found if self.spread == "simulated" else replace(found, spread=self._observed_spread(sets, at))

    def measure_one(
        self, observed: Sets, at: Tensor, around: Tensor, wanted: int, on_a_side: int
    ) -> tuple[Tensor, ...]:
        """Mean (p,), slope (p, p), covariance (p, p) of the score, data behind the mean and data behind all.

        Args:
            observed: A single set: its covariates are those of the simulated data, where the simulator has ``like``.
            at: Expansion point, shape (p,).
            around: Parameters of the simulated data, shape (p,).
            wanted: Data for the mean and the covariance.
            on_a_side: Data on either side for each column of the slope.
        """
        centre, scale = self._moments(observed, at, around, wanted), self.model.theta_scale.to(at)
        columns, total = [], centre.number
        for j in range(len(at)):
            step = self._step_inside(around, j, STEP * scale[j])
            state, sides = self.generator.get_state(), []
            for side in (around + step, around - step):
                self.generator.set_state(state)
                sides.append(self._moments(observed, at, side, on_a_side))
            columns.append((sides[0].mean - sides[1].mean) / (2 * step[j]))
            total += sides[0].number + sides[1].number
        counts = (at.new_tensor(float(centre.number)), torch.tensor(total, device=at.device))
        return centre.mean, torch.stack(columns, dim=-1), centre.covariance, *counts

    def _moments(self, observed: Sets, at: Tensor, theta: Tensor, wanted: int) -> _Moments:
        """Mean and covariance of the score of data drawn at parameters (p,)."""
        total, outer, count = torch.zeros_like(at), at.new_zeros(len(at), len(at)), 0
        for pairs in self._draws(observed, theta.to(observed.values.dtype).unsqueeze(0), wanted):
            scores = self.model.row_scores(pairs, at)
            first, second = scores.chunk(2)
            total += scores.sum(0)
            outer += (first - second).mT @ (first - second)
            count += len(scores)
        return _Moments(total / count, outer / count, count)

    def _draws(self, observed: Sets, theta: Tensor, wanted: int) -> Iterator[Sets]:
        """Single sets whose second half is drawn under the conditions of the first, row by row."""
        if not self.at_covariates or not observed.num_data:
            rounds = math.ceil(wanted / self.chunk)
            size = torch.tensor([2 * math.ceil(wanted / rounds / 2)], device=theta.device)
            for _ in range(rounds):
                yield simulate(self.simulator, theta, size, self.generator, observed.num_features)
            return
        like: Any = self.simulator
        rounds = math.ceil(wanted / (2 * max(1, observed.num_data)))
        for _, piece in observed.chunks(max(1, self.chunk // 2)):
            copies = max(1, min(rounds, self.chunk // (2 * piece.num_data)))
            rows = piece.values.repeat(2 * copies, 1)
            for _ in range(math.ceil(rounds / copies)):
                yield like.like(Sets.from_offsets(rows, [0, len(rows)]), theta, self.generator)

    def _step_inside(self, point: Tensor, parameter: int, length: Tensor) -> Tensor:
        """A step (p,) along one parameter, halved until both sides lie in the prior's support."""
        step = torch.zeros_like(point)
        step[parameter] = length
        for _ in range(50):
            if bool(supported(self.model.prior, torch.stack([point + step, point - step])).all()):
                break
            step = step / 2
        return step

    def _observed_spread(self, sets: Sets, at: Tensor) -> Tensor:
        """Covariance (B, p, p) of the scores of observed rows."""
        spreads = []
        for i in range(len(sets)):
            total, outer = torch.zeros_like(at[i]), at.new_zeros(at.shape[1], at.shape[1])
            for _, piece in sets[i].chunks(self.chunk):
                scores = self.model.row_scores(piece, at[i])
                total += scores.sum(0)
                outer += scores.mT @ scores
            number = sets[i].num_data
            if number <= at.shape[1]:
                raise DataError(
                    f"Set {i} has {number} rows, too few for their covariance; use `spread=\"simulated\"`."
                )
            spreads.append((outer - torch.outer(total, total) / number) / (number - 1))
        return torch.stack(spreads)


def stacked(around: Tensor, measured: list[tuple[Tensor, ...]]) -> Centring:
    """The centring of B sets from what :meth:`Pools.measure_one` found of each; ``around`` has shape (B, p)."""
    mean, slope, covariance, count, total = (torch.stack(column) for column in zip(*measured, strict=True))
    return Centring(around, mean, slope, covariance, covariance, count, total)
