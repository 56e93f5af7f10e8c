"""Posterior samples from a learned likelihood and a prior, with the share of proposals that stand behind them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fishnets.errors import DataError, NonFiniteError, describe_rows
from fishnets.inference.coordinates import Coordinates
from fishnets.inference.directions import Condition
from fishnets.inference.importance import PROPOSALS, Drawn, importance_samples
from fishnets.inference.summaries import Summaries
from fishnets.priors import Prior

__all__ = ["resampled"]

LEAST_SHARE = 0.05  # of the proposals that must be effective
HELD = 2**21  # proposals in memory at once


def resampled(
    log_density: Callable[[Tensor, Condition], Tensor],
    prior: Prior,
    coordinates: Coordinates,
    condition: Condition,
    num_samples: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Draws from likelihood times prior by adaptive importance sampling.

    Args:
        log_density: Parameters (B, K, p) and B summaries to log-likelihood plus log-prior, (B, K).
        prior: The prior, which a share of the proposals is drawn from.
        coordinates: Unbounded coordinates of the parameters.
        condition: B summaries; the Gaussian of a :class:`Summaries` is the first guess.
        num_samples: Samples S of each.
        generator: Source of the randomness.

    Returns:
        Parameters, shape (B, S, p), with repetitions.
    """
    block = max(1, HELD // max(2 * num_samples, PROPOSALS))
    parts = [
        _block(log_density, prior, coordinates, condition[i : i + block], num_samples, generator)
        for i in range(0, len(condition), block)
    ]
    share = torch.cat([part.effective_share for part in parts])
    poor = (~(share >= LEAST_SHARE)).nonzero().flatten().tolist()
    if poor:
        raise DataError(
            f"Importance sampling failed for {len(poor)} of {len(share)} sets (set {describe_rows(poor)}): less than "
            f"{LEAST_SHARE:.0%} of the proposals are effective (least {float(share.min()):.2%}). The learned "
            'likelihood has no clear peak there; fit longer or on more pairs, or use direction="posterior".'
        )
    return coordinates.bounded(torch.cat([part.samples for part in parts]))


def _block(
    log_density: Callable[[Tensor, Condition], Tensor],
    prior: Prior,
    coordinates: Coordinates,
    condition: Condition,
    num_samples: int,
    generator: torch.Generator | None,
) -> Drawn:
    """Samples in unbounded coordinates; densities there carry the Jacobian of the map."""

    def prior_log_prob(v: Tensor) -> Tensor:
        theta = coordinates.bounded(v)
        return prior.log_prob(theta) - coordinates.unbounded(theta)[1]

    def log_target(v: Tensor, rows: Tensor) -> Tensor:
        theta = coordinates.bounded(v)
        found = log_density(theta, condition[rows]) - coordinates.unbounded(theta)[1]
        if bool(torch.isnan(found).any()):
            raise NonFiniteError(f"{int(torch.isnan(found).sum())} of {found.numel()} log-likelihoods are NaN.")
        return found

    def prior_sample(number: int) -> Tensor:
        return coordinates.unbounded(prior.sample(number, generator))[0].to(condition.device)

    centre, factor = _first_guess(condition, coordinates, prior_sample)
    return importance_samples(log_target, prior_sample, prior_log_prob, centre, factor, num_samples, generator)


def _first_guess(
    condition: Condition, coordinates: Coordinates, prior_sample: Callable[[int], Tensor]
) -> tuple[Tensor, Tensor]:
    """Centres (B, p) and factors (B, p, p): the summaries' Gaussians, or the prior's moments."""
    if isinstance(condition, Summaries):
        return coordinates.frame(condition.gaussian)
    points, size = prior_sample(PROPOSALS), len(condition)
    factor = torch.diag(points.std(0))
    return points.mean(0).expand(size, -1), factor.expand(size, *factor.shape)
