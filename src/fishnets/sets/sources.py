"""Where training batches come from: a simulator, fresh at every step, or stored sets, shuffled at every epoch."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fishnets.errors import ConfigError, DataError, ShapeError, SupportError, describe_rows, expect_last_dim
from fishnets.priors import Prior
from fishnets.ragged import Sets

__all__ = [
    "Batch",
    "NoisySource",
    "Simulator",
    "SimulatorSource",
    "Source",
    "StoredSource",
    "mixed_seed",
    "simulate",
    "size_range",
]


class Batch(NamedTuple):
    """Sets, the parameters (B, p) they were made with and, where the loss wants it, standard normal noise (B, p)."""

    sets: Sets
    theta: Tensor
    noise: Tensor | None = None


class Simulator(Protocol):
    """Draws one set of the given size per row of theta (B, p)."""

    def __call__(self, theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets: ...


class Source(Protocol):
    """What the training loop asks of its data."""

    @property
    def largest_set(self) -> int: ...

    @property
    def validation(self) -> Batch: ...

    @property
    def typical(self) -> Sets: ...

    @property
    def digest(self) -> str: ...

    def batch(self, step: int, generator: torch.Generator) -> Batch: ...


@dataclass(frozen=True, eq=False)
class SimulatorSource:
    """Fresh sets at every step, of one size per step: one of nine spaced logarithmically over a range.

    Small sets bring many parameters per row of computing, large ones show the errors that grow with size; a range
    gives both. A step holds about ``batch_data`` rows whatever the size.
    """

    simulator: Simulator
    prior: Prior
    size: tuple[int, int]
    batch_data: int
    validation: Batch
    seed: int
    digest: str

    @staticmethod
    def make(
        simulator: Simulator,
        prior: Prior,
        size: int | Sequence[int],
        batch_data: int,
        num_validation: int,
        num_features: int,
        seed: int,
        generator: torch.Generator,
    ) -> SimulatorSource:
        """Checks the settings, tries the simulator once and draws the validation sets."""
        low, high = size_range(size)
        _expect_positive(batch_data=batch_data, num_validation=num_validation)
        theta = prior.sample(num_validation, generator).to(torch.float32)
        spread = torch.linspace(math.log(low), math.log(high), num_validation).exp().round().long()
        sets = simulate(simulator, theta, spread.to(theta.device), generator, num_features)
        digest = f"simulator size={low}-{high} batch_data={batch_data} validation={_data_digest(sets, theta)}"
        validation = Batch(sets.check_finite(), theta)
        return SimulatorSource(simulator, prior, (low, high), batch_data, validation, seed, digest)

    @property
    def typical(self) -> Sets:
        """Sets to measure features on."""
        return self.validation.sets

    @property
    def largest_set(self) -> int:
        """Upper end of the range of sizes."""
        return self.size[1]

    def batch(self, step: int, generator: torch.Generator) -> Batch:
        """Simulates the sets of one step."""
        choices = _log_spaced(*self.size)
        size = choices[mixed_seed(self.seed, step) % len(choices)]
        num_sets = max(1, self.batch_data // size)
        theta = self.prior.sample(num_sets, generator).to(torch.float32)
        sizes = torch.full((num_sets,), size, dtype=torch.int64, device=theta.device)
        num_features = self.validation.sets.num_features
        return Batch(simulate(self.simulator, theta, sizes, generator, num_features), theta)


@dataclass(frozen=True, eq=False)
class StoredSource:
    """Stored sets, a part of them held out for validation, the rest shuffled anew for every epoch."""

    train: Batch
    validation: Batch
    sets_per_step: int
    seed: int
    digest: str

    @staticmethod
    def make(
        sets: Sets, theta: Tensor, prior: Prior, batch_data: int, validation_fraction: float, seed: int
    ) -> StoredSource:
        """Checks the data and splits them."""
        theta = torch.as_tensor(theta, dtype=torch.float64, device=sets.device)
        expect_last_dim("theta", theta, len(prior.mean))
        if theta.ndim != 2 or len(theta) != len(sets):
            raise ShapeError(
                f"`theta` has shape {tuple(theta.shape)} but one row per set, ({len(sets)}, p), was expected."
            )
        if not 0 <= validation_fraction < 1:
            raise ConfigError(f"`validation_fraction` is {validation_fraction} but 0 <= fraction < 1 was expected.")
        _expect_positive(batch_data=batch_data)
        _check_support(theta, prior)
        sets.check_finite()
        if len(sets) < 2:
            raise DataError("At least two sets are needed to train: one for validation and one to learn from.")
        digest = f"stored {_data_digest(sets, theta)}"
        order = torch.randperm(len(sets), generator=torch.Generator().manual_seed(seed)).to(sets.device)
        held = min(len(sets) - 1, math.ceil(validation_fraction * len(sets)))
        train, validation = order[held:].sort().values, order[:held].sort().values
        kept = Batch(sets[train], theta[train])
        mean_size = max(1.0, kept.sets.num_data / len(kept.sets))
        per_step = min(len(kept.sets), max(1, round(batch_data / mean_size)))
        held_out = Batch(sets[validation], theta[validation])
        if held == 0:  # nothing held out, as was asked: looks go to some of the training sets
            held_out = Batch(kept.sets[:1000], kept.theta[:1000])
        return StoredSource(kept, held_out, per_step, seed, digest)

    @property
    def typical(self) -> Sets:
        """Sets to measure features on."""
        return self.train.sets

    @property
    def largest_set(self) -> int:
        """Size of the largest set."""
        return max(1, int(self.train.sets.sizes.max()))

    def batch(self, step: int, generator: torch.Generator) -> Batch:
        """Takes the sets of one step; every epoch is a new order, which depends on its number alone."""
        per_epoch = math.ceil(len(self.train.sets) / self.sets_per_step)
        epoch, position = divmod(step, per_epoch)
        shuffle = torch.Generator().manual_seed(mixed_seed(self.seed, epoch))
        order = torch.randperm(len(self.train.sets), generator=shuffle)
        chosen = order[position * self.sets_per_step : (position + 1) * self.sets_per_step]
        chosen = chosen.to(self.train.sets.device)
        return Batch(self.train.sets[chosen], self.train.theta[chosen])


@dataclass(frozen=True, eq=False)
class NoisySource:
    """Another source's batches with noise; that of the validation sets stays the same."""

    source: Source
    validation: Batch

    @staticmethod
    def make(source: Source, seed: int) -> NoisySource:
        """Draws the noise of the validation sets."""
        theta = source.validation.theta
        generator = torch.Generator(theta.device).manual_seed(mixed_seed(seed, -1))
        return NoisySource(source, source.validation._replace(noise=_noise_like(theta, generator)))

    @property
    def typical(self) -> Sets:
        """Sets to measure features on."""
        return self.source.typical

    @property
    def largest_set(self) -> int:
        """Size of the largest set."""
        return self.source.largest_set

    @property
    def digest(self) -> str:
        """What identifies the data."""
        return f"{self.source.digest} noise"

    def batch(self, step: int, generator: torch.Generator) -> Batch:
        """The batch of one step."""
        batch = self.source.batch(step, generator)
        return batch._replace(noise=_noise_like(batch.theta, generator))


