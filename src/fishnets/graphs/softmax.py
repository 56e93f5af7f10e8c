"""DeeperGCN's softmax with a learned temperature, as a drop-in on kernels of its own.

What PyTorch Geometric's ``SoftmaxAggregation(t, learn=True)`` computes, with the same parameter. On a GPU messages are
read once forward and once back, where that one goes over them dozens of times: networks that are compared with Fishnets
should not wait for it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn.aggr import Aggregation

from fishnets.graphs.aggregation import bounds_and_order
from fishnets.ops.softmax_messages import softmax_messages

__all__ = ["SoftmaxAggregation"]


class SoftmaxAggregation(Aggregation):  # type: ignore[misc]
    """Sums messages, each channel weighted by a softmax over the messages of a node.

    Args:
        temperature: What the softmax multiplies messages with, at first.
        learn: Whether that changes in training.

    Example:
        >>> SoftmaxAggregation()(torch.tensor([[0.0], [0.0], [3.0]]), torch.tensor([0, 0, 2])).tolist()
        [[0.0], [0.0], [3.0]]
    """

    t: Tensor

    def __init__(self, temperature: float = 1.0, learn: bool = True) -> None:
        super().__init__()
        self.temperature = temperature
        if learn:
            self.t = nn.Parameter(torch.empty(1))
        else:
            self.register_buffer("t", torch.empty(1), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the temperature back to where it began."""
        with torch.no_grad():
            self.t.fill_(self.temperature)

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
    ) -> Tensor:
        """Aggregates messages, E of them along ``dim``; arguments as everywhere in PyTorch Geometric."""
        rows = x.movedim(dim, 0)
        groups = bounds_and_order(index, ptr, dim_size, len(rows))
        flat = rows.flatten(1) if rows.ndim > 1 else rows.unsqueeze(1)
        sums = softmax_messages(flat, self.t, groups.ptr, order=groups.order)
        return sums.reshape(len(sums), *rows.shape[1:]).movedim(0, dim)

    def __repr__(self) -> str:
        return f"SoftmaxAggregation(temperature={self.temperature}, learn={isinstance(self.t, nn.Parameter)})"
