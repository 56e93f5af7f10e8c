"""The definition of messages along edges, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor

__all__ = ["edge_messages"]


def edge_messages(x: Tensor, edge: Tensor, source: Tensor, offset: float) -> Tensor:
    """Messages (E, C) of edges; see :func:`fishnets.ops.edge_messages.edge_messages`."""
    return (x.index_select(0, source) + edge).relu() + offset
