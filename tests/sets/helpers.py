"""What the tests of learning from sets share: small models, quick fits, simulators that misbehave."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fishnets import Fishnet, History, Sets
from fishnets.networks import Gated
from fishnets.simulators import LinearRegression

__all__ = [
    "FACTORS",
    "PRIOR",
    "QUICK",
    "SIMULATOR",
    "Disc",
    "Recorded",
    "at_step",
    "generator",
    "mean_loss",
    "same_history",
    "same_weights",
    "some_sets",
    "spoiled",
    "stored",
    "tiny",
]

FACTORS = ("full", "diagonal", "rank-1", "rank-2")
SIMULATOR = LinearRegression("log")
PRIOR = SIMULATOR.prior
QUICK: dict[str, Any] = {
    "size": (5, 20), "steps": 20, "batch_data": 60, "num_validation": 8, "validate_every": 5, "patience": None
}  # fmt: skip


def generator(seed: int = 0, device: str | torch.device = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def tiny(prior: Any = PRIOR, **settings: Any) -> Fishnet:
    """A model small enough to train in a moment."""
    return Fishnet(3, prior, **({"network": Gated(8, 1)} | settings))


def some_sets(dtype: torch.dtype = torch.float64, device: str | torch.device = "cpu") -> Sets:
    """Five sets of unequal size, one of them empty, one of a single row."""
    sizes = torch.tensor([13, 0, 1, 40, 7], device=device)
    theta = PRIOR.sample(5, generator(3, device))
    return SIMULATOR(theta, sizes, generator(4, device)).to(dtype=dtype)


def stored(num_sets: int = 60, smallest: int = 0, largest: int = 30, seed: int = 5) -> tuple[Sets, Tensor]:
    """Ragged sets and the parameters they were made with."""
    source = generator(seed)
    theta = PRIOR.sample(num_sets, source)
    return SIMULATOR(theta, torch.randint(smallest, largest + 1, (num_sets,), generator=source), source), theta


class Disc:
    """A prior of the user's own: uniform on a disc."""

    def __init__(self, radius: float = 2.0) -> None:
        self.radius = radius
        self.mean = torch.tensor([0.5, -0.5], dtype=torch.float64)
        self.covariance = torch.eye(2, dtype=torch.float64) * radius**2 / 4

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        radius, angle = torch.rand((2, num_samples), generator=generator, dtype=torch.float64)
        radius, angle = self.radius * radius.sqrt(), 2 * math.pi * angle
        return self.mean + torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1)

    def log_prob(self, theta: Tensor) -> Tensor:
        inside = (theta - self.mean).square().sum(-1) <= self.radius**2
        return torch.where(inside, -math.log(math.pi * self.radius**2), -math.inf)


class Recorded:
    """A simulator that remembers its first call, which draws the validation sets."""

    def __init__(self, simulator: Any = SIMULATOR) -> None:
        self.simulator, self.calls = simulator, 0

    def __call__(self, theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
        sets = self.simulator(theta, size, generator)
        if self.calls == 0:
            self.sets, self.theta = sets, theta
        self.calls += 1
        return sets


def at_step(step: int, action: Callable[[Sets], Sets | None], simulator: Any = SIMULATOR) -> Any:
    """A simulator that does something to the sets of one training step; step -1 is the validation set."""
    calls = iter(range(-1, 10**9))

    def simulate(theta: Tensor, size: Tensor, generator: torch.Generator) -> Any:
        sets = simulator(theta, size, generator)
        changed = action(sets) if next(calls) == step else None
        return sets if changed is None else changed

    return simulate


def spoiled(sets: Sets) -> Sets:
    """The sets with NaN in row 2 of set 1."""
    return Sets(sets.values.index_fill(0, sets.offsets[1:2] + 2, torch.nan), sets.offsets)


def mean_loss(model: Fishnet, sets: Sets, theta: Tensor) -> float:
    """The training loss, from the public answers: minus the log-posterior of the truth, less its constants."""
    log_prob = model.estimate(sets).log_prob(theta)
    constant = math.log(2 * math.pi) * model.num_params / 2 + model.theta_scale.log().sum()
    return float(-log_prob.mean() - constant)


def same_weights(a: Fishnet, b: Fishnet) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def same_history(a: History, b: History) -> bool:
    """Whether two runs did the same, at whatever speed."""
    timeless: dict[str, object] = {"seconds": 0, "elapsed": []}
    return a.to_dict() | timeless == b.to_dict() | timeless
