r"""FishnetsConv: a convolution whose messages are information.

.. math:: x_v' = \mathrm{decode}\Big(\sum_{u \to v} w_{uv}\,\mathrm{encode}(m_{uv})\Big) + W x_v + b

with ``encode`` and ``decode`` of :class:`fishnets.graphs.FishnetsAggregation`. Without edge features a message is its
source, :math:`m_{uv} = x_u`: the information of every node is computed once, not once per edge, and the whole
aggregation is one sparse product, which a sorted ``EdgeIndex`` or a sparse adjacency uses. With edge features,
:math:`m_{uv} = \mathrm{relu}(x_u + W_e e_{uv})`.

What is passed along an edge is a row of information: an edge weight scales it, and an explainer's mask of zero is the
edge's removal, exactly.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import is_sparse, is_torch_sparse_tensor, spmm

from fishnets.errors import ConfigError, ShapeError
from fishnets.graphs.aggregation import FishnetsAggregation, expect_weights, without_autocast
from fishnets.graphs.forms import Form

__all__ = ["FishnetsConv"]


class FishnetsConv(MessagePassing):  # type: ignore[misc]
    """Information-weighted graph convolution.

    Args:
        in_channels: Width of the nodes' features, or a pair for sources and targets.
        out_channels: Width of the output.
        num_params: Number of latent parameters of the aggregation.
        edge_dim: Width of the edges' features; None where messages depend on their source alone.
        form: Form of the aggregation.

    Example:
        >>> conv = FishnetsConv(8, 16, num_params=4)
        >>> edge_index = torch.tensor([[0, 1, 2, 0], [1, 0, 0, 2]])
        >>> conv(torch.randn(3, 8), edge_index).shape
        torch.Size([3, 16])
    """

    SUPPORTS_FUSED_EDGE_INDEX: Final[bool] = True

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        num_params: int = 8,
        *,
        edge_dim: int | None = None,
        form: Form = "regression",
    ) -> None:
        super().__init__(aggr="sum")
        sources, targets = (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        self.in_channels, self.out_channels, self.edge_dim = in_channels, out_channels, edge_dim
        self.information = FishnetsAggregation(sources, out_channels, num_params, form=form)
        self.lin_edge = None if edge_dim is None else nn.Linear(edge_dim, sources)
        self.lin_root = nn.Linear(targets, out_channels)
        self.fuse: bool = edge_dim is None

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        super().reset_parameters()
        self.information.reset_parameters()
        self.lin_root.reset_parameters()
        if self.lin_edge is not None:
            self.lin_edge.reset_parameters()

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor | None],
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        edge_weight: Tensor | None = None,
        size: tuple[int, int] | None = None,
    ) -> Tensor:
        """Aggregates the information of neighbours.

        Args:
            x: Features of the nodes, shape (N, in_channels), or a pair of them for sources and targets.
            edge_index: Sources and targets, shape (2, E), or a transposed sparse adjacency, whose values are weights.
            edge_attr: Features of the edges, shape (E, edge_dim), where the convolution was made for them.
            edge_weight: How much each edge counts, not negative, shape (E,).
            size: Numbers of sources and targets, where they cannot be inferred.

        Returns:
            Features of the targets, shape (N, out_channels).
        """
        sources, targets = (x, x) if isinstance(x, Tensor) else x
        self.information.expect_messages(sources)
        self._expect_edges(edge_index, edge_attr, edge_weight)
        if targets is not None:
            size = (sources.shape[self.node_dim], targets.shape[self.node_dim])
        rows = sources if self.edge_dim is not None else self.information.encode(sources)
        # propagate_type: (rows: Tensor, edge_attr: OptTensor, edge_weight: OptTensor)
        total = self.propagate(edge_index, rows=rows, edge_attr=edge_attr, edge_weight=edge_weight, size=size)
        out = self.information.decode(total, sources.dtype)
        return out if targets is None else out + self.lin_root(targets)

    def message(self, rows_j: Tensor, edge_attr: Tensor | None, edge_weight: Tensor | None) -> Tensor:
        """The information that passes along each edge."""
        if self.lin_edge is not None and edge_attr is not None:
            rows_j = self.information.encode((rows_j + self.lin_edge(edge_attr)).relu())
        return rows_j if edge_weight is None else rows_j * edge_weight.to(rows_j).unsqueeze(-1)

    def message_and_aggregate(self, edge_index: Tensor, rows: Tensor, edge_weight: Tensor | None) -> Tensor:
        """The sum over edges as one sparse product, in the precision of the rows."""
        total: Tensor
        with without_autocast(rows.device):
            if isinstance(edge_index, EdgeIndex):
                weight = rows.new_ones(edge_index.shape[1]) if edge_weight is None else edge_weight.to(rows)
                total = edge_index.matmul(rows, weight, reduce="sum", transpose=True)
            else:
                total = spmm(edge_index.to(rows.dtype), rows, reduce="sum")
        return total

    def _expect_edges(self, edge_index: Tensor, edge_attr: Tensor | None, edge_weight: Tensor | None) -> None:
        if (edge_attr is None) != (self.edge_dim is None):
            given = "no edge features" if edge_attr is None else "edge features"
            hint = "" if edge_attr is None else " Weights go to `edge_weight`."
            raise ConfigError(f"{self!r} was made with edge_dim={self.edge_dim} but {given} were given.{hint}")
        sparse = is_sparse(edge_index)
        if sparse and edge_weight is not None:
            raise ConfigError("A sparse adjacency carries its own weights; leave `edge_weight` out.")
        if edge_attr is not None and edge_attr.shape != (_num_edges(edge_index), self.edge_dim):
            raise ShapeError(
                f"`edge_attr` has shape {tuple(edge_attr.shape)} but ({_num_edges(edge_index)}, {self.edge_dim}) was "
                "expected."
            )
        if edge_weight is not None:
            expect_weights("`edge_weight`", edge_weight, _num_edges(edge_index))
        elif isinstance(edge_index, Tensor) and sparse:
            stored = edge_index._values() if edge_index.layout == torch.sparse_coo else edge_index.values()
            expect_weights("The list of the adjacency's values", stored, _num_edges(edge_index))

    def __repr__(self) -> str:
        return f"FishnetsConv({self.in_channels}, {self.out_channels}, num_params={self.information.num_params})"


def _num_edges(edge_index: Tensor) -> int:
    return int(edge_index._nnz() if is_torch_sparse_tensor(edge_index) else edge_index.shape[1])
