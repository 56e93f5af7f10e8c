"""Messages, a linear layer and groups in, an estimate per group out: what a graph aggregation computes, in one go."""

from __future__ import annotations

from torch import Tensor

from fishnets.algebra.packing import packed_size
from fishnets.errors import ShapeError, expect_finite, expect_last_dim
from fishnets.ops.dispatch import choose_backend
from fishnets.ops.estimate_messages import fused, reference
from fishnets.ops.estimate_messages.reference import solve_features
from fishnets.ops.groups import expect_bounds, expect_order
from fishnets.ops.segment_information import ScoreForm

__all__ = ["estimate_messages", "estimate_messages_backend", "solve_features"]


def estimate_messages(
    x: Tensor,
    lin: Tensor,
    bias: Tensor,
    prior: Tensor,
    ptr: Tensor,
    form: ScoreForm = "regression",
    *,
    weight: Tensor | None = None,
    order: Tensor | None = None,
    backend: str = "auto",
    check_finite: bool = False,
) -> Tensor:
    r"""Estimates, and log-information, from messages.

    Where the whole cannot be fused, or would be slower, its parts are separate: a linear layer of PyTorch,
    ``segment_information`` and ``solve_information``, which choose for themselves.

    Args:
        x: Messages, shape :math:`(*, n, C)`.
        lin: Weights of the linear layer, shape :math:`(p + p(p+1)/2, C)`.
        bias: Its bias, shape :math:`(p + p(p+1)/2,)`.
        prior: Precisions of the prior, positive, shape :math:`(p,)`.
        ptr: Bounds of the groups, int64, shape :math:`(g + 1,)`, from 0 to n.
        form: What the outputs of the layer mean; see ``segment_information``.
        weight: How much each message counts, shape :math:`(n,)`.
        order: Message at each position, where they are not in the order of their groups, shape :math:`(n,)`.
        backend: ``"auto"``, ``"reference"``, ``"separate"`` or ``"fused"``.
        check_finite: Whether to look for messages that are not finite, and name the first.

    Returns:
        Estimates and, beside them, log-information :math:`\ln(1 + \operatorname{diag} F / \operatorname{diag} P)` of
        the summed Fisher matrices, shape :math:`(*, g, 2p)`, in float32 or better.

    Example:
        >>> import torch
        >>> x, lin, bias = torch.ones(3, 1), torch.zeros(2, 1), torch.tensor([4.0, 0.0])
        >>> estimate_messages(x, lin, bias, torch.ones(1), torch.tensor([0, 0, 3]), "location")
        tensor([[0.0000, 0.0000],
                [2.3616, 0.8926]])
    """
    name, _ = estimate_messages_backend(x, lin, bias, prior, backend)
    expect_bounds(ptr, x.shape[-2])
    expect_order(order, x.shape[-2])
    if check_finite:
        expect_finite("Messages", x)
    if name == "fused":
        return fused.estimate_messages(x, lin, bias, prior, ptr, form, weight, order)
    if name == "separate" and fused.outputs_obstacle(x, len(prior), form) is None:
        if x.is_cuda and order is not None:  # columns of outputs are read quickly in order only
            x, weight, order = x[order], None if weight is None else weight[order], None
        # on a GPU columns lie one behind the other; the bias is added where they are read
        raw = (lin @ x.mT).mT if x.is_cuda else x @ lin.mT
        return fused.estimate_messages(raw, None, bias, prior, ptr, form, weight, order)
    parts = "reference" if name == "reference" else "auto"
    return reference.estimate_messages(x, lin, bias, prior, ptr, form, weight, order, parts)


def estimate_messages_backend(
    x: Tensor, lin: Tensor, bias: Tensor, prior: Tensor, backend: str = "auto"
) -> tuple[str, str]:
    """Tells which backend :func:`estimate_messages` would use with these arguments, and why.

    Returns:
        The name, ``"reference"``, ``"separate"`` or ``"fused"``, and the reason.

    Example:
        >>> import torch
        >>> estimate_messages_backend(torch.ones(3, 1), torch.zeros(2, 1), torch.zeros(2), torch.ones(1))
        ('separate', 'a separate layer is faster on a CPU for fewer than 4,000,000 outputs')
    """
    num_outputs = len(prior) + packed_size(len(prior))
    if x.ndim < 2 or lin.shape != (num_outputs, x.shape[-1]):
        raise ShapeError(
            f"`x` has shape {tuple(x.shape)} and `lin` {tuple(lin.shape)} but (*, n, C) and ({num_outputs}, C) were "
            f"expected for {len(prior)} parameters."
        )
    expect_last_dim("bias", bias, num_outputs, "That of the linear layer.")
    if backend == "separate":
        return "separate", "it was asked for"
    name, reason = choose_backend(backend, lambda: fused.obstacle(x, lin, len(prior)))
    slower = fused.drawback(x, lin) if backend == "auto" and name == "fused" else None
    if slower is not None:
        return "separate", slower
    return "separate" if name == "reference" and backend == "auto" else name, reason
