r"""Regression on sets: the baselines, trained by the loop and on the budget of a Fishnet.

A network on whole sets returns the parameters and is trained to the smallest mean squared error,

.. math:: \ell = \frac1p \sum_a (u_a - \hat u_a)^2, \qquad u = (\theta - \mu) / s,

with :math:`\mu, s` the mean and standard deviations of the prior. Its optimum is the posterior mean, without an
uncertainty and without information that adds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from fishnets.errors import ConfigError
from fishnets.networks import DeepSet, SetNetworkRecipe
from fishnets.networks.pooling import with_values
from fishnets.priors import Prior, prior_to_dict
from fishnets.ragged import Sets
from fishnets.sets.fitting import (
    Options,
    expect_choice,
    expect_counts,
    expect_prior,
    expect_sets,
    fit,
    measure_features,
)
from fishnets.sets.history import History
from fishnets.sets.sources import Batch, Simulator, Source
from fishnets.sets.training import Losses, Schedule

__all__ = ["Regressor", "RegressorRecipe", "squared_error", "whole_sets"]

CHUNK = 2**15


@dataclass(frozen=True)
class RegressorRecipe:
    """Everything that determines an untrained regressor."""

    num_features: int
    prior: Prior
    network: SetNetworkRecipe
    members: int
    seed: int
    standardise: bool

    @property
    def identity(self) -> str:
        """The recipe in words that are the same in every process, whatever the class of the prior."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return f"Regressor({fields | {'prior': prior_to_dict(self.prior)}})"


class Regressor(nn.Module):
    """A network on sets that estimates parameters by their mean squared error.

    Args:
        num_features: Width of a datum.
        prior: Prior of the parameters, as for :class:`fishnets.Fishnet`.
        network: Recipe of the network: :class:`fishnets.networks.DeepSet`, with a mean by default, or
            :class:`fishnets.networks.SetTransformer`.
        members: Number of ensemble members, trained in one go.
        seed: Seed of the initial weights and of training.
        standardise: Whether to scale features to zero mean and unit spread, measured when training starts.

    Example:
        >>> import fishnets as fn
        >>> prior = fn.priors.Normal([0.0, 0.0], [1.0, 1.0])
        >>> model = Regressor(3, prior, fn.networks.DeepSet("softmax"), members=2)
        >>> model.estimate(fn.Sets.from_list([torch.zeros(4, 3), torch.zeros(0, 3)])).shape
        torch.Size([2, 2])
        >>> model.num_weights
        87811
    """

    feature_shift: Tensor
    feature_scale: Tensor
    theta_shift: Tensor
    theta_scale: Tensor

    def __init__(
        self,
        num_features: int,
        prior: Prior,
        network: SetNetworkRecipe | None = None,
        members: int = 1,
        seed: int = 0,
        *,
        standardise: bool = True,
    ) -> None:
        super().__init__()
        expect_counts(num_features, members)
        expect_prior(prior)
        recipe = DeepSet() if network is None else network
        generator = torch.Generator().manual_seed(seed)
        self.recipe = RegressorRecipe(num_features, prior, recipe, members, seed, standardise)
        self.fitted, self.num_fits = False, 0
        self.networks = _built(recipe, num_features, len(prior.mean), members, generator)
        self.register_buffer("feature_shift", torch.zeros(num_features, dtype=torch.float64))
        self.register_buffer("feature_scale", torch.ones(num_features, dtype=torch.float64))
        self.register_buffer("theta_shift", prior.mean.to(torch.float64).clone())
        self.register_buffer("theta_scale", prior.covariance.to(torch.float64).diagonal().sqrt())

    @property
    def prior(self) -> Prior:
        """The prior."""
        return self.recipe.prior

    @property
    def num_params(self) -> int:
        """Number of parameters p."""
        return len(self.theta_shift)

    @property
    def num_weights(self) -> int:
        """Trainable weights of one member."""
        return sum(p.numel() for p in self.networks.parameters()) // self.recipe.members

    @torch.no_grad()
    def estimate(self, sets: Sets, *, chunk: int = CHUNK, members: Literal["mean", "separate"] = "mean") -> Tensor:
        """Estimates the parameters of each set.

        Sets are evaluated in the precision and on the device of the input, as many whole ones at a time as hold
        ``chunk`` rows together; a larger set is evaluated alone.

        Args:
            sets: The sets.
            chunk: Rows evaluated at once.
            members: ``"mean"`` averages the members' estimates, ``"separate"`` returns each.

        Returns:
            Estimates in float64, shape (B, p), or (K, B, p) for separate members.
        """
        expect_choice("members", members, ("mean", "separate"))
        expect_sets(sets, self.recipe.num_features).check_finite()
        shape = (self.recipe.members, 0, self.num_params)
        parts = [torch.zeros(shape, dtype=torch.float64, device=sets.device)]
        parts += [self._evaluate(piece).to(torch.float64) for piece in whole_sets(sets, chunk)]
        estimates = torch.cat(parts, dim=1) * self.theta_scale.to(sets.device) + self.theta_shift.to(sets.device)
        return estimates.mean(0) if members == "mean" else estimates

    def fit(
        self,
        data: Simulator | Sets,
        theta: Tensor | None = None,
        *,
        size: int | Sequence[int] = (5, 100),
        steps: int = 5_000,
        batch_data: int | None = None,
        learning_rate: Schedule = 5e-3,
        num_validation: int = 1000,
        validation_fraction: float = 0.1,
        validate_every: int | None = None,
        patience: int | None = None,
        clip: float = 1.0,
        keep_best: bool = True,
        checkpoint: str | Path | None = None,
        device: torch.device | str | None = None,
        progress: bool | None = None,
    ) -> History:
        """Trains the network on fresh simulations or on stored sets, in float32.

        The settings mean what they mean in :meth:`fishnets.Fishnet.fit` and have the same defaults.

        Args:
            data: A simulator, called as ``simulator(theta, size, generator)``, or stored sets.
            theta: With stored sets, the parameters each was made with, shape (B, p).
            size: With a simulator, the set size or the range (low, high) to train over; each step draws one.
            steps: Number of updates.
            batch_data: Rows in a step, over all its sets.
            learning_rate: Peak of a cosine schedule with a warm-up, or stairs ``[(steps, rate), ...]``.
            num_validation: With a simulator, number of validation sets.
            validation_fraction: With stored sets, the share held out for validation.
            validate_every: Steps between looks at the validation loss.
            patience: Stop after this many looks without improvement of any member; by default never.
            clip: Largest gradient norm of a member.
            keep_best: End with each member's best weights on validation data, otherwise with the last.
            checkpoint: File for an exact resume.
            device: Where to train: by default where the stored sets, or the model, are.
            progress: Whether to show a progress bar; by default when stderr is a terminal.

        Returns:
            Losses, rates, clipped steps and the reason training stopped.
        """
        options = Options(
            size=size,
            steps=steps,
            batch_data=batch_data,
            learning_rate=learning_rate,
            num_validation=num_validation,
            validation_fraction=validation_fraction,
            validate_every=validate_every,
            patience=patience,
            clip=clip,
            keep_best=keep_best,
            checkpoint=checkpoint,
            device=device,
            progress=progress,
        )
        prepare = partial(measure_features, self)
        return fit(self, self.networks, data, theta, options, self._losses, prepare, lambda history: None)

    def standardised(self, sets: Sets) -> Sets:
        """The sets as the network sees them, in the dtype and on the device of the input."""
        values = sets.values
        return with_values(sets, (values - self.feature_shift.to(values)) / self.feature_scale.to(values))

    def _losses(self, source: Source) -> tuple[Losses, None]:
        def network(sets: Sets) -> Tensor:
            rows = self.standardised(sets)  # standardised first: float64 may need it
            estimates: Tensor = self.networks(with_values(rows, rows.values.to(torch.float32)))
            return estimates

        return squared_error(network, self.theta_shift, self.theta_scale), None

    def _evaluate(self, sets: Sets) -> Tensor:
        """Standardised estimates (K, B, p) in the dtype and on the device of the sets."""
        state = {name: p.to(sets.values) for name, p in self.networks.named_parameters()}
        estimates: Tensor = torch.func.functional_call(self.networks, state, (self.standardised(sets),))
        return estimates


