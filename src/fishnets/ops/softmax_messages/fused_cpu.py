"""Sums weighted by a softmax on a CPU: threads share the groups, so the result is the same for any number of them."""

from __future__ import annotations

import torch
from torch import Tensor

from fishnets.ops.dispatch import HAS_NUMBA
from fishnets.ops.threads import empty_like, run_ranges

__all__ = ["backward", "forward", "obstacle"]


def obstacle() -> str | None:
    """Why these kernels cannot run, or None when they can."""
    return None if HAS_NUMBA else "Numba is not installed; pip install 'fishnets[fast]'"


def forward(x: Tensor, temperature: Tensor, ptr: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums (g, C), and logarithms of what their weights are divided by (g, C), which the gradient needs."""
    from fishnets.ops.softmax_messages.kernels_numba import sum_kernel

    out, top, total = (x.new_empty(len(ptr) - 1, x.shape[1]) for _ in range(3))
    run_ranges(sum_kernel(), 1, ptr.contiguous(), [*_given(x, temperature, order), out, top, total])
    return out, total.log_().add_(top)


def backward(
    grad: Tensor, x: Tensor, temperature: Tensor, ptr: Tensor, order: Tensor | None, out: Tensor, log_total: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of messages (n, C) and of the temperature (1,)."""
    from fishnets.ops.softmax_messages.kernels_numba import pull_kernel

    given, grad_slope = _given(x, temperature, order), torch.empty_like(out)
    grad_x = empty_like(given[1])
    run_ranges(pull_kernel(), 1, ptr.contiguous(), [*given, grad.contiguous(), out, log_total, grad_x, grad_slope])
    return grad_x, grad_slope.sum().view_as(temperature)


def _given(x: Tensor, temperature: Tensor, order: Tensor | None) -> list[Tensor]:
    """Order, messages and temperature for a kernel, to which an empty order means none."""
    none = torch.empty(0, dtype=torch.int64, device=x.device)
    return [none if order is None else order.contiguous(), x.detach().contiguous(), temperature.detach()]
