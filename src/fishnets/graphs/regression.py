r"""NodeRegressor: what the messages of a node say about its parameters, with any aggregation in the middle.

.. math:: \hat\theta_v = \mathrm{head}\Big(\mathrm{aggregate}_{e \to v}\ \mathrm{body}(x_u, e_{uv})\Big)

Body and head are gated residual networks, the same for every aggregation, so that aggregations can be compared.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch_geometric.nn import aggr

from fishnets.errors import ConfigError
from fishnets.graphs.aggregation import FishnetsAggregation
from fishnets.networks import Gated
from fishnets.networks.ensemble import StackedLinear

__all__ = ["AGGREGATIONS", "NodeRegressor", "make_aggregation"]

Maker = Callable[[int, Tensor, int], aggr.Aggregation]
AGGREGATIONS: dict[str, Maker] = {
    "fishnets": lambda width, degrees, p: FishnetsAggregation(width, num_params=p),
    "fishnets-paper": lambda width, degrees, p: FishnetsAggregation(width, num_params=p, form="paper"),
    "sum": lambda width, degrees, p: aggr.SumAggregation(),
    "mean": lambda width, degrees, p: aggr.MeanAggregation(),
    "max": lambda width, degrees, p: aggr.MaxAggregation(),
    "softmax": lambda width, degrees, p: aggr.SoftmaxAggregation(learn=True, channels=width),
    "pna": lambda width, degrees, p: aggr.DegreeScalerAggregation(
        ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"], degrees
    ),
}


def make_aggregation(name: str, width: int, degrees: Tensor, num_params: int = 8) -> aggr.Aggregation:
    """An aggregation by name.

    Args:
        name: One of ``AGGREGATIONS``.
        width: Width of the messages.
        degrees: Number of nodes of each in-degree in the training data, which PNA scales by, shape (largest + 1,).
        num_params: Latent parameters of the Fishnets aggregations.

    Example:
        >>> make_aggregation("fishnets", 16, torch.ones(5), 4)
        FishnetsAggregation(16, 16, num_params=4)
    """
    if name not in AGGREGATIONS:
        raise ConfigError(f'There is no aggregation "{name}"; there are {", ".join(AGGREGATIONS)}.')
    return AGGREGATIONS[name](width, degrees, num_params)


class NodeRegressor(nn.Module):
    """Parameters of nodes from what their neighbours say.

    Args:
        node_dim: Width of the nodes' features.
        edge_dim: Width of the edges' features.
        num_outputs: Parameters of a node.
        aggregation: Turns messages of ``width`` channels into features of a node.
        width: Width of messages and head.
        depth: Gated blocks before the aggregation; the head has one.
        seed: Seed of the initial weights of body and head.

    Example:
        >>> model = NodeRegressor(2, 3, 2, FishnetsAggregation(16, num_params=4), width=16)
        >>> edges = torch.tensor([[0, 1, 1], [1, 0, 1]])
        >>> model(torch.rand(3, 2), edges, torch.rand(3, 3)).shape  # the last node has no messages
        torch.Size([3, 2])
    """

    shift: Tensor
    scale: Tensor

    def __init__(
        self,
        node_dim: int,
        edge_dim: int,
        num_outputs: int,
        aggregation: aggr.Aggregation,
        width: int = 32,
        depth: int = 2,
        seed: int = 0,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.aggregation = aggregation
        self.body = Gated(width, depth).build(node_dim + edge_dim, 1, generator)
        with torch.no_grad():
            aggregated = aggregation(torch.zeros(2, width), torch.zeros(2, dtype=torch.int64), dim_size=1).shape[-1]
        self.head = Gated(width, 1).build(aggregated, 1, generator)
        self.out = StackedLinear(1, width, num_outputs, generator)
        self.register_buffer("shift", torch.zeros(node_dim + edge_dim))
        self.register_buffer("scale", torch.ones(node_dim + edge_dim))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Estimates (N, num_outputs) from features of nodes (N, node_dim) and edges (E, edge_dim)."""
        rows = (self._messages(x, edge_index, edge_attr) - self.shift) / self.scale
        messages = self.body(rows.unsqueeze(0)).squeeze(0)
        nodes = self.aggregation(messages, edge_index[1], dim_size=len(x))
        out: Tensor = self.out(self.head(nodes.unsqueeze(0))).squeeze(0)
        return out

    @torch.no_grad()
    def standardise(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> None:
        """Measures the features of messages, to scale them to zero mean and unit spread."""
        rows = self._messages(x, edge_index, edge_attr)
        self.shift.copy_(rows.mean(0))
        self.scale.copy_(rows.std(0).clamp(min=1e-6))

    @staticmethod
    def _messages(x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return torch.cat([x[edge_index[0]], edge_attr], dim=1)
