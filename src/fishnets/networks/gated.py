r"""The recommended body: gated residual blocks.

Scores and Fisher matrices are products of features (in linear regression :math:`x y / \sigma^2`). A gated unit holds a
product, which a plain perceptron has to learn piece by piece:

.. math:: h \leftarrow h + W_o\left[\operatorname{silu}(W_g h) \odot (W_v h)\right].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from fishnets.errors import ConfigError
from fishnets.networks.ensemble import StackedLinear

__all__ = ["Gated", "GatedBody"]


@dataclass(frozen=True)
class Gated:
    """Recipe of a gated residual network.

    Args:
        width: Width of the residual stream; each block works at twice that.
        depth: Number of blocks.

    Example:
        >>> Gated(width=16, depth=2)
        Gated(width=16, depth=2)
    """

    width: int = 32
    depth: int = 2

    def __post_init__(self) -> None:
        if self.width < 1 or self.depth < 0:
            raise ConfigError(f"`width` {self.width} must be at least 1 and `depth` {self.depth} at least 0.")

    def build(self, num_inputs: int, members: int, generator: torch.Generator) -> GatedBody:
        """Makes the body for inputs of the given width."""
        return GatedBody(self, num_inputs, members, generator)


class GatedBody(nn.Module):
    """K stacked gated networks: (K or 1, n, d) to (K, n, width)."""

    def __init__(self, recipe: Gated, num_inputs: int, members: int, generator: torch.Generator) -> None:
        super().__init__()
        inner = 2 * recipe.width
        self.enter = StackedLinear(members, num_inputs, recipe.width, generator)
        self.gates = nn.ModuleList(
            StackedLinear(members, recipe.width, 2 * inner, generator) for _ in range(recipe.depth)
        )
        self.leaves = nn.ModuleList(
            StackedLinear(members, inner, recipe.width, generator) for _ in range(recipe.depth)
        )
        with torch.no_grad():
            for parameter in self.leaves.parameters():  # else products of products explode from four blocks on
                parameter.mul_(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Applies the blocks one after another."""
        x = self.enter(x)
        for gate, leave in zip(self.gates, self.leaves, strict=True):
            open_, value = gate(x).chunk(2, dim=-1)
            x = x + leave(silu(open_) * value)
        return x
