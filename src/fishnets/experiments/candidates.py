"""Candidates: networks that an experiment trains and compares, each with the way it is trained."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from fishnets.errors import ConfigError
from fishnets.inference.efficiency import Measured
from fishnets.networks import NetworkRecipe, network_to_dict
from fishnets.priors import Prior
from fishnets.ragged import Sets
from fishnets.sets import Fishnet, History
from fishnets.sets.training import Schedule

__all__ = [
    "Candidate",
    "StudySimulator",
    "checkpoint_path",
    "expect_choices",
    "expect_clean",
    "scaled_stairs",
    "stored_sets",
    "throughput",
    "train",
    "untrained",
]


class StudySimulator(Protocol):
    """A simulator that knows its prior and the width of its data."""

    @property
    def num_features(self) -> int: ...

    @property
    def prior(self) -> Prior: ...

    def __call__(self, theta: Tensor, size: Tensor, generator: torch.Generator | None = None) -> Sets: ...


@dataclass(frozen=True)
class Candidate:
    """A network and how it is trained.

    Args:
        label: ``"paper"`` or ``"recommended"``.
        body: The networks' bodies.
        features: Columns of a datum; see the simulator.
        members: Ensemble members.
        shared: One trunk for both heads.
        factor: Kind of Fisher factor.
        standardise: Whether features are standardised.
        size: Set size, or range of sizes, trained on.
        steps: Updates.
        batch_data: Rows per update.
        learning_rate: Peak of the cosine, or a staircase.
        stored_sets: Number of stored training sets; None draws fresh ones at every step.
        precision: Precision of the networks' products.
        clip: Largest gradient norm of a member.
        fiducial: Expansion point; the prior's mean by default.
        prior: ``"own"``, the simulator's, or ``"published"``, the authors' constants where an experiment has them.
    """

    label: str
    body: NetworkRecipe
    features: str
    members: int
    shared: bool
    factor: str
    standardise: bool
    size: tuple[int, int]
    steps: int
    batch_data: int
    learning_rate: Schedule
    stored_sets: int | None = None
    precision: str = "auto"
    clip: float = 1.0
    fiducial: tuple[float, ...] | None = None
    prior: Literal["own", "published"] = "own"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {k: v for k, v in asdict(self).items() if k != "body"} | {"body": network_to_dict(self.body)}


def untrained(
    candidate: Candidate, simulator: StudySimulator, seed: int, device: str, prior: Prior | None = None
) -> Fishnet:
    """The candidate's model before training, with the simulator's prior unless another is given."""
    return Fishnet(
        simulator.num_features,
        simulator.prior if prior is None else prior,
        candidate.body,
        candidate.members,
        seed,
        shared=candidate.shared,
        factor=candidate.factor,
        standardise=candidate.standardise,
        fiducial=candidate.fiducial,
    ).to(device)


def train(
    candidate: Candidate,
    simulator: StudySimulator,
    seed: int,
    device: str,
    checkpoint: Path | None = None,
    progress: bool | None = None,
    prior: Prior | None = None,
) -> tuple[Fishnet, History]:
    """Trains a candidate on fresh simulations or on stored sets.

    Args:
        candidate: What to train and how.
        simulator: Where sets come from.
        seed: Seed of the weights and of all data.
        device: Where to train.
        checkpoint: File to resume from.
        progress: Whether to show a progress bar.
        prior: A prior other than the simulator's.

    Returns:
        The model and its history.
    """
    model = untrained(candidate, simulator, seed, device, prior)
    common: dict[str, Any] = {
        "steps": candidate.steps,
        "batch_data": candidate.batch_data,
        "learning_rate": candidate.learning_rate,
        "precision": candidate.precision,
        "clip": candidate.clip,
        "patience": None,
        "checkpoint": checkpoint,
        "progress": progress,
    }
    if candidate.stored_sets is None:
        return model, model.fit(simulator, size=candidate.size, **common)
    sets, theta = stored_sets(simulator, candidate.stored_sets, candidate.size[1], seed, device)
    # the published code has no validation split and keeps the last weights
    history = model.fit(sets, theta, validation_fraction=0.0, keep_best=False, validate_every=1000, **common)
    return model, history


def stored_sets(
    simulator: StudySimulator, num_sets: int, size: int, seed: int, device: str
) -> tuple[Sets, Tensor]:
    """Stored training sets of one size and their parameters (B, p), the same for every network of a seed."""
    generator = torch.Generator(device).manual_seed(seed + 17)
    theta = simulator.prior.sample(num_sets, generator).to(torch.float32)
    return simulator(theta, torch.full((num_sets,), size, device=theta.device), generator), theta


def expect_choices(preset: str, protocol: str, protocols: tuple[str, ...] = ("clean", "published")) -> None:
    """Raises :class:`ConfigError` unless both are known."""
    if preset not in ("smoke", "quick", "paper") or protocol not in protocols:
        known = " or ".join([", ".join(protocols[:-1]), protocols[-1]] if protocols[1:] else protocols)
        raise ConfigError(f'preset "{preset}" with protocol "{protocol}": expected smoke, quick or paper, and {known}.')


def expect_clean(preset: str, protocol: str, what: str) -> None:
    """Raises :class:`ConfigError` unless both are known and nothing published is asked for: the paper has no such."""
    elsewhere = protocol in ("published", "original")
    expect_choices(preset, "clean" if elsewhere else protocol, ("clean",))
    if elsewhere:
        raise ConfigError(f'The protocol "{protocol}" was asked for, but the paper has no {what}; use "clean".')


def scaled_stairs(stairs: Schedule, steps: int) -> Schedule:
    """Stairs of learning rates over another number of steps, in the same proportions; a single rate stays.

    Example:
        >>> scaled_stairs(((50, 0.1), (150, 0.01)), 8)
        ((2, 0.1), (6, 0.01))
    """
    if isinstance(stairs, int | float):
        return stairs
    total = sum(length for length, _ in stairs)
    return tuple((max(1, length * steps // total), value) for length, value in stairs)


def checkpoint_path(folder: Path | None, stem: str) -> Path | None:
    """Where a run keeps its checkpoint, in a folder that is made when needed."""
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{stem}.checkpoint"


def throughput(history: History, members: int) -> Measured:
    """Sustained member-data per second: the median over the intervals between looks, and its error."""
    data, elapsed = (torch.tensor(x, dtype=torch.float64) for x in (history.data_seen, history.elapsed))
    rates = members * data.diff() / elapsed.diff()
    spread = (rates - rates.median()).abs().median()  # robust against the first interval, which compiles
    return Measured(float(rates.median()), float(1.86 * spread / math.sqrt(len(rates))))
