"""Where a prior allows parameters to be."""

from __future__ import annotations

import torch
from torch import Tensor

from fishnets.priors import Moments, Prior

__all__ = ["moved_inside", "supported"]

HALVINGS = 30  # of the way: the edge of the support is found to a billionth of it


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
    """Parameters (B, p), those outside the support brought to its edge, seen from an anchor inside it.

    One parameter after the other goes from the anchor to where it was, or as far as the support allows, so that those
    not at fault stay what they were.

    Example:
        >>> from fishnets.priors import Box
        >>> box, anchor = Box([0.0, 0.0], [1.0, 1.0]), torch.tensor([0.5, 0.5])
        >>> moved_inside(box, torch.tensor([[0.2, 0.3], [2.0, 0.3]]), anchor)
        tensor([[0.2000, 0.3000],
                [1.0000, 0.3000]])
    """
    outside = ~supported(prior, theta)
    if not bool(outside.any()):
        return theta
    inside = anchor.expand_as(theta)
    for j in range(theta.shape[1]):
        start, way = inside[:, j], theta[:, j] - inside[:, j]
        share = supported(prior, _with(inside, j, start + way)).to(theta)
        for halving in range(1, HALVINGS + 1):
            more = (share + 0.5**halving).clamp(max=1)
            share = torch.where(supported(prior, _with(inside, j, start + more * way)), more, share)
        inside = _with(inside, j, start + share * way)
    return torch.where(outside.unsqueeze(-1), inside, theta)


def _with(theta: Tensor, parameter: int, values: Tensor) -> Tensor:
    """Parameters (B, p) with one column replaced by values (B,)."""
    return theta.index_copy(1, torch.tensor([parameter], device=theta.device), values.unsqueeze(1))
