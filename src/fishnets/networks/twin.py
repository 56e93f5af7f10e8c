r"""Twin networks: each datum's score and the raw entries of its Fisher factor.

Two separate bodies as in the paper, or one shared trunk; either ends in two linear heads. At the start the heads are
scaled by the number of data :math:`n` that will be summed, so that :math:`\sum_i F_i \approx I` and
:math:`\sum_i t_i = O(1)` in standardised parameters: the first loss is finite and of order one at any set size.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fishnets.algebra.cholesky import factor_width, inverse_softplus
from fishnets.algebra.packing import diagonal_positions
from fishnets.errors import ConfigError
from fishnets.networks.ensemble import StackedLinear, in_blocks
from fishnets.networks.fused import evaluate_fused, fuses
from fishnets.networks.gated import Gated
from fishnets.networks.mlp import MLP

__all__ = ["NetworkRecipe", "TwinNetwork", "network_from_dict", "network_to_dict"]

RECIPES: dict[str, type[Any]] = {"MLP": MLP, "Gated": Gated}


class NetworkRecipe(Protocol):
    """A frozen description of a body, able to build it."""

    @property
    def width(self) -> int: ...

    def build(self, num_inputs: int, members: int, generator: torch.Generator) -> nn.Module: ...


class TwinNetwork(nn.Module):
    """K members, each with a score network and a factor network.

    Args:
        recipe: Body of the networks.
        num_features: Width of a datum d.
        num_params: Number of parameters p.
        factor: Kind of Fisher factor: ``"full"``, ``"diagonal"`` or ``"rank-r"``.
        shared: One trunk for both heads instead of two bodies.
        members: Number of members K.
        generator: Source of the initial values.

    Example:
        >>> net = TwinNetwork(MLP(50, 3, "swish"), 3, 2, "full", False, 1, torch.Generator().manual_seed(0))
        >>> sum(parameter.numel() for parameter in net.parameters())
        10855
    """

    def __init__(
        self,
        recipe: NetworkRecipe,
        num_features: int,
        num_params: int,
        factor: str,
        shared: bool,
        members: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.factor, self.num_params, self.set_size = factor, num_params, 1.0
        self.score_body = recipe.build(num_features, members, generator)
        self.score_head = StackedLinear(members, recipe.width, num_params, generator)
        self.factor_body = None if shared else recipe.build(num_features, members, generator)
        self.factor_head = StackedLinear(members, recipe.width, factor_width(factor, num_params), generator)

    def forward(self, values: Tensor, half: bool = False) -> tuple[Tensor, Tensor]:
        """Evaluates every member on shared rows.

        Args:
            values: Standardised rows, shape (n, d).
            half: Multiply in bfloat16, fused into few kernels where device and shapes allow; the outputs are float32.

        Returns:
            Scores, shape (K, n, p), and raw factor entries, shape (K, n, w).
        """
        if not half:
            return self._plain(values)
        if not torch.compiler.is_compiling() and self.fuses(values):  # only what is not fused is compiled
            return evaluate_fused(*self._networks(), values)
        with torch.autocast(values.device.type, dtype=torch.bfloat16):
            score, raw_factor = self._plain(values)
        return score.float(), raw_factor.float()

    def _plain(self, values: Tensor) -> tuple[Tensor, Tensor]:
        x, num_rows = values.unsqueeze(0), len(values)
        if values.is_cuda:
            x = in_blocks(x)
        hidden = self.score_body(x)
        score = self.score_head(hidden)
        raw_factor = self.factor_head(hidden if self.factor_body is None else self.factor_body(x))
        return score.flatten(1, -2)[:, :num_rows], raw_factor.flatten(1, -2)[:, :num_rows]

    def fuses(self, values: Tensor) -> bool:
        """Whether bfloat16 evaluation of such rows runs as fused kernels."""
        return fuses(*self._networks(), values)

    def _networks(self) -> tuple[list[nn.Module], list[nn.Module]]:
        """Body and head of the score network, and of the factor network."""
        body = self.score_body if self.factor_body is None else self.factor_body
        return [self.score_body, self.score_head], [body, self.factor_head]

    @torch.no_grad()
    def scale_to(self, set_size: float) -> None:
        r"""Scales the untrained heads for sums over ``set_size`` data: scores as 1/n, factors as 1/√n."""
        ratio = self.set_size / set_size
        self.score_head.weight.mul_(ratio)
        self.factor_head.weight.mul_(math.sqrt(ratio))
        if self.factor == "full":
            self.factor_head.bias[..., diagonal_positions(self.num_params)] = inverse_softplus(1 / math.sqrt(set_size))
        elif self.factor == "diagonal":
            self.factor_head.bias.fill_(inverse_softplus(1 / math.sqrt(set_size)))
        self.set_size = set_size


def network_to_dict(recipe: NetworkRecipe) -> dict[str, Any]:
    """Describes a body recipe in plain JSON values.

    Example:
        >>> network_to_dict(Gated(16, 2))
        {'kind': 'Gated', 'width': 16, 'depth': 2}
    """
    kind = type(recipe).__name__
    if RECIPES.get(kind) is not type(recipe):
        raise ConfigError(f"`network` is a {kind}, which a file cannot describe; use one of {sorted(RECIPES)}.")
    return {"kind": kind, **dataclasses.asdict(recipe)}  # type: ignore[call-overload]


def network_from_dict(fields: dict[str, Any]) -> NetworkRecipe:
    """Rebuilds a body recipe from :func:`network_to_dict`.

    Example:
        >>> network_from_dict({"kind": "Gated", "width": 16, "depth": 2})
        Gated(width=16, depth=2)
    """
    fields = dict(fields)
    kind = fields.pop("kind", None)
    if kind not in RECIPES:
        raise ConfigError(f"Unknown network kind {kind!r}; expected one of {sorted(RECIPES)}.")
    recipe: NetworkRecipe = RECIPES[kind](**fields)
    return recipe
