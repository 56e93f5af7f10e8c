"""What every model of sets needs around the training loop: checked arguments, a source, settings, and what is left.

A model brings its stacked networks, its losses and the way it prepares itself; batches, looks at the validation sets,
seeds, checkpoints and the meaning of every setting are the same for all.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fishnets.arrays import available_device
from fishnets.errors import CheckpointError, ConfigError, DataError, FileFormatError, ShapeError
from fishnets.priors import Prior
from fishnets.ragged import Sets
from fishnets.sets.history import History
from fishnets.sets.sources import (
    NoisySource,
    Simulator,
    SimulatorSource,
    Source,
    StoredSource,
    mixed_seed,
    size_range,
)
from fishnets.sets.training import Losses, Schedule, Settings, train

__all__ = [
    "Model",
    "Options",
    "expect_choice",
    "expect_counts",
    "expect_prior",
    "expect_sets",
    "fit",
    "measure_features",
    "next_seed",
]

FINISH = 0.02  # the share of a training in lower precision that ends in float32, the precision the model is used in


class Description(Protocol):
    """What determines an untrained model, as far as fitting asks."""

    @property
    def num_features(self) -> int: ...

    @property
    def prior(self) -> Prior: ...

    @property
    def seed(self) -> int: ...

    @property
    def standardise(self) -> bool: ...

    @property
    def identity(self) -> str: ...


class Model(Protocol):
    """A model that can be fitted."""

    fitted: bool
    num_fits: int
    feature_shift: Tensor
    feature_scale: Tensor

    @property
    def recipe(self) -> Description: ...

    def to(self, device: torch.device) -> Any: ...


@dataclass(frozen=True)
class Options:
    """What was asked of a fit; :meth:`fishnets.Fishnet.fit` says what each field means."""

    size: int | Sequence[int]
    steps: int
    batch_data: int | None
    learning_rate: Schedule
    num_validation: int
    validation_fraction: float
    validate_every: int | None
    patience: int | None
    clip: float
    keep_best: bool
    checkpoint: str | Path | None
    device: torch.device | str | None
    progress: bool | None


def fit(
    model: Model,
    networks: nn.Module,
    data: Simulator | Sets,
    theta: Tensor | None,
    options: Options,
    losses: Callable[[Source], tuple[Losses, Losses | None]],
    prepare: Callable[[Source], None],
    finish: Callable[[History], None],
    noisy: bool = False,
) -> History:
    """Fits a model in place.

    Args:
        model: The model; it is moved to the device of the fit.
        networks: What of it is trained; every parameter has the members as its first dimension.
        data: A simulator or stored sets.
        theta: With stored sets, their parameters, shape (B, p).
        options: How to fit.
        losses: From the source, the losses and, where most of the training is to be in lower precision, those of the
            lower precision.
        prepare: Called with the source once, before the first fit begins.
        finish: Called with the history once the best weights are in place, however training ended.
        noisy: Whether the losses want noise with their batches.

    Returns:
        What happened.
    """
    where = _device(model, data, options.device)
    model.to(where)
    batch_data = options.batch_data
    if batch_data is None:
        batch_data = max(3200, 32 * _largest(data, options.size))
    source = _source(model, data, theta, where, batch_data, options)
    if noisy:
        source = NoisySource.make(source, next_seed(model))
    exact, fast = losses(source)
    settings = _settings(options, source, batch_data, fast is not None, next_seed(model) + 1)
    fitted_before = model.fitted
    if not model.fitted:
        prepare(source)
    model.fitted = True  # also when interrupted: the best weights so far stay, and are not to be rescaled
    try:
        history = train(
            networks,
            exact,
            exact if fast is None else fast,
            source,
            settings,
            None if options.checkpoint is None else Path(options.checkpoint),
            f"{model.recipe.identity} device={where.type}",
            sys.stderr.isatty() if options.progress is None else options.progress,
            finish,
        )
    except (ConfigError, CheckpointError, FileFormatError):  # refused before it began
        model.fitted = fitted_before
        raise
    model.num_fits += 1
    return history


def next_seed(model: Model) -> int:
    """Seed of the data of the next fit: that of the recipe for the first, another for every later one."""
    seed = model.recipe.seed
    return seed if model.num_fits == 0 else mixed_seed(seed, model.num_fits)


@torch.no_grad()
def measure_features(model: Model, source: Source) -> None:
    """Measures the mean and spread of the features, if the model wants them standardised."""
    values = source.typical.values.to(torch.float64)
    if model.recipe.standardise and len(values) > 1:
        spread = values.std(0)
        model.feature_shift.copy_(values.mean(0))
        model.feature_scale.copy_(torch.where(spread > 0, spread, torch.ones_like(spread)))


def expect_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises :class:`ConfigError` unless a setting is one of the choices."""
    if value not in choices:
        raise ConfigError(f"`{name}` is {value!r} but one of {choices} was expected.")