def squared_error(network: Callable[[Sets], Tensor], theta_shift: Tensor, theta_scale: Tensor) -> Losses:
    """The losses of a network: squared errors in standardised parameters, averaged over them.

    Args:
        network: Sets to standardised estimates, shape (K, B, p).
        theta_shift: Subtracted from parameters, shape (p,).
        theta_scale: Divides parameters, shape (p,).

    Returns:
        A function from a batch to losses, shape (K, B).
    """

    def losses(batch: Batch) -> Tensor:
        target = ((batch.theta - theta_shift) / theta_scale).to(torch.float32)
        if torch.is_grad_enabled():
            estimates = network(batch.sets)
        else:  # validation sets may be many at once
            estimates = torch.cat([network(piece) for piece in whole_sets(batch.sets, CHUNK)], dim=1)
        return (estimates - target).square().mean(-1)

    return losses


def whole_sets(sets: Sets, max_data: int) -> Iterator[Sets]:
    """Cuts a batch between sets, into pieces of at most ``max_data`` rows or of a single larger set.

    Example:
        >>> sets = Sets.from_offsets(torch.zeros(9, 1), [0, 1, 3, 9])
        >>> [piece.sizes.tolist() for piece in whole_sets(sets, 4)]
        [[1, 2], [6]]
    """
    if max_data < 1:
        raise ConfigError(f"`chunk` is {max_data} but at least 1 was expected.")
    bounds = sets.offsets.tolist()
    start = 0
    for i in range(1, len(bounds)):
        if i == len(bounds) - 1 or bounds[i + 1] - bounds[start] > max_data:
            yield sets[start:i]
            start = i


def _built(
    recipe: SetNetworkRecipe, num_features: int, num_params: int, members: int, generator: torch.Generator
) -> nn.Module:
    """Builds the network, or says what was given instead of a recipe."""
    build = None if isinstance(recipe, type) else getattr(recipe, "build", None)
    if build is None or "num_params" not in inspect.signature(build).parameters:  # bodies of a Fishnet have it not
        raise ConfigError(
            f"`network` is {recipe!r} but the recipe of a network on sets, such as `fishnets.networks.DeepSet()` or "
            "`fishnets.networks.SetTransformer()`, was expected."
        )
    return recipe.build(num_features, num_params, members, generator)
