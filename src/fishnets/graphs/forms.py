r"""Forms: what the outputs of a message's linear layer say about its score and Fisher matrix.

A message has :math:`p + p(p+1)/2` outputs: a vector :math:`a` of p, and the entries of a factor :math:`L` with
:math:`F = L L^\top`.

* ``"regression"``: the vector is a response, :math:`t = L a`. A message states p equations
  :math:`L^\top z = a` about the node, and the estimate is their solution by least squares, at any degree.
* ``"location"``: the vector is a location, :math:`t = F a`. The estimate is a precision-weighted mean of locations.
* ``"paper"``: the vector is the score itself, :math:`t = a` (paper, section 3.3).
* ``"legacy"``: as the paper's, with the fill of the authors' public code, which puts the entries of the factor into
  both triangles: :math:`L` is then a square matrix without structure. For parity of numbers only.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fishnets.algebra.packing import pack_symmetric, packed_size
from fishnets.errors import ConfigError, expect_last_dim
from fishnets.ops import segment_information
from fishnets.ops.segment_information import ScoreForm

__all__ = ["FORMS", "Form", "expect_form", "information_rows", "num_outputs"]

Form = Literal["regression", "location", "paper", "legacy"]
FORMS: dict[Form, ScoreForm | None] = {
    "regression": "regression",
    "location": "location",
    "paper": "score",
    "legacy": None,
}


def num_outputs(num_params: int) -> int:
    """Numbers that a message is turned into, before as after its factor is squared.

    Example:
        >>> num_outputs(8)
        44
    """
    return num_params + packed_size(num_params)


def expect_form(form: str) -> None:
    """Raises :class:`ConfigError` for a form that does not exist."""
    if form not in get_args(Form):
        raise ConfigError(f'`form` is {form!r} but "regression", "location", "paper" or "legacy" was expected.')


def information_rows(raw: Tensor, num_params: int, form: Form = "regression") -> Tensor:
    r"""Turns the outputs of a linear layer into rows of information, which may be scaled and summed.

    Args:
        raw: Outputs, shape :math:`(*, p + p(p+1)/2)`.
        num_params: Number of latent parameters :math:`p`.
        form: What the outputs mean.

    Returns:
        Score and packed Fisher matrix side by side, shape :math:`(*, p + p(p+1)/2)`.

    Example:
        >>> information_rows(torch.tensor([3.0, 0.0]), 1, "paper")  # the factor is softplus(0) = 0.69
        tensor([3.0000, 0.4805])
    """
    expect_last_dim("raw", raw, num_outputs(num_params))
    form_of_score = FORMS[form]
    if form_of_score is not None:
        return segment_information.information_rows(raw, num_params, "full", form_of_score)
    factor = _unmasked_factor(raw[..., num_params:], num_params)
    return torch.cat([raw[..., :num_params], pack_symmetric(factor @ factor.mT)], dim=-1)


def _unmasked_factor(entries: Tensor, num_params: int) -> Tensor:
    """Entries (*, p(p+1)/2) in both triangles of a matrix (*, p, p), softplus on the diagonal."""
    both = torch.cat([entries[..., num_params:], entries.flip(-1)], dim=-1)
    square = both.unflatten(-1, (num_params, num_params))
    diagonal = square.diagonal(dim1=-2, dim2=-1)
    filled: Tensor = square + torch.diag_embed(softplus(diagonal) - diagonal)
    return filled
