"""Estimates on a CPU, from messages and a layer or from the outputs of one.

Outputs are summed by the kernels of ``segment_information``; with the layer inside they are computed tile by tile,
forward and again on the way back, and never leave the cache. Systems are those of ``solve_information``.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fishnets.algebra.packing import diagonal_positions
from fishnets.ops.estimate_messages.kernels_numba import pull_kernel, sum_kernel
from fishnets.ops.estimate_messages.products_numba import padded, vector_size
from fishnets.ops.segment_information import fused_cpu as segments
from fishnets.ops.segment_information.reference import segment_sum
from fishnets.ops.segment_information.registers_numba import Case
from fishnets.ops.solve_information import fused_cpu as systems
from fishnets.ops.threads import run_ranges

__all__ = ["backward", "drawback", "forward", "obstacle", "outputs_obstacle"]

MAX_CHANNELS = 256  # PyTorch multiplies wider ones as fast
FEW_OUTPUTS = 4_000_000  # fewer stay in memory that PyTorch gives out again, and are computed once instead of twice


def obstacle(x: Tensor, lin: Tensor, num_params: int) -> str | None:
    """Why messages and their layer cannot be fused, or None when they can."""
    if lin.shape[1] > MAX_CHANNELS:
        return f"messages have {lin.shape[1]} channels and the CPU kernels take at most {MAX_CHANNELS}"
    if lin.shape[1] == 0:
        return "messages have no channels"
    if lin.dtype != x.dtype:
        return f"messages are {x.dtype} and the layer is {lin.dtype}"
    return outputs_obstacle(x, num_params, "score")


def drawback(x: Tensor, lin: Tensor) -> str | None:
    """Why a separate layer is faster, or None where it is not."""
    if torch.compiler.is_compiling():  # a choice by size would hold for that size alone
        return None
    few = x.shape[0] * lin.shape[0] < FEW_OUTPUTS
    return f"a separate layer is faster on a CPU for fewer than {FEW_OUTPUTS:,} outputs" if few else None


def outputs_obstacle(x: Tensor, num_params: int, form: str) -> str | None:
    """Why the outputs of a layer cannot be summed and solved in one go, or None when they can."""
    if x.ndim != 2:
        return f"messages have {x.ndim} dimensions and those of shape (n, C) are fused"
    return segments.obstacle(x, num_params, "full", form) or systems.obstacle(x)


def forward(
    rows: Tensor,
    lin: Tensor | None,
    bias: Tensor,
    prior: Tensor,
    ptr: Tensor,
    form: str,
    weight: Tensor | None,
    order: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Features (g, 2p), and sums of information (g, p + p(p+1)/2), which the gradient needs."""
    p = len(prior)
    if lin is None:
        total = segments.forward(rows.unsqueeze(0), p, ptr, "full", form, weight, order, bias)[0]
    else:
        total = _sum_messages(rows, lin, bias, p, ptr, form, weight, order)
    estimate, _ = systems.forward(total[:, :p], _precision(total, prior))
    own = total[:, p + diagonal_positions(p, total.device)]
    return torch.cat([estimate, torch.log1p(own / prior.to(own))], dim=1), total


