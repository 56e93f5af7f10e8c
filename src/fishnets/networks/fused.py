"""Twin networks as one stack of networks on shared rows, which the fused operations evaluate in few kernels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from fishnets.networks.ensemble import StackedLinear
from fishnets.networks.gated import GatedBody
from fishnets.networks.mlp import MLPBody
from fishnets.ops.stacked_gated import stacked_gated, stacked_gated_backend
from fishnets.ops.stacked_mlp import stacked_mlp, stacked_mlp_backend

__all__ = ["evaluate_fused", "fuses"]

Layer = tuple[Tensor, Tensor]  # weight (K, in, out) and bias (K, out)


def fuses(score: list[nn.Module], factor: list[nn.Module], values: Tensor) -> bool:
    """Whether such rows can be evaluated by a fused operation.

    Args:
        score: Body and head of the score network.
        factor: Body and head of the factor network; the body is the same object for a shared trunk.
        values: Standardised rows, shape (n, d).
    """
    if not values.is_cuda or values.requires_grad or type(score[0]) is not type(factor[0]):
        return False
    layers = _stacked(score, factor)
    if isinstance(score[0], MLPBody):
        weights, biases = zip(*layers, strict=True)
        return stacked_mlp_backend(values, weights, biases, score[0].activation_name)[0] == "fused"
    if isinstance(score[0], GatedBody):
        return stacked_gated_backend(values, *_gated_parts(layers))[0] == "fused"
    return False


def evaluate_fused(score: list[nn.Module], factor: list[nn.Module], values: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (K, n, p) and raw factor entries (K, n, w), products in bfloat16, sums in float32; arguments as above."""
    layers = _stacked(score, factor)
    if isinstance(score[0], MLPBody):
        weights, biases = zip(*layers, strict=True)
        out = stacked_mlp(values, weights, biases, score[0].activation_name, "fused")
    else:
        out = stacked_gated(values, *_gated_parts(layers), backend="fused")
    score_width, factor_width = (_linears(network)[-1].weight.shape[-1] for network in (score, factor))
    if score[0] is factor[0]:
        return out[..., :score_width], out[..., score_width:]
    first, second = out.chunk(2)
    return first[..., :score_width], second[..., :factor_width]


def _linears(network: list[nn.Module]) -> list[StackedLinear]:
    return [module for part in network for module in part.modules() if isinstance(module, StackedLinear)]


def _stacked(score: list[nn.Module], factor: list[nn.Module]) -> list[Layer]:
    """The layers of both networks: of 2K networks with padded heads, or of K with joined heads for a shared trunk."""
    pairs = list(zip(_linears(score), _linears(factor), strict=True))
    if score[0] is factor[0]:
        body = [(a.weight, a.bias.squeeze(1)) for a, _ in pairs[:-1]]
        a, b = pairs[-1]
        return [*body, (torch.cat([a.weight, b.weight], dim=-1), torch.cat([a.bias, b.bias], dim=-1).squeeze(1))]
    return [(_cat_padded(a.weight, b.weight), _cat_padded(a.bias, b.bias).squeeze(1)) for a, b in pairs]


def _cat_padded(a: Tensor, b: Tensor) -> Tensor:
    """Joins (K, i, o) and (K, i, q) into (2K, i, max(o, q))."""
    width = max(a.shape[-1], b.shape[-1])
    return torch.cat([pad(a, (0, width - a.shape[-1])), pad(b, (0, width - b.shape[-1]))])


def _gated_parts(layers: list[Layer]) -> tuple[Layer, list[Layer], list[Layer], Layer]:
    """Layers in the order a gated body registers them: entrance, gates, leaves, head."""
    depth = (len(layers) - 2) // 2
    return layers[0], layers[1 : 1 + depth], layers[1 + depth : -1], layers[-1]
