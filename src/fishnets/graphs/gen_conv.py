"""PyTorch Geometric's GENConv with messages that are made in one operation.

It is a subclass, not a wrapper, so that its parameters keep their names and explainers and hooks find a convolution.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GENConv, MessagePassing

from fishnets.ops.edge_messages import edge_messages

__all__ = ["Convolution"]

HOOKED = ("_propagate_", "_message_", "_aggregate_")  # hooks of PyTorch Geometric's convolutions


class Convolution(GENConv):  # type: ignore[misc]
    """GENConv of one width that makes the messages of a graph with features of edges in one operation.

    They are made step by step where others look at them, such as explainers, between two sets of nodes, and for graphs
    in other forms than lists of edges.

    Example:
        >>> conv = Convolution(8, 8, "sum")
        >>> conv(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]]), torch.randn(2, 8)).shape
        torch.Size([3, 8])
    """

    def propagate(self, edge_index: Any, size: Any = None, **given: Any) -> Tensor:
        """What the messages of each node are aggregated to (N, C), from features ``x`` and ``edge_attr``."""
        out: Tensor
        (x, targets), edge = given["x"], given["edge_attr"]
        listed = type(edge_index) is Tensor and edge_index.layout is torch.strided and edge_index.dtype == torch.int64
        plain = listed and x is targets and x.ndim == 2 and size is None
        if edge is None or not plain or self.explain or any(self._hooks()):
            out = MessagePassing.propagate(self, edge_index, size, **given)
        else:
            source, target = edge_index
            out = self.aggr_module(edge_messages(x, edge, source, self.eps), target, dim_size=len(x))
        return out

    def _hooks(self) -> Iterator[Any]:
        """Hooks that look at messages or change them."""
        return (hooks for name, hooks in vars(self).items() if name.startswith(HOOKED))
