"""Principal neighbourhood aggregation as a drop-in: four statistics, scaled by degree in three ways, mapped to a width.

Corso et al. 2020, arXiv:2004.05718. PyTorch Geometric's ``DegreeScalerAggregation`` concatenates the twelve; a network
that adds what it aggregates to a node's features needs their width again.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn.aggr import Aggregation, DegreeScalerAggregation

from fishnets.errors import ConfigError

__all__ = ["PNAAggregation"]

STATISTICS = ("mean", "min", "max", "std")
SCALERS = ("identity", "amplification", "attenuation")


class PNAAggregation(Aggregation):  # type: ignore[misc]
    """PNA with a linear map back to the width of the messages.

    Args:
        channels: Width of messages and outputs.
        degrees: Number of nodes of each in-degree in the training data, shape (largest + 1,).

    Example:
        >>> import torch
        >>> aggregation = PNAAggregation(4, torch.tensor([0, 2, 3]))
        >>> aggregation(torch.randn(5, 4), torch.tensor([0, 0, 1, 1, 2])).shape
        torch.Size([3, 4])
    """

    def __init__(self, channels: int, degrees: Tensor) -> None:
        super().__init__()
        if not bool((degrees[1:] > 0).any()):
            raise ConfigError("`degrees` counts no node with messages, but PNA scales by their mean logarithm.")
        self.statistics = DegreeScalerAggregation(list(STATISTICS), list(SCALERS), degrees)
        self.linear = nn.Linear(len(STATISTICS) * len(SCALERS) * channels, channels)

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        self.statistics.reset_parameters()
        self.linear.reset_parameters()

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
    ) -> Tensor:
        """Aggregates messages (E, channels) to features (N, channels)."""
        if index is None and ptr is not None:  # degrees are counted by index
            index = torch.repeat_interleave(ptr.diff(), output_size=x.shape[dim])
            dim_size = len(ptr) - 1 if dim_size is None else dim_size
        out: Tensor = self.linear(self.statistics(x, index, None, dim_size, dim))
        return out