def expect_counts(num_features: int, members: int) -> None:
    """Raises :class:`ConfigError` unless there are features and members."""
    if num_features < 1 or members < 1:
        raise ConfigError(f"`num_features` is {num_features} and `members` {members}; both must be at least 1.")


def expect_prior(prior: Prior) -> None:
    """Raises :class:`ConfigError` unless the prior has all that a model asks of it."""
    missing = [name for name in ("sample", "log_prob", "mean", "covariance") if not hasattr(prior, name)]
    if missing:
        raise ConfigError(
            f"The prior {prior!r} lacks {', '.join(missing)}; give `fishnets.priors.Normal`, `fishnets.priors.Box` or "
            "an object with `sample`, `log_prob`, `mean` and `covariance`."
        )


def expect_sets(sets: Sets, num_features: int) -> Sets:
    """Returns the sets, or raises an error unless they are sets of the model's width."""
    if not isinstance(sets, Sets):
        raise DataError(
            f"`sets` is a {type(sets).__name__} but `fishnets.Sets` was expected; make it with `Sets.from_list`, "
            "`from_padded`, `from_offsets` or `from_index`."
        )
    if sets.num_features != num_features:
        raise ShapeError(f"The sets have {sets.num_features} features but the model was made for {num_features}.")
    return sets


def _settings(options: Options, source: Source, batch_data: int, fast: bool, seed: int) -> Settings:
    every, steps = options.validate_every, options.steps
    return Settings(
        steps=steps,
        learning_rate=options.learning_rate,
        validate_every=_validation_interval(steps, source, batch_data) if every is None else every,
        patience=options.patience,
        clip=options.clip,
        keep_best=options.keep_best,
        fast_steps=steps - math.ceil(FINISH * steps) if fast else 0,
        seed=seed,
    )


def _source(
    model: Model,
    data: Simulator | Sets,
    theta: Tensor | None,
    device: torch.device,
    batch_data: int,
    options: Options,
) -> Source:
    recipe, seed = model.recipe, next_seed(model)
    if isinstance(data, Sets):
        if theta is None:
            raise DataError("Stored sets need the parameters they were made with: `model.fit(sets, theta)`.")
        sets = expect_sets(data, recipe.num_features).to(device)
        return StoredSource.make(sets, theta, recipe.prior, batch_data, options.validation_fraction, seed)
    if not callable(data):
        raise DataError(
            f"`fit` was given a {type(data).__name__} but a simulator, called as `simulator(theta, size, "
            "generator)`, or `fishnets.Sets` with their `theta` was expected."
        )
    if theta is not None:
        raise DataError("`theta` goes with stored sets; a simulator is given its parameters by the prior.")
    generator = torch.Generator(device).manual_seed(seed + 2)
    return SimulatorSource.make(
        data, recipe.prior, options.size, batch_data, options.num_validation, recipe.num_features, seed, generator
    )


def _validation_interval(steps: int, source: Source, batch_data: int) -> int:
    """Steps between looks at the validation sets; a row costs a third of what it costs in a training step."""
    return max(1, steps // 100, math.ceil(3 * source.validation.sets.num_data / batch_data))


def _largest(data: Any, size: int | Sequence[int]) -> int:
    """Size of the largest set a fit will meet."""
    if isinstance(data, Sets):
        return int(data.sizes.max()) if len(data) else 0
    return size_range(size)[1]


def _device(model: Model, data: Any, asked: torch.device | str | None) -> torch.device:
    """Where to train: as asked, or where the stored sets, or the model, are."""
    if asked is not None:
        return available_device(asked)
    return data.device if isinstance(data, Sets) else model.feature_shift.device
