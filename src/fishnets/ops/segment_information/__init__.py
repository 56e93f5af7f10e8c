"""Raw outputs of networks and groups in, summed score and packed Fisher matrix per group out."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from fishnets.algebra.cholesky import factor_rank, factor_width
from fishnets.errors import ConfigError, ShapeError, expect_finite, expect_last_dim
from fishnets.ops.dispatch import choose_backend
from fishnets.ops.groups import expect_bounds, expect_order
from fishnets.ops.segment_information import fused, reference
from fishnets.ops.segment_information.reference import information_rows, segment_sum

__all__ = ["ScoreForm", "information_rows", "segment_information", "segment_information_backend", "segment_sum"]

ScoreForm = Literal["score", "regression", "location"]


def segment_information(
    raw: Tensor,
    num_params: int,
    ptr: Tensor,
    kind: str = "full",
    form: ScoreForm = "score",
    *,
    weight: Tensor | None = None,
    order: Tensor | None = None,
    common_size: int | None = None,
    backend: str = "auto",
    check_finite: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""Sums score and Fisher matrix over each group of rows.

    The fused backend accumulates in float32 or better, keeps nothing but ``raw`` for the gradient, and gives the same
    bits from run to run.

    Args:
        raw: Outputs of a network, a vector and the entries of a factor side by side, shape :math:`(*, n, p + w)`. On a
            GPU, sums are fastest where columns lie one behind the other in memory.
        num_params: Number of parameters :math:`p`.
        ptr: Bounds of the groups, int64, shape :math:`(g + 1,)`, from 0 to n.
        kind: Kind of factor: ``"full"``, ``"diagonal"`` or ``"rank-r"``.
        form: What the vector means: ``"score"``, ``"regression"`` (:math:`t = L a`) or ``"location"``
            (:math:`t = L L^\\top a`).
        weight: How much each row counts, shape :math:`(n,)`.
        order: Row at each position, where rows are not in the order of their groups, shape :math:`(n,)`.
        common_size: The size of every group, where the caller knows that they are equal; ``ptr`` is then not looked at.
        backend: ``"auto"``, ``"reference"`` or ``"fused"``.
        check_finite: Whether to look for outputs that are not finite, and name the first row that has one.

    Returns:
        Summed scores :math:`(*, g, p)` and packed Fisher matrices :math:`(*, g, p(p+1)/2)`; zero for empty groups.

    Example:
        >>> import torch
        >>> raw = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
        >>> segment_information(raw, 1, torch.tensor([0, 2, 2, 3]), "rank-1")
        (tensor([[2.],
                [0.],
                [1.]]), tensor([[0.],
                [0.],
                [0.]]))
    """
    name, _ = segment_information_backend(raw, num_params, kind, form, backend)
    if check_finite:
        expect_finite("Rows of `raw`", raw)
    if common_size is None:
        expect_bounds(ptr, raw.shape[-2])
    expect_order(order, raw.shape[-2])
    if name == "reference":
        total = reference.sum_information(raw, num_params, ptr, kind, form, weight, order, common_size)
    else:
        flat = raw.reshape(raw.shape[:-2].numel(), *raw.shape[-2:])
        total = fused.sum_information(flat, num_params, ptr, kind, form, weight, order)
        total = total.reshape(*raw.shape[:-2], *total.shape[1:])
    return total[..., :num_params], total[..., num_params:]


def segment_information_backend(
    raw: Tensor, num_params: int, kind: str = "full", form: ScoreForm = "score", backend: str = "auto"
) -> tuple[str, str]:
    """Tells which backend :func:`segment_information` would use with these arguments, and why.

    Returns:
        The name, ``"reference"`` or ``"fused"``, and the reason.

    Example:
        >>> import torch
        >>> segment_information_backend(torch.zeros(4, 2), 1, backend="reference")
        ('reference', 'it was asked for')
    """
    if form not in get_args(ScoreForm):
        raise ConfigError(f'`form` is "{form}" but one of {list(get_args(ScoreForm))} was expected.')
    expect_last_dim("raw", raw, num_params + factor_width(kind, num_params), "A vector and a factor.")
    if raw.ndim < 2:
        raise ShapeError(f"`raw` has shape {tuple(raw.shape)} but (*, n, p + w) was expected.")
    if form == "regression" and factor_rank(kind, num_params) != num_params:
        raise ConfigError(f'The form "regression" needs a square factor but `kind` is "{kind}".')
    return choose_backend(backend, lambda: fused.obstacle(raw, num_params, kind, form))

