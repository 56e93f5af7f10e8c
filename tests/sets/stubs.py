"""Problems small enough to know everything of, and models of them whose errors are known.

A stub's local score is the exact one, turned by a matrix, plus a bias that may depend on the datum: its mean, slope and
covariance have closed forms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fishnets import Information, Sets
from fishnets.priors import Normal, Prior
from fishnets.sets.pools import Pools

__all__ = [
    "BIAS",
    "STANDARD",
    "TURN",
    "Counted",
    "Curved",
    "Line",
    "Location",
    "Stub",
    "biased",
    "of_line",
    "of_location",
    "pools",
]

TURN = torch.tensor([[1.5, 0.4], [-0.3, 0.8]], dtype=torch.float64)
BIAS = torch.tensor([0.3, -0.2], dtype=torch.float64)
STANDARD = Normal([0.0, 0.0], [1.0, 1.0])


class Location:
    """Rows d ~ N(θ, 1) in as many dimensions as there are parameters; nothing is given, so there is no ``like``."""

    def __call__(self, theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
        means = theta.repeat_interleave(size, dim=0)
        noise = torch.randn(means.shape, generator=generator, dtype=theta.dtype)
        return Sets(means + noise, torch.cat([size.new_zeros(1), size.cumsum(0)]))

    @staticmethod
    def score(values: Tensor, points: Tensor) -> Tensor:
        """The exact score of each row at its point."""
        return values - points


class Curved(Location):
    """Rows d ~ N(sinh(2θ)/2, 1): what a step of a parameter does depends on where it is."""

    def __call__(self, theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
        return super().__call__(torch.sinh(2 * theta) / 2, size, generator)

    @staticmethod
    def score(values: Tensor, points: Tensor) -> Tensor:
        """The residual of each row, the score but for its slope."""
        return values - torch.sinh(2 * points) / 2


@dataclass(frozen=True)
class Line:
    """Rows (y, x) with y ~ N(θ₀ + θ₁ x, 1), where x is given, by default uniform in a range."""

    low: float = -1.0
    high: float = 3.0

    def __call__(self, theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
        x = torch.rand(int(size.sum()), generator=generator, dtype=theta.dtype)
        x = self.low + (self.high - self.low) * x
        blank = torch.stack([torch.zeros_like(x), x], dim=1)
        return self.like(Sets(blank, torch.cat([size.new_zeros(1), size.cumsum(0)])), theta, generator)

    def like(self, sets: Sets, theta: Tensor, generator: torch.Generator) -> Sets:
        """New responses at each row's own x."""
        x, own = sets.values[:, 1], theta.to(sets.values)[sets.index]
        noise = torch.randn(len(x), generator=generator, dtype=x.dtype)
        return Sets(torch.stack([own[:, 0] + own[:, 1] * x + noise, x], dim=1), sets.offsets)

    @staticmethod
    def score(values: Tensor, points: Tensor) -> Tensor:
        """The exact score of each row at its point."""
        y, x = values.unbind(1)
        residual = y - points[:, 0] - points[:, 1] * x
        return torch.stack([residual, residual * x], dim=1)

    @staticmethod
    def fisher(x: Tensor) -> Tensor:
        """The Fisher matrix of one datum, on average over these covariates."""
        design = torch.stack([torch.ones_like(x), x], dim=1).double()
        return design.mT @ design / len(x)


class Counted:
    """A simulator that remembers every call: its parameters and its rows; it has ``like`` where the other has."""

    def __init__(self, simulator: Any) -> None:
        self.simulator, self.theta, self.drawn = simulator, [], []
        if hasattr(simulator, "like"):
            self.like = self._like

    def __call__(self, theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
        return self._kept(theta, self.simulator(theta, size, generator))

    def _like(self, sets: Sets, theta: Tensor, generator: torch.Generator) -> Sets:
        return self._kept(theta, self.simulator.like(sets, theta, generator))

    def _kept(self, theta: Tensor, sets: Sets) -> Sets:
        self.theta.append(theta)
        self.drawn.append(sets)
        return sets

    @property
    def num_data(self) -> int:
        return sum(sets.num_data for sets in self.drawn)


@dataclass
class Stub:
    """A model of which scoring and pools ask all they ask of a trained one.

    Args:
        exact: The exact score (n, p) of rows (n, d) at points (n, p).
        prior: The prior.
        turn: Turns and scales the score, shape (p, p).
        bias: Added to the score of each row (n, d), shape (n, p) or (p,).
        says: The Fisher matrix of a datum that the model claims, shape (p, p).
        num_features: Width of a datum.
        seen: Data of every call of ``compress``.
    """

    exact: Callable[[Tensor, Tensor], Tensor]
    prior: Prior
    turn: Tensor
    bias: Callable[[Tensor], Tensor]
    says: Tensor
    num_features: int = 2
    seen: list[int] = field(default_factory=list)

    @property
    def theta_scale(self) -> Tensor:
        return self.prior.covariance.diagonal().sqrt()

    def row_scores(self, sets: Sets, at: Tensor) -> Tensor:
        points = at.expand(len(sets), -1)[sets.index]
        values = sets.values.double()
        return self.exact(values, points) @ self.turn.mT + self.bias(values)

    def compress(self, sets: Sets, at: Tensor | None = None) -> Information:
        self.seen.append(sets.num_data)
        points = (self.prior.mean if at is None else at).expand(len(sets), -1)
        score = torch.zeros(len(sets), len(self.says), dtype=torch.float64)
        score.index_add_(0, sets.index, self.row_scores(sets, points))
        fisher = sets.sizes.view(-1, 1, 1) * self.says
        return Information(score, fisher, self.prior.mean if at is None else points.contiguous(), sets.sizes)


def biased(bias: Tensor) -> Callable[[Tensor], Tensor]:
    """The same bias for every datum."""
    return lambda values: bias.expand(len(values), -1)


def of_location(prior: Prior = STANDARD, turn: Tensor = TURN, bias: Tensor = BIAS, says: Tensor | None = None) -> Stub:
    """A biased model of :class:`Location` that claims to know what it does not."""
    return Stub(Location.score, prior, turn, biased(bias), turn.diag().diag() if says is None else says)


def of_line(
    prior: Prior = STANDARD, turn: Tensor = TURN, bias: Callable[[Tensor], Tensor] | None = None
) -> Stub:
    """A biased model of :class:`Line`."""
    says = 2 * torch.eye(2, dtype=torch.float64)
    return Stub(Line.score, prior, turn, biased(BIAS) if bias is None else bias, says)


def pools(model: Stub, simulator: Any, **settings: Any) -> Pools:
    """Pools with settings a test need not name."""
    options = {"loss": 0.1, "spread": "simulated", "generator": torch.Generator().manual_seed(0), "chunk": 2**16}
    return Pools(model, simulator, **(options | settings))
