"""Messages along edges on a CPU: threads share edges forward and channels back, so their number changes nothing."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fishnets.ops.threads import empty_like, run_ranges

__all__ = ["backward", "forward"]

CHUNK = 64  # edges
LINE = 16  # numbers of a cache line, which threads do not share


def forward(x: Tensor, edge: Tensor, source: Tensor, offset: float) -> Tensor:
    """Messages (E, C)."""
    from fishnets.ops.edge_messages.kernels_numba import send_kernel

    given, constant = _given(x, edge, source), x.new_tensor([offset])
    out, bounds = empty_like(given[2]), np.minimum(np.arange(0, len(edge) + CHUNK, CHUNK), len(edge))
    run_ranges(send_kernel(), edge.shape[1], torch.from_numpy(bounds), [*given, constant, out])
    return out


def backward(grad: Tensor, x: Tensor, edge: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the features of nodes (N, C) and of edges (E, C)."""
    from fishnets.ops.edge_messages.kernels_numba import pull_kernel

    given = _given(x, edge, source)
    grad_x, grad_edge = torch.zeros_like(given[1]), empty_like(given[2])
    channels = x.shape[1]
    shares = max(1, min(torch.get_num_threads(), channels // LINE))
    cuts = np.linspace(0, channels / LINE, shares + 1).astype(np.int64) * LINE
    cuts[-1] = channels
    run_ranges(pull_kernel(), len(edge), torch.from_numpy(cuts), [*given, grad.contiguous(), grad_x, grad_edge])
    return grad_x, grad_edge


def _given(x: Tensor, edge: Tensor, source: Tensor) -> list[Tensor]:
    """Sources and features for a kernel."""
    return [source.contiguous(), x.detach().contiguous(), edge.detach().contiguous()]
