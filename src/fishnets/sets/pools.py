r"""Pools: data simulated around an expansion point, on which the local score is measured.

The intercept comes from data drawn at the point itself, in pairs whose differences give the covariance. The slope comes
from data a step :math:`\pm h` away along each parameter, with the same random numbers on both sides, so that much of the
noise cancels where the simulator is smooth in its parameters. Where the simulator can redraw a set under its own
conditions (``like``), every draw is at the observed covariates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from fishnets.errors import ConfigError
from fishnets.priors import Prior
from fishnets.ragged import Sets
from fishnets.sets.centring import Centring
from fishnets.sets.sources import Simulator, simulate
from fishnets.sets.support import supported

__all__ = ["measure_centring"]

SMALLEST_POOL = 20_000  # for the covariance to be known to a per cent
SLOPE_POOL = (50_000, 500_000)  # fewest and most data on either side of a slope
STEP = 0.2  # of the prior's standard deviation, between the point and either side


class LocalModel(Protocol):
    """What a pool asks of a model."""

    @property
    def prior(self) -> Prior: ...

    @property
    def theta_scale(self) -> Tensor: ...

    def row_scores(self, sets: Sets, at: Tensor) -> Tensor: ...


def measure_centring(
    model: LocalModel,
    simulator: Simulator,
    sets: Sets,
    at: Tensor,
    loss: float,
    generator: torch.Generator,
    chunk: int,
) -> Centring:
    """Measures intercept, slope and covariance of the local score of each set.

    Args:
        model: A model with local networks.
        simulator: The simulator; with a method ``like`` it redraws the sets at their own covariates.
        sets: The observed sets, B of them.
        at: Expansion points inside the prior's support, shape (B, p).
        loss: Share of information that the intercept's noise may cost; n / loss data are simulated, but not fewer than
            the covariance needs.
        generator: Source of randomness on the sets' device.
        chunk: Rows simulated at once.

    Returns:
        The centring of every set.
    """
    if not 0 < loss < 1:
        raise ConfigError(f"`loss` is {loss} but a share of the information between 0 and 1 was expected.")
    found = [
        _measure_one(model, simulator, sets[i], at[i], loss, generator, chunk) for i in range(len(sets))
    ]
    parts = (torch.stack(column) for column in zip(*found, strict=True))
    return Centring(at, *parts)


def _measure_one(
    model: LocalModel,
    simulator: Simulator,
    observed: Sets,
    point: Tensor,
    loss: float,
    generator: torch.Generator,
    chunk: int,
) -> tuple[Tensor, ...]:
    """Intercept (p,), slope (p, p) and covariance (p, p) of one set, data behind the intercept, and all simulated."""
    scale, num_params = model.theta_scale.to(point), len(point)
    wanted = max(SMALLEST_POOL, math.ceil(observed.num_data / loss))
    draw = _drawer(simulator, observed, generator, chunk)
    total, count = torch.zeros_like(point), 0
    outer = point.new_zeros(num_params, num_params)
    for pair in draw(point, wanted):
        scores = model.row_scores(pair, point)
        first, second = scores.chunk(2)
        total += scores.sum(0)
        outer += (first - second).mT @ (first - second)
        count += len(scores)
    spread = outer / count
    slope, everything = torch.empty_like(spread), count
    low, high = SLOPE_POOL
    on_a_side = min(max(wanted // (2 * num_params), low), high)
    for j in range(num_params):
        step = _step_inside(model.prior, point, j, STEP * scale[j])
        state = generator.get_state()
        means = []
        for sign in (1, -1):
            generator.set_state(state)
            there = point.clone()
            there[j] += sign * step
            rows = [model.row_scores(pair, point) for pair in draw(there, on_a_side)]
            size = sum(len(row) for row in rows)
            everything += size
            means.append(torch.stack([row.sum(0) for row in rows]).sum(0) / size)
        slope[:, j] = (means[0] - means[1]) / (2 * step)
    numbers = (point.new_tensor(float(count)), torch.tensor(everything, device=point.device))
    return total / count, slope, spread, *numbers


def _drawer(
    simulator: Simulator, observed: Sets, generator: torch.Generator, chunk: int
) -> Callable[[Tensor, int], Iterator[Sets]]:
    """From parameters (p,) and a number of data to single sets, halves of which are draws of the same conditions."""
    dtype = observed.values.dtype

    def fresh(theta: Tensor, wanted: int) -> Iterator[Sets]:
        rounds = math.ceil(wanted / chunk)
        half = math.ceil(wanted / rounds / 2)
        for _ in range(rounds):
            size = torch.tensor([2 * half], device=theta.device)
            yield simulate(simulator, theta.to(dtype).unsqueeze(0), size, generator, observed.num_features)

    def alike(theta: Tensor, wanted: int) -> Iterator[Sets]:
        for _, piece in observed.chunks(max(1, chunk // 2)):
            rounds = max(1, math.ceil(wanted / (2 * observed.num_data)))
            copies = max(1, min(rounds, chunk // (2 * piece.num_data)))
            for _ in range(math.ceil(rounds / copies)):
                tiled = Sets.from_offsets(piece.values.repeat(2 * copies, 1), [0, 2 * copies * piece.num_data])
                yield simulator.like(tiled, theta.to(dtype).unsqueeze(0), generator)  # type: ignore[attr-defined]

    return alike if hasattr(simulator, "like") else fresh


def _step_inside(prior: Prior, point: Tensor, parameter: int, step: Tensor) -> Tensor:
    """The step along one parameter, halved until both sides lie in the prior's support."""
    for _ in range(50):
        offset = torch.zeros_like(point)
        offset[parameter] = step
        if bool(supported(prior, torch.stack([point + offset, point - offset])).all()):
            break
        step = step / 2
    return step
