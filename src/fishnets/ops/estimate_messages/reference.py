r"""The definition of an estimate from messages: a linear layer, a sum over groups, a small system for each.

.. math:: \begin{pmatrix} a_e \\ L_e \end{pmatrix} = W x_e + b, \qquad
          z_v = \Big(P + \sum_e w_e L_e L_e^\top\Big)^{-1} \sum_e w_e t_e, \qquad
          s_v = \ln\Big(1 + \operatorname{diag}\big(\textstyle\sum_e w_e L_e L_e^\top\big) / \operatorname{diag} P\Big)

with the score :math:`t_e` that the form makes of :math:`a_e` and :math:`L_e`.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from fishnets.algebra.packing import diagonal_positions
from fishnets.ops.segment_information import ScoreForm, segment_information
from fishnets.ops.solve_information import solve_information

__all__ = ["estimate_messages", "solve_features"]


def estimate_messages(
    x: Tensor,
    lin: Tensor | None,
    bias: Tensor,
    prior: Tensor,
    ptr: Tensor,
    form: ScoreForm,
    weight: Tensor | None = None,
    order: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Features (*, g, 2p) of groups of messages (*, n, C); the parts choose their own backends.

    Without a layer, ``x`` holds its outputs before the bias is added.
    """
    p, raw = len(prior), x + bias if lin is None else linear(x, lin, bias)
    with nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False):
        given: dict[str, Any] = {"weight": weight, "order": order, "backend": backend}
        return solve_features(*segment_information(raw, p, ptr, "full", form, **given), prior, backend)


def solve_features(score: Tensor, packed: Tensor, prior: Tensor, backend: str = "auto") -> Tensor:
    """Features (*, 2p) of summed scores (*, p) and packed Fisher matrices, given precisions of the prior (p,)."""
    prior, diagonal = prior.to(packed), diagonal_positions(len(prior), packed.device)
    spread = packed.new_zeros(packed.shape[-1]).index_copy(0, diagonal, prior)
    estimate, _ = solve_information(score, packed + spread, backend)
    return torch.cat([estimate, torch.log1p(packed.index_select(-1, diagonal) / prior)], dim=-1)
