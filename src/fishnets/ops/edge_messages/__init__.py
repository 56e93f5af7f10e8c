"""Features of nodes and edges in, messages along the edges out: what DeeperGCN aggregates."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fishnets.errors import ShapeError
from fishnets.ops.dispatch import choose_backend
from fishnets.ops.edge_messages import fused, reference
from fishnets.ops.groups import expect_rows

__all__ = ["edge_messages", "edge_messages_backend"]


def edge_messages(x: Tensor, edge: Tensor, source: Tensor, offset: float = 0.0, *, backend: str = "auto") -> Tensor:
    r"""Makes the message of every edge from its source and its own features.

    .. math:: m_e = \mathrm{relu}(x_{u(e)} + a_e) + \epsilon

    Args:
        x: Features of the nodes, shape :math:`(N, C)`.
        edge: Features of the edges :math:`a`, shape :math:`(E, C)`.
        source: Node :math:`u` at which each edge begins, int64, shape :math:`(E,)`.
        offset: What is added to all messages, :math:`\epsilon`.
        backend: ``"auto"``, ``"reference"`` or ``"fused"``, kernels for the CPU that keep nothing between.

    Returns:
        The messages, shape :math:`(E, C)`.

    Example:
        >>> import torch
        >>> edge_messages(torch.tensor([[1.0], [2.0]]), torch.tensor([[0.5], [-3.0]]), torch.tensor([1, 0]))
        tensor([[2.5000],
                [0.0000]])
    """
    if x.ndim != 2 or source.ndim != 1 or edge.shape != (*source.shape, *x.shape[1:]) or source.dtype != torch.int64:
        raise ShapeError(
            f"`x` has shape {tuple(x.shape)}, `edge` {tuple(edge.shape)} and `source` is {source.dtype} of shape "
            f"{tuple(source.shape)}, but (N, C), (E, C) and int64 of shape (E,) were expected."
        )
    if edge_messages_backend(x, edge, backend)[0] == "reference":
        return reference.edge_messages(x, edge, source, offset)
    expect_rows("`source`", source, len(x))
    return fused.edge_messages(x, edge, source, offset)


def edge_messages_backend(x: Tensor, edge: Tensor, backend: str = "auto") -> tuple[str, str]:
    """Tells which backend :func:`edge_messages` would use with these arguments, and why.

    Example:
        >>> import torch
        >>> edge_messages_backend(torch.zeros(2, 1), torch.zeros(3, 1), "reference")
        ('reference', 'it was asked for')
    """
    return choose_backend(backend, partial(fused.obstacle, x, edge))
