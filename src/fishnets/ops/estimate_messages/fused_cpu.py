"""Estimates from the outputs of a layer on a CPU: the kernels of ``segment_information`` and ``solve_information``.

The layer itself is left to PyTorch: here its products take most of the time, and nobody multiplies faster.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fishnets.algebra.packing import diagonal_positions, packed_size
from fishnets.ops.segment_information import fused_cpu as segments
from fishnets.ops.solve_information import fused_cpu as systems

__all__ = ["backward", "forward", "outputs_obstacle"]


def outputs_obstacle(x: Tensor, num_params: int, form: str) -> str | None:
    """Why the outputs of a layer cannot be summed and solved in one go, or None when they can."""
    if x.ndim != 2:
        return f"messages have {x.ndim} dimensions and those of shape (n, C) are fused"
    return segments.obstacle(x, num_params, "full", form) or systems.obstacle(x)


def forward(
    raw: Tensor,
    lin: None,
    bias: Tensor,
    prior: Tensor,
    ptr: Tensor,
    form: str,
    weight: Tensor | None,
    order: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Features (g, 2p), and sums of information (g, p + p(p+1)/2), which the gradient needs."""
    p = len(prior)
    total = segments.forward(raw.unsqueeze(0), p, ptr, "full", form, weight, order, bias)[0]
    estimate, _ = systems.forward(total[:, :p], _precision(total, prior))
    own = total[:, p + diagonal_positions(p, total.device)]
    return torch.cat([estimate, torch.log1p(own / prior.to(own))], dim=1), total


def backward(
    grad: Tensor,
    raw: Tensor,
    lin: None,
    bias: Tensor,
    prior: Tensor,
    ptr: Tensor,
    form: str,
    weight: Tensor | None,
    order: Tensor | None,
    features: Tensor,
    total: Tensor,
    need_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of outputs, of no layer, of the bias, the prior and weights; those not needed are (0,)."""
    p, estimate = len(prior), features[:, : len(prior)]
    diagonal, precision = diagonal_positions(p, raw.device), _precision(total, prior)
    towards, grad_packed = systems.backward(grad[:, :p], None, precision, estimate)
    own_grad = grad[:, p:] / precision[:, diagonal]
    grad_prior = -(towards * estimate + own_grad * total[:, p + diagonal] / prior.to(total)).sum(0).to(prior)
    grad_packed[:, diagonal] += own_grad
    upstream = torch.cat([towards, grad_packed], dim=1).unsqueeze(0)
    given = (upstream, raw.unsqueeze(0), p, ptr, "full", form, weight, order, bias, need_weight)
    grads, grad_weight = segments.backward(*given)
    weights = raw.new_empty(0) if grad_weight is None else grad_weight
    return grads[0], raw.new_empty(0), grads[0].sum(0), grad_prior, weights


def _precision(total: Tensor, prior: Tensor) -> Tensor:
    """Packed sums of Fisher matrices (g, p(p+1)/2), with the prior on their diagonals."""
    p = len(prior)
    spread = total.new_zeros(packed_size(p)).index_copy_(0, diagonal_positions(p, total.device), prior.to(total))
    return total[:, p:] + spread
