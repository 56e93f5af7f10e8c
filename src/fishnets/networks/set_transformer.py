r"""Set Transformer: attention among the rows of a set, through a few inducing points.

After Lee et al., "Set Transformer" (ICML 2019). One block attends with :math:`h` heads and is residual,

.. math::
    \operatorname{MAB}(X, Y) = H + \operatorname{rFF}(H), \qquad H = X + \operatorname{Multihead}(X, Y, Y),

with layer norms after both sums if wanted. :math:`m` inducing points :math:`I` make its cost linear in the rows, and a
seed :math:`S` pools them:

.. math::
    \operatorname{ISAB}(X) = \operatorname{MAB}(X, \operatorname{MAB}(I, X)), \qquad
    \operatorname{PMA}(X) = \operatorname{MAB}(S, \operatorname{rFF}(X)).

Attention is an average over rows, so copies of a set add nothing: how many data there were, :math:`\ln n`, is not
visible to the network, as it is not to a mean. Nor do chunks of a set merge: a set is read whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, silu

from fishnets.errors import ConfigError, ShapeError
from fishnets.networks.ensemble import StackedLinear
from fishnets.networks.pooling import apply_to_rows, set_softmax, set_sum
from fishnets.ragged import Sets

__all__ = ["SetTransformer", "SetTransformerNetwork"]


@dataclass(frozen=True)
class SetTransformer:
    """Recipe of a Set Transformer, by default of about the size of the paper's deep sets.

    Args:
        width: Width of every row, point and seed; a multiple of ``heads``.
        heads: Number of attention heads.
        inducing: Number of inducing points of a block.
        depth: Number of induced blocks.
        norm: Whether to normalise the layers.

    Example:
        >>> net = SetTransformer().build(3, 2, members=4, generator=torch.Generator().manual_seed(0))
        >>> sum(parameter.numel() for parameter in net.parameters()) // 4
        86298
        >>> net(Sets.from_offsets(torch.zeros(7, 3), [0, 2, 7])).shape
        torch.Size([4, 2, 2])
    """

    width: int = 56
    heads: int = 4
    inducing: int = 16
    depth: int = 2
    norm: bool = True

    def __post_init__(self) -> None:
        if min(self.width, self.heads, self.inducing) < 1 or self.depth < 0:
            raise ConfigError(
                f"`width` {self.width}, `heads` {self.heads} and `inducing` {self.inducing} must be at least 1 and "
                f"`depth` {self.depth} at least 0."
            )
        if self.width % self.heads:
            raise ConfigError(f"`width` is {self.width} but a multiple of the {self.heads} `heads` was expected.")

    def build(
        self, num_features: int, num_params: int, members: int, generator: torch.Generator
    ) -> SetTransformerNetwork:
        """Makes the network for sets of the given width."""
        return SetTransformerNetwork(self, num_features, num_params, members, generator)


class SetTransformerNetwork(nn.Module):
    """K stacked Set Transformers: sets to parameters (K, B, p)."""

    def __init__(
        self, recipe: SetTransformer, num_features: int, num_params: int, members: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.enter = StackedLinear(members, num_features, recipe.width, generator)
        self.blocks = nn.ModuleList(_InducedBlock(recipe, members, generator) for _ in range(recipe.depth))
        self.feed = StackedLinear(members, recipe.width, recipe.width, generator)
        self.seed = nn.Parameter(torch.randn((members, 1, recipe.width), generator=generator))
        self.pool = _Attention(recipe, members, generator)
        self.readout = StackedLinear(members, recipe.width, num_params, generator)

    def forward(self, sets: Sets) -> Tensor:
        """Maps a batch of sets to parameters, shape (K, B, p)."""
        if sets.num_features != self.num_features:
            raise ShapeError(f"The sets have {sets.num_features} features but {self.num_features} were expected.")
        rows = apply_to_rows(self.enter, sets.values.unsqueeze(0))  # (K, N, w)
        for block in self.blocks:
            rows = block(rows, sets)
        pooled = self.pool.points_to_rows(self.seed, silu(apply_to_rows(self.feed, rows)), sets)  # (K, B, 1, w)
        return self.readout(pooled.squeeze(2))  # type: ignore[no-any-return]


class _InducedBlock(nn.Module):
    """Rows attend to inducing points, which have attended to the rows: (K, N, w) to (K, N, w)."""

    def __init__(self, recipe: SetTransformer, members: int, generator: torch.Generator) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.randn((members, recipe.inducing, recipe.width), generator=generator))
        self.gather = _Attention(recipe, members, generator)
        self.spread = _Attention(recipe, members, generator)

    def forward(self, rows: Tensor, sets: Sets) -> Tensor:
        points = self.gather.points_to_rows(self.points, rows, sets)  # (K, B, m, w)
        return self.spread.rows_to_points(rows, points, sets)


class _Attention(nn.Module):
    """K stacked multi-head attention blocks between points and the rows of each set, either way."""

    def __init__(self, recipe: SetTransformer, members: int, generator: torch.Generator) -> None:
        super().__init__()
        self.heads, self.scale = recipe.heads, 1 / math.sqrt(recipe.width // recipe.heads)
        self.query, self.key, self.value, self.join, self.feed = (
            StackedLinear(members, recipe.width, recipe.width, generator) for _ in range(5)
        )
        self.norms = nn.ModuleList(_StackedNorm(members, recipe.width) for _ in range(2 if recipe.norm else 0))

    def points_to_rows(self, points: Tensor, rows: Tensor, sets: Sets) -> Tensor:
        """Points (K, m, w), the same for all sets, attend to the rows (K, N, w) of each: (K, B, m, w)."""
        query = self._headed(self.query, points) * self.scale  # (K, m, h, e)
        key, value = self._headed(self.key, rows), self._headed(self.value, rows)  # (K, N, h, e)
        logits = torch.einsum("knhe,kmhe->knhm", key, query)
        weight = set_softmax(logits.flatten(2), sets).unflatten(2, logits.shape[2:])
        mixed = _averaged(weight, value, sets)  # (K, B, m, h, e)
        start = points.unsqueeze(1).expand(-1, len(sets), -1, -1)
        finished = self._finish(start.flatten(1, 2), mixed.flatten(3).flatten(1, 2))
        return finished.unflatten(1, start.shape[1:3])  # type: ignore[no-any-return]

    def rows_to_points(self, rows: Tensor, points: Tensor, sets: Sets) -> Tensor:
        """Rows (K, N, w) attend to the points (K, B, m, w) of their own set: (K, N, w)."""
        query = self._headed(self.query, rows) * self.scale  # (K, N, h, e)
        flat, shape = points.flatten(1, 2), points.shape[1:3]
        key, value = (self._headed(layer, flat).unflatten(1, shape) for layer in (self.key, self.value))
        return self._finish(rows, _looked_up(query, key, value, sets).flatten(2))

    def _headed(self, layer: StackedLinear, x: Tensor) -> Tensor:
        """A linear map (K, n, w) to (K, n, w), its outputs shared out among the heads: (K, n, h, e)."""
        return apply_to_rows(layer, x).unflatten(-1, (self.heads, -1))  # type: ignore[no-any-return]

    def _finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The residual sums around attention and feed-forward layer: (K, n, w) to (K, n, w)."""
        x = self._normalised(0, x + apply_to_rows(self.join, mixed))
        return self._normalised(1, x + silu(apply_to_rows(self.feed, x)))

    def _normalised(self, number: int, x: Tensor) -> Tensor:
        return self.norms[number](x) if len(self.norms) else x


