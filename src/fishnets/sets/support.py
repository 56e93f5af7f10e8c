"""Where a prior allows parameters to be."""

from __future__ import annotations

import torch
from torch import Tensor

from fishnets.priors import Moments, Prior

__all__ = ["moved_inside", "supported"]


def supported(prior: Prior, theta: Tensor) -> Tensor:
    """Whether parameters (*, p) lie in the prior's support, shape (*); a prior known by its moments allows all.

    Example:
        >>> from fishnets.priors import Box
        >>> supported(Box([0.0], [1.0]), torch.tensor([[0.5], [2.0]]))
        tensor([ True, False])
    """
    if isinstance(prior, Moments):
        return torch.ones(theta.shape[:-1], dtype=torch.bool, device=theta.device)
    return ~torch.isneginf(prior.log_prob(theta)).to(theta.device)


def moved_inside(prior: Prior, theta: Tensor, anchor: Tensor) -> Tensor:
    """Parameters (B, p), those outside the support moved halfway towards an anchor inside until they are in it.

    Example:
        >>> from fishnets.priors import Box
        >>> moved_inside(Box([0.0], [1.0]), torch.tensor([[0.2], [2.0]]), torch.tensor([0.5]))
        tensor([[0.2000],
                [0.8750]])
    """
    for _ in range(60):
        outside = ~supported(prior, theta)
        if not bool(outside.any()):
            break
        theta = torch.where(outside.unsqueeze(-1), 0.5 * (theta + anchor), theta)
    return theta
