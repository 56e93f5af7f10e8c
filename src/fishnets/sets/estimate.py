"""Estimate: the Gaussian posterior of each set, and what is to be said of how it was found."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fishnets.algebra.gaussian import Gaussian
from fishnets.algebra.information import Information
from fishnets.errors import ConvergenceWarning, describe_rows
from fishnets.priors import Prior
from fishnets.sets.support import moved_inside, supported

__all__ = ["Estimate"]


@dataclass(frozen=True, eq=False)
class Estimate:
    """Posteriors of B sets under the model's prior, and how far they can be trusted.

    Args:
        posterior: The Gaussian posteriors.
        information: What they rest on, at the last expansion points: centred where simulations were asked, otherwise as
            the networks say.
        fisher_covariance: Covariance that the networks' own Fisher matrices and the prior give, shape (B, p, p).
        previous: Estimates of the pass before, shape (B, p); of an estimate that took a single pass, itself.
        settled: Whether the last pass moved the estimate little, shape (B,).
        inside: Whether the estimate lies in the prior's support, shape (B,).
        num_passes: Passes over the data, the first networks' included.
        added_noise: Share that the simulations' noise adds to the variance, shape (B,); zero without centring.
        num_simulated: Data simulated for each set, over all passes, shape (B,).
    """

    posterior: Gaussian
    information: Information
    fisher_covariance: Tensor
    previous: Tensor
    settled: Tensor
    inside: Tensor
    num_passes: int
    added_noise: Tensor
    num_simulated: Tensor

    @property
    def mean(self) -> Tensor:
        """The estimates, shape (B, p)."""
        return self.posterior.mean

    @property
    def precision(self) -> Tensor:
        """Inverse of the covariance, shape (B, p, p)."""
        return self.posterior.precision

    @property
    def covariance(self) -> Tensor:
        """Covariance, shape (B, p, p): the sandwich of the simulations where centred, otherwise the networks'."""
        return self.posterior.covariance

    @property
    def standard_deviation(self) -> Tensor:
        """Marginal standard deviations, shape (B, p)."""
        return self.posterior.standard_deviation

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log-density of parameters (*, p), broadcast against the estimates, shape (*)."""
        return self.posterior.log_prob(theta)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws from the posteriors, shape (num_samples, B, p)."""
        return self.posterior.sample(num_samples, generator)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the estimates, one sentence each; empty when nothing is."""
        found = []
        unsettled, outside = ((~flag).nonzero().flatten().tolist() for flag in (self.settled, self.inside))
        if unsettled:
            first = unsettled[0]
            found.append(
                f"The estimates of sets {describe_rows(unsettled)} have not settled after {self.num_passes} passes: "
                f"those of set {first} were {self.previous[first].tolist()} and then {self.mean[first].tolist()}. "
                "Train longer, or allow more `passes`."
            )
        if outside:
            first = outside[0]
            found.append(
                f"The estimates of sets {describe_rows(outside)} lie outside the prior's support; that of set {first} "
                f"is {self.mean[first].tolist()}. They are left there; `clamp=True` brings them in."
            )
        return tuple(found)

    def clamped(self, prior: Prior) -> Estimate:
        """The same with estimates outside a prior's support brought to its edge."""
        mean = moved_inside(prior, self.mean, prior.mean.to(self.mean))
        return replace(self, posterior=Gaussian(mean, self.precision), inside=supported(prior, mean))

    def reported(self, prior: Prior, clamp: bool) -> Estimate:
        """Warns of what is wrong, after bringing estimates into the prior's support if asked to."""
        found = self.clamped(prior) if clamp else self
        for warning in found.warnings:
            warnings.warn(warning, ConvergenceWarning, stacklevel=3)
        return found

    def __repr__(self) -> str:
        settled, inside = int(self.settled.sum()), int(self.inside.sum())
        return (
            f"Estimate(sets={len(self.settled)}, num_params={self.mean.shape[-1]}, passes={self.num_passes}, "
            f"settled={settled}, inside={inside})"
        )
