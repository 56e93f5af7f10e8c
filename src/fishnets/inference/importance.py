r"""Samples from an unnormalised density by adaptive importance sampling, many sets at once.

Proposals are Student-t about a centre, mixed with a share from the prior so that no region is left out. Each round
re-estimates centre and covariance from the weighted proposals; where the weights are too uneven for that, they are
raised to a power :math:`\beta \le 1` at which they are not (population Monte Carlo with tempering). The last round is
resampled. The effective sample size :math:`(\sum w)^2 / \sum w^2` says how far the result can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Drawn", "importance_samples"]

FREEDOM = 5.0  # degrees of freedom of the proposals: tails heavier than a posterior's
PRIOR_SHARE = 0.1
ROUNDS = 8
PROPOSALS = 1000  # a round of refinement
WIDER = 1.1  # of the measured spread, since too wide costs less than too narrow


@dataclass(frozen=True, eq=False)
class Drawn:
    """Samples (B, S, p) and the effective share of the proposals they were drawn from, (B,), from 0 to 1."""

    samples: Tensor
    effective_share: Tensor


def importance_samples(
    log_target: Callable[[Tensor, Tensor], Tensor],
    prior_sample: Callable[[int], Tensor],
    prior_log_prob: Callable[[Tensor], Tensor],
    centre: Tensor,
    factor: Tensor,
    num_samples: int,
    generator: torch.Generator | None = None,
) -> Drawn:
    """Draws from B densities known up to a constant.

    Args:
        log_target: Coordinates (A, K, p) and the numbers (A,) of the densities they are for to log-densities (A, K),
            -inf where there is no mass.
        prior_sample: Number K to coordinates (K, p) from the prior.
        prior_log_prob: Log-density of the prior in the same coordinates, (B, K, p) to (B, K).
        centre: First guess of the centres, shape (B, p).
        factor: First guess of the factors of the covariances, shape (B, p, p).
        num_samples: Samples S of each density.
        generator: Source of the randomness.

    Returns:
        Samples, with repetitions, and effective shares.
    """
    target = _Target(log_target, prior_sample, prior_log_prob)
    centre, factor = centre.clone(), factor.clone()
    rows = torch.arange(len(centre), device=centre.device)
    active = rows
    for _ in range(ROUNDS):
        points, log_weight = target.propose(active, centre[active], WIDER * factor[active], PROPOSALS, generator)
        power = _tempering(log_weight)
        centre[active], factor[active] = _moments(points, torch.softmax(power.unsqueeze(-1) * log_weight, dim=-1))
        active = active[power < 1]
        if len(active) == 0:
            break
    num_proposals = max(PROPOSALS, 2 * num_samples)
    points, log_weight = target.propose(rows, centre, WIDER * factor, num_proposals, generator)
    weight = torch.softmax(log_weight, dim=-1)
    chosen = _resample(weight, num_samples, generator)
    samples = points.take_along_dim(chosen.unsqueeze(-1), dim=1)
    return Drawn(samples, _effective_share(weight))


@dataclass(frozen=True)
class _Target:
    """The densities, and the prior that a share of the proposals comes from."""

    log_target: Callable[[Tensor, Tensor], Tensor]
    prior_sample: Callable[[int], Tensor]
    prior_log_prob: Callable[[Tensor], Tensor]

    def propose(
        self, rows: Tensor, centre: Tensor, factor: Tensor, num_proposals: int, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Proposals (A, K, p) with their log-weights (A, K), the same number of each kind for every density."""
        num_sets, num_params = centre.shape
        from_prior = round(PRIOR_SHARE * num_proposals)
        noise = _normal((num_sets, num_proposals - from_prior, num_params), centre, generator)
        # a chi-squared of five degrees of freedom, as a sum of squares: torch.distributions takes no generator
        squares = _normal((*noise.shape[:2], int(FREEDOM)), centre, generator).square().sum(-1, keepdim=True)
        student = centre.unsqueeze(1) + (noise * (FREEDOM / squares).sqrt()) @ factor.mT
        wide = self.prior_sample(num_sets * from_prior).to(centre).view(num_sets, from_prior, num_params)
        points = torch.cat([student, wide], dim=1)
        log_proposal = torch.logaddexp(
            _student_log_prob(points, centre, factor) + math.log1p(-PRIOR_SHARE),
            self.prior_log_prob(points) + math.log(PRIOR_SHARE),
        )
        return points, self.log_target(points, rows) - log_proposal


def _student_log_prob(points: Tensor, centre: Tensor, factor: Tensor) -> Tensor:
    size = centre.shape[-1]
    white: Tensor = torch.linalg.solve_triangular(factor, (points - centre.unsqueeze(1)).mT, upper=False)
    log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True)
    constant = (
        math.lgamma(0.5 * (FREEDOM + size)) - math.lgamma(0.5 * FREEDOM) - 0.5 * size * math.log(FREEDOM * math.pi)
    )
    return constant - log_det - 0.5 * (FREEDOM + size) * torch.log1p(white.square().sum(-2) / FREEDOM)


def _tempering(log_weight: Tensor, share: float = 0.1) -> Tensor:
    """The largest power of the weights (B, K), at most 1, that keeps an effective share of the proposals, (B,)."""
    low, high = torch.zeros_like(log_weight[:, 0]), torch.ones_like(log_weight[:, 0])
    done = _effective_share(torch.softmax(log_weight, dim=-1)) >= share
    for _ in range(20):
        middle = 0.5 * (low + high)
        enough = _effective_share(torch.softmax(middle.unsqueeze(-1) * log_weight, dim=-1)) >= share
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    return torch.where(done, torch.ones_like(low), low.clamp(min=1e-6))


def _moments(points: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted means (B, p) and factors of the weighted covariances (B, p, p)."""
    centre = (weight.unsqueeze(-1) * points).sum(1)
    rest = points - centre.unsqueeze(1)
    covariance = (weight.unsqueeze(-1) * rest).mT @ rest
    floor = 1e-12 + 1e-6 * covariance.diagonal(dim1=-2, dim2=-1)  # of proposals on a line
    return centre, torch.linalg.cholesky(covariance + torch.diag_embed(floor))


def _effective_share(weight: Tensor) -> Tensor:
    return 1 / weight.square().sum(-1) / weight.shape[-1]


def _resample(weight: Tensor, num_samples: int, generator: torch.Generator | None) -> Tensor:
    """Systematic resampling, in random order: indices (B, S) of proposals with weights (B, K)."""
    device = weight.device if generator is None else generator.device
    start = torch.rand((len(weight), 1), generator=generator, dtype=weight.dtype, device=device).to(weight.device)
    levels = (torch.arange(num_samples, device=weight.device) + start) / num_samples
    chosen = torch.searchsorted(weight.cumsum(-1), levels).clamp(max=weight.shape[-1] - 1)
    order = torch.rand(chosen.shape, generator=generator, dtype=weight.dtype, device=device).argsort(-1)
    return chosen.take_along_dim(order.to(weight.device), dim=-1)


def _normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    device = like.device if generator is None else generator.device
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=device).to(like.device)
