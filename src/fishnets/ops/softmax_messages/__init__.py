"""Messages and groups in, sums weighted by a softmax out: DeeperGCN's aggregation, to compare with on equal terms."""

from __future__ import annotations

import torch
from torch import Tensor

from fishnets.errors import ShapeError
from fishnets.ops.dispatch import choose_backend
from fishnets.ops.groups import expect_bounds, expect_order
from fishnets.ops.softmax_messages import fused, reference

__all__ = ["softmax_messages", "softmax_messages_backend"]


def softmax_messages(
    x: Tensor, temperature: Tensor, ptr: Tensor, *, order: Tensor | None = None, backend: str = "auto"
) -> Tensor:
    r"""Sums messages, each channel weighted by a softmax over the messages of a group.

    .. math:: y_g = \sum_{e \in g} w_e x_e, \qquad w_e = \frac{\exp(\tau x_e)}{\sum_{f \in g} \exp(\tau x_f)}

    Args:
        x: Messages, shape :math:`(n, C)`.
        temperature: What messages are multiplied with, :math:`\tau`, shape (1,).
        ptr: Bounds of the groups, int64, shape :math:`(g + 1,)`, from 0 to n.
        order: Message at each position, where they are not in the order of their groups, shape :math:`(n,)`.
        backend: ``"auto"``, ``"reference"`` or ``"fused"``, kernels that keep no weights of messages.

    Returns:
        The sums, shape :math:`(g, C)`, in the precision of messages and temperature together; zero for empty groups.
        They are taken in float32 at least.

    Example:
        >>> import torch
        >>> softmax_messages(torch.tensor([[0.0], [1.0]]), torch.tensor([0.0]), torch.tensor([0, 0, 2]))
        tensor([[0.0000],
                [0.5000]])
    """
    if x.ndim != 2 or temperature.shape != (1,):
        raise ShapeError(
            f"`x` has shape {tuple(x.shape)} and `temperature` {tuple(temperature.shape)} but (n, C) and (1,) were "
            "expected."
        )
    expect_bounds(ptr, len(x))
    expect_order(order, len(x))
    given = torch.promote_types(x.dtype, temperature.dtype)
    name, _ = softmax_messages_backend(x, temperature, backend)
    sums = fused.softmax_messages if name == "fused" else reference.softmax_messages
    return sums(*_precise(x, temperature), ptr, order).to(given)


def softmax_messages_backend(x: Tensor, temperature: Tensor, backend: str = "auto") -> tuple[str, str]:
    """Tells which backend :func:`softmax_messages` would use with these arguments, and why.

    Example:
        >>> import torch
        >>> softmax_messages_backend(torch.zeros(2, 1), torch.ones(1), "reference")
        ('reference', 'it was asked for')
    """
    return choose_backend(backend, lambda: fused.obstacle(_precise(x, temperature)[0]))


def _precise(x: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the precision of the sums."""
    precise = torch.promote_types(torch.promote_types(x.dtype, temperature.dtype), torch.float32)
    return x.to(precise), temperature.to(precise)