def backward(
    grad: Tensor,
    rows: Tensor,
    lin: Tensor | None,
    bias: Tensor,
    prior: Tensor,
    ptr: Tensor,
    form: str,
    weight: Tensor | None,
    order: Tensor | None,
    features: Tensor,
    total: Tensor,
    need_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of messages or outputs, the layer, the bias, the prior and weights; those not needed are (0,)."""
    p, estimate = len(prior), features[:, : len(prior)]
    precision = _precision(total, prior)
    towards, grad_packed = systems.backward(grad[:, :p], None, precision, estimate)
    grad_prior, upstream = _pull_systems(grad, estimate, total, prior, precision, towards, grad_packed)
    if lin is not None:
        given = (upstream, rows, lin, bias, p, ptr, form, weight, order, need_weight)
        grad_rows, grad_lin, grad_bias, weights = _pull_messages(*given)
        return grad_rows, grad_lin, grad_bias, grad_prior, weights
    outputs = (upstream, rows.unsqueeze(0), p, ptr, "full", form, weight, order, bias, need_weight)
    grads, grad_weight = segments.backward(*outputs)
    weights = rows.new_empty(0) if grad_weight is None else grad_weight
    return grads[0], rows.new_empty(0), grads[0].sum(0), grad_prior, weights


def _sum_messages(
    x: Tensor,
    lin: Tensor,
    bias: Tensor,
    p: int,
    ptr: Tensor,
    form: str,
    weight: Tensor | None,
    order: Tensor | None,
) -> Tensor:
    """Sums of information (g, K), as :func:`fishnets.ops.segment_information.fused_cpu.forward` has them of outputs."""
    source, (bounds, chunks) = x.detach().contiguous(), segments.cut_groups(ptr)
    kernel = sum_kernel(_case(p, form, source))
    part = source.new_empty(1, len(bounds) - 1, len(lin))
    given = segments.optional(source, weight, order, bias)
    run_ranges(kernel, 1, bounds, [*given, source, _padded(lin.mT, source), part])
    return part[0] if len(bounds) == len(ptr) else segment_sum(part[0], chunks)


def _pull_messages(
    upstream: Tensor,
    x: Tensor,
    lin: Tensor,
    bias: Tensor,
    p: int,
    ptr: Tensor,
    form: str,
    weight: Tensor | None,
    order: Tensor | None,
    need_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of messages, weights of the layer, bias and weights, from that of the sums, shape (1, g, K)."""
    source, (bounds, chunks) = x.detach().contiguous(), segments.cut_groups(ptr)
    kernel = pull_kernel(_case(p, form, source, need_weight))
    grad, grad_weight = torch.empty_like(source), source.new_empty(len(source) if need_weight else 0)
    upstream = upstream.detach().to(source.dtype)
    if len(bounds) != len(ptr):
        upstream = upstream.repeat_interleave(chunks.diff(), dim=1)  # (1, c, K)
    given = [*segments.optional(source, weight, order, bias), source, _padded(lin.mT, source), _padded(lin, source)]
    found = run_ranges(kernel, 1, bounds, [*given, upstream, grad, grad_weight])
    grad_lin, grad_bias = (torch.from_numpy(np.stack(parts).sum(0)) for parts in zip(*found, strict=True))
    grad = grad if x.is_contiguous() else torch.empty_like(x).copy_(grad)
    grad_lin = torch.empty_like(lin).copy_(grad_lin[: len(lin), : lin.shape[1]])
    return grad, grad_lin, grad_bias.to(bias), grad_weight


def _case(p: int, form: str, source: Tensor, need_weight: bool = False) -> Case:
    """What outputs are in a tile: dense and in order."""
    return Case(p, "full", form, str(source.numpy().dtype), True, False, True, need_weight)


def _padded(matrix: Tensor, like: Tensor) -> Tensor:
    """A matrix with columns of zeros up to whole vectors."""
    width = padded(matrix.shape[1], vector_size(str(like.numpy().dtype)))
    return like.new_zeros(len(matrix), width).index_copy_(1, torch.arange(matrix.shape[1]), matrix.detach().to(like))


def _precision(total: Tensor, prior: Tensor) -> Tensor:
    """Packed sums of Fisher matrices (g, p(p+1)/2), with the prior on their diagonals."""
    precision = total.detach()[:, len(prior) :].numpy().copy()
    precision[:, diagonal_positions(len(prior), prior.device).numpy()] += prior.detach().to(total).numpy()
    return torch.from_numpy(precision)


def _pull_systems(
    grad: Tensor,
    estimate: Tensor,
    total: Tensor,
    prior: Tensor,
    precision: Tensor,
    towards: Tensor,
    grad_packed: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of the prior (p,) and the sums (1, g, K), from those of the systems.

    In NumPy: PyTorch's threads, once woken, would stay awake for milliseconds beside those of the kernel that follows.
    """
    p, diagonal = len(prior), diagonal_positions(len(prior), prior.device).numpy()
    g, z, sums, P, A, lam, own = (
        one.detach().to(total.dtype).numpy() for one in (grad, estimate, total, prior, precision, towards, grad_packed)
    )
    h = g[:, p:] / A[:, diagonal]
    grad_prior = -(lam * z + h * sums[:, p + diagonal] / P).sum(0, dtype=np.float64)
    upstream = np.concatenate([lam, own], axis=1)
    upstream[:, p + diagonal] += h
    return torch.from_numpy(grad_prior).to(prior), torch.from_numpy(upstream).unsqueeze(0)