def size_range(size: int | Sequence[int]) -> tuple[int, int]:
    """Smallest and largest set size, from a size or a range.

    Example:
        >>> size_range(10), size_range([5, 100])
        ((10, 10), (5, 100))
    """
    bounds = tuple(size) if isinstance(size, Sequence) else (size, size)
    if len(bounds) != 2 or not 1 <= bounds[0] <= bounds[1] or any(int(bound) != bound for bound in bounds):
        raise ConfigError(
            f"`size` is {size} but a whole number or a range (low, high) with 1 <= low <= high was expected."
        )
    return int(bounds[0]), int(bounds[1])


def _expect_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise ConfigError(f"`{name}` is {number} but at least 1 was expected.")


def _noise_like(theta: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(theta.shape, generator=generator, device=generator.device)
    return noise.to(theta.device)


def simulate(simulator: Simulator, theta: Tensor, size: Tensor, generator: torch.Generator, num_features: int) -> Sets:
    """Calls the simulator and checks what it returns."""
    sets = simulator(theta, size, generator)
    if not isinstance(sets, Sets):
        raise DataError(f"The simulator returned a {type(sets).__name__} but `fishnets.Sets` was expected.")
    if len(sets) != len(theta):
        raise ShapeError(f"The simulator returned {len(sets)} sets for {len(theta)} rows of theta.")
    expect_last_dim("simulated values", sets.values, num_features, "That is the model's `num_features`.")
    return sets


def _log_spaced(low: int, high: int, number: int = 9) -> list[int]:
    """Set sizes from low to high, evenly spaced in their logarithm; a GPU keeps one captured update for each."""
    return sorted({round(low * (high / low) ** (i / (number - 1))) for i in range(number)})


def _check_support(theta: Tensor, prior: Prior) -> None:
    if not bool(torch.isfinite(theta).all()):
        bad = (~torch.isfinite(theta)).any(-1).nonzero().flatten().tolist()
        raise SupportError(f"`theta` holds NaN or infinite values in rows {describe_rows(bad)}.")
    outside = torch.isneginf(prior.log_prob(theta)).to(theta.device)
    if bool(outside.any()):
        rows = outside.nonzero().flatten().tolist()
        raise SupportError(
            f"{len(rows)} of {len(theta)} rows of `theta` lie outside the support of the prior {prior}: rows "
            f"{describe_rows(rows)}; row {rows[0]} is {theta[rows[0]].tolist()}. Widen the prior or leave these sets "
            "out."
        )


def _data_digest(sets: Sets, theta: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in (sets.values, sets.offsets, theta):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def mixed_seed(seed: int, number: int) -> int:
    """A well-spread 63-bit seed from two integers."""
    data = hashlib.sha256(f"{seed}:{number}".encode()).digest()
    return int.from_bytes(data[:8], "little") >> 1
