"""The paper's body: a plain multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, silu

from fishnets.errors import ConfigError
from fishnets.networks.ensemble import StackedLinear

__all__ = ["MLP", "MLPBody"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"elu": elu, "swish": silu}


@dataclass(frozen=True)
class MLP:
    """Recipe of a multi-layer perceptron with hidden layers of one width.

    Args:
        width: Units of each hidden layer.
        depth: Number of hidden layers.
        activation: ``"elu"`` (linear regression, gamma population) or ``"swish"`` (robustness) as in the paper.

    Example:
        >>> MLP(width=50, depth=3, activation="swish")
        MLP(width=50, depth=3, activation='swish')
    """

    width: int = 256
    depth: int = 3
    activation: Literal["elu", "swish"] = "elu"

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ConfigError(f'`activation` is "{self.activation}" but one of {sorted(ACTIVATIONS)} was expected.')
        if self.width < 1 or self.depth < 1:
            raise ConfigError(f"`width` {self.width} and `depth` {self.depth} must be at least 1.")

    def build(self, num_inputs: int, members: int, generator: torch.Generator) -> MLPBody:
        """Makes the body for inputs of the given width."""
        return MLPBody(self, num_inputs, members, generator)


class MLPBody(nn.Module):
    """The hidden layers of K stacked perceptrons: (K or 1, n, d) to (K, n, width)."""

    def __init__(self, recipe: MLP, num_inputs: int, members: int, generator: torch.Generator) -> None:
        super().__init__()
        self.activation_name = recipe.activation
        self.activation = ACTIVATIONS[recipe.activation]
        widths = [num_inputs] + [recipe.width] * recipe.depth
        self.layers = nn.ModuleList(
            StackedLinear(members, a, b, generator) for a, b in pairwise(widths)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Applies every layer and its activation."""
        for layer in self.layers:
            x = self.activation(layer(x))
        return x
