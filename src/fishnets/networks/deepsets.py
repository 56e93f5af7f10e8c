r"""Deep sets, the baselines of the paper's robustness study.

Two embeddings per datum (to match the twin networks' complexity), concatenated, aggregated over the set by a mean or by
a channel-wise softmax with one learned temperature :math:`\beta`,

.. math:: a_c = \sum_i \frac{e^{\beta h_{ic}}}{\sum_j e^{\beta h_{jc}}} h_{ic},

and a global network that returns the parameters. An empty set aggregates to zero. A mean deep set is a Fishnet whose
data all weigh the same: :math:`F_i = f I` and :math:`t_i = f (\phi_i - \theta_*)` give :math:`\hat\theta = \bar\phi`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from fishnets.errors import ConfigError, ShapeError
from fishnets.networks.ensemble import StackedLinear
from fishnets.networks.pooling import apply_to_rows, set_mean, set_softmax, set_sum
from fishnets.ragged import Sets

__all__ = ["DeepSet", "DeepSetNetwork", "SetNetworkRecipe"]


class SetNetworkRecipe(Protocol):
    """A frozen description of a network on sets, able to build it.

    What is built has the members as the first dimension of every parameter and maps sets, shared by all members, to
    parameters of shape (K, B, p). Where ``sets.common_size`` is known it reads nothing back from the device.
    """

    def build(self, num_features: int, num_params: int, members: int, generator: torch.Generator) -> nn.Module: ...


@dataclass(frozen=True)
class DeepSet:
    """Recipe of a deep set, of the paper's size by default: 87,810 weights with a mean, 87,811 with a softmax.

    Args:
        aggregation: ``"mean"`` or ``"softmax"``.
        embedding: Width of each layer of the two embeddings.
        hidden: Width of the global network's two hidden layers.

    Example:
        >>> net = DeepSet().build(3, 2, members=4, generator=torch.Generator().manual_seed(0))
        >>> sum(parameter.numel() for parameter in net.parameters()) // 4
        87810
        >>> net(Sets.from_offsets(torch.zeros(7, 3), [0, 2, 7])).shape
        torch.Size([4, 2, 2])
    """

    aggregation: Literal["mean", "softmax"] = "mean"
    embedding: int = 128
    hidden: int = 64

    def __post_init__(self) -> None:
        if self.aggregation not in ("mean", "softmax"):
            raise ConfigError(f'`aggregation` is "{self.aggregation}" but "mean" or "softmax" was expected.')
        if self.embedding < 1 or self.hidden < 1:
            raise ConfigError(f"`embedding` {self.embedding} and `hidden` {self.hidden} must be at least 1.")

    def build(self, num_features: int, num_params: int, members: int, generator: torch.Generator) -> DeepSetNetwork:
        """Makes the network for sets of the given width."""
        return DeepSetNetwork(self, num_features, num_params, members, generator)


class DeepSetNetwork(nn.Module):
    """K stacked deep sets: sets to parameters (K, B, p)."""

    def __init__(
        self, recipe: DeepSet, num_features: int, num_params: int, members: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.num_features, self.width = num_features, 2 * recipe.embedding
        inner = [recipe.embedding] * 3
        self.embeddings = nn.ModuleList(_SwishNetwork([num_features, *inner], members, generator) for _ in range(2))
        self.readout = _SwishNetwork([self.width, recipe.hidden, recipe.hidden, num_params], members, generator)
        softmax = recipe.aggregation == "softmax"
        self.temperature = nn.Parameter(torch.ones(members, 1, 1)) if softmax else None

    def forward(self, sets: Sets) -> Tensor:
        """Maps a batch of sets to parameters, shape (K, B, p)."""
        return self.readout(self.aggregate(sets))  # type: ignore[no-any-return]

    def aggregate(self, sets: Sets) -> Tensor:
        """The aggregated embeddings of each set, shape (K, B, c)."""
        if sets.num_features != self.num_features:
            raise ShapeError(f"The sets have {sets.num_features} features but {self.num_features} were expected.")
        values = sets.values.unsqueeze(0)
        rows = torch.cat([apply_to_rows(embedding, values) for embedding in self.embeddings], dim=-1)  # (K, N, c)
        if self.temperature is None:
            return set_mean(rows, sets)
        return set_sum(set_softmax(self.temperature * rows, sets) * rows, sets)


class _SwishNetwork(nn.Module):
    """K stacked perceptrons with swish between their layers: (K or 1, *, n, in) to (K, *, n, out)."""

    def __init__(self, widths: list[int], members: int, generator: torch.Generator) -> None:
        super().__init__()
        self.layers = nn.ModuleList(StackedLinear(members, a, b, generator) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        first, *others = self.layers
        x = first(x)
        for layer in others:
            x = layer(silu(x))
        return x
