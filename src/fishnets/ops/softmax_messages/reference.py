"""The definition of sums weighted by a softmax, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["softmax_messages"]


def softmax_messages(x: Tensor, temperature: Tensor, ptr: Tensor, order: Tensor | None) -> Tensor:
    """Sums (g, C) of messages (n, C); see :func:`fishnets.ops.softmax_messages.softmax_messages`."""
    shape = (len(ptr) - 1, x.shape[1])
    group = torch.repeat_interleave(torch.arange(shape[0], device=x.device), ptr.diff(), output_size=len(x))
    group = group if order is None else torch.zeros_like(group).scatter(0, order, group)
    logits = temperature * x
    index = group.unsqueeze(-1).expand_as(x)
    top = x.new_full(shape, -torch.inf).scatter_reduce(0, index, logits.detach(), "amax")
    share = (logits - top[group]).exp()
    total = x.new_zeros(shape).index_add(0, group, share)
    weighted: Tensor = x.new_zeros(shape).index_add(0, group, share * x)
    return weighted / total.clamp(min=1)  # the largest of a group adds 1; no group without messages divides by 0