class _StackedNorm(nn.Module):
    """K stacked layer norms: (K, n, w) to (K, n, w)."""

    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(members, 1, width))
        self.bias = nn.Parameter(torch.zeros(members, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:]) * self.gain + self.bias


def _averaged(weight: Tensor, value: Tensor, sets: Sets) -> Tensor:
    """Sums of values (K, N, h, e) over each set with weights (K, N, h, m): (K, B, m, h, e).

    Ragged sets are summed point by point, so that no tensor is larger than the rows.
    """
    if sets.common_size is not None:
        shape = (len(sets), sets.common_size)
        return torch.einsum("kbnhm,kbnhe->kbmhe", weight.unflatten(1, shape), value.unflatten(1, shape))
    sums = [set_sum((value * part.unsqueeze(-1)).flatten(2), sets) for part in weight.unbind(-1)]
    return torch.stack(sums, dim=2).unflatten(-1, value.shape[2:])  # type: ignore[no-any-return]


def _looked_up(query: Tensor, key: Tensor, value: Tensor, sets: Sets) -> Tensor:
    """What queries (K, N, h, e) read from the keys and values (K, B, m, h, e) of their own set: (K, N, h, e)."""
    if sets.common_size is not None:
        logits = torch.einsum("kbnhe,kbmhe->kbnhm", query.unflatten(1, (len(sets), sets.common_size)), key)
        return torch.einsum("kbnhm,kbmhe->kbnhe", torch.softmax(logits, dim=-1), value).flatten(1, 2)
    index = sets.index
    logits = torch.stack([(query * part[:, index]).sum(-1) for part in key.unbind(2)], dim=-1)  # (K, N, h, m)
    weight = torch.softmax(logits, dim=-1)
    mixed = torch.zeros_like(query)
    for share, part in zip(weight.unbind(-1), value.unbind(2), strict=True):
        mixed = mixed + share.unsqueeze(-1) * part[:, index]
    return mixed
