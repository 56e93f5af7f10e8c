r"""From raw network outputs to Fisher matrices, and the solves that use them.

A network emits unconstrained numbers :math:`c`. They become a factor :math:`L` with
:math:`F = L L^\top \succeq 0`, in one of three kinds:

* ``"full"``: the packed lower triangle, its diagonal passed through softplus (paper, section 3),
  :math:`p(p+1)/2` outputs;
* ``"diagonal"``: softplus on :math:`p` outputs;
* ``"rank-r"``: an unconstrained :math:`p \times r` matrix. The Fisher matrix of one scalar datum has rank one, which
  softplus only approaches; a low-rank factor reaches it.
"""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fishnets.algebra.packing import packed_size, triangle_from_packed
from fishnets.errors import ConfigError, NotPositiveDefiniteError, describe_rows, expect_last_dim, expect_square

__all__ = [
    "cholesky",
    "factor_from_raw",
    "factor_rank",
    "factor_width",
    "fisher_packed_from_raw",
    "inverse_softplus",
    "log_determinant",
    "solve",
]


def factor_rank(kind: str, num_params: int) -> int:
    """Number of columns of the factor of the given kind.

    Example:
        >>> factor_rank("rank-1", 3), factor_rank("full", 3)
        (1, 3)
    """
    if kind in ("full", "diagonal"):
        return num_params
    match = re.fullmatch(r"rank-([1-9]\d*)", kind)
    if match is None or int(match[1]) > num_params:
        raise ConfigError(
            f'`factor` is "{kind}" but "full", "diagonal" or "rank-r" with 1 <= r <= {num_params} was expected.'
        )
    return int(match[1])


def factor_width(kind: str, num_params: int) -> int:
    """Number of raw outputs a factor of the given kind needs.

    Example:
        >>> [factor_width(kind, 3) for kind in ("full", "diagonal", "rank-1")]
        [6, 3, 3]
    """
    rank = factor_rank(kind, num_params)
    return {"full": packed_size(num_params), "diagonal": num_params}.get(kind, num_params * rank)


def inverse_softplus(value: float) -> float:
    """The number whose softplus is ``value`` > 0.

    Example:
        >>> round(math.log1p(math.exp(inverse_softplus(0.25))), 12)
        0.25
    """
    return value + math.log(-math.expm1(-value))


def factor_from_raw(raw: Tensor, num_params: int, kind: str = "full") -> Tensor:
    r"""Builds the factor :math:`L` of :math:`F = L L^\top` from raw outputs.

    Args:
        raw: Unconstrained outputs, shape :math:`(*, w)` with ``w = factor_width(kind, p)``.
        num_params: Number of parameters :math:`p`.
        kind: ``"full"``, ``"diagonal"`` or ``"rank-r"``.

    Returns:
        The factor, shape :math:`(*, p, r)`; lower triangular with a positive diagonal for ``"full"``.

    Example:
        >>> factor_from_raw(torch.tensor([0.0, 5.0, 0.0]), 2)
        tensor([[0.6931, 0.0000],
                [5.0000, 0.6931]])
    """
    expect_last_dim("raw", raw, factor_width(kind, num_params), f'That is the width of a "{kind}" factor.')
    if kind == "full":
        return triangle_from_packed(torch.stack(_factor_entries(raw, num_params), dim=-1))
    if kind == "diagonal":
        return torch.diag_embed(softplus(raw))
    return raw.reshape(*raw.shape[:-1], num_params, factor_rank(kind, num_params))


def fisher_packed_from_raw(raw: Tensor, num_params: int, kind: str = "full") -> Tensor:
    r"""Computes the packed :math:`F = L L^\top` without forming a square matrix per datum.

    Args:
        raw: Unconstrained outputs, shape :math:`(*, w)` with ``w = factor_width(kind, p)``.
        num_params: Number of parameters :math:`p`.
        kind: ``"full"``, ``"diagonal"`` or ``"rank-r"``.

    Returns:
        Packed Fisher matrices, which may be summed, shape :math:`(*, p(p+1)/2)`.

    Example:
        >>> fisher_packed_from_raw(torch.tensor([1.0, 2.0]), 2, "rank-1")
        tensor([1., 2., 4.])
    """
    expect_last_dim("raw", raw, factor_width(kind, num_params), f'That is the width of a "{kind}" factor.')
    pairs = [(i, j) for i in range(num_params) for j in range(i + 1)]
    if kind == "diagonal":
        squares = softplus(raw).square()
        zero = torch.zeros_like(squares[..., 0])
        entries = [squares[..., i] if i == j else zero for i, j in pairs]
    else:
        rows = _factor_rows(raw, num_params, kind)
        entries = [_dot(rows[i], rows[j]) for i, j in pairs]
    return torch.stack(entries, dim=-1)


def solve(fisher: Tensor, vector: Tensor) -> Tensor:
    r"""Solves :math:`F x = v` by Cholesky.

    Args:
        fisher: Positive-definite matrices, shape :math:`(*, p, p)`.
        vector: Right-hand sides, shape :math:`(*, p)`.

    Returns:
        Solutions, shape :math:`(*, p)`.

    Example:
        >>> solve(torch.tensor([[2.0]]), torch.tensor([4.0]))
        tensor([2.])
    """
    expect_last_dim("vector", vector, fisher.shape[-1])
    return torch.cholesky_solve(vector.unsqueeze(-1), cholesky(fisher)).squeeze(-1)


def log_determinant(fisher: Tensor) -> Tensor:
    r"""Computes :math:`\ln\det F = 2 \sum_j \ln A_{jj}` with :math:`F = A A^\top`, shape :math:`(*)`.

    Example:
        >>> log_determinant(torch.diag(torch.tensor([1.0, 4.0]))).exp()
        tensor(4.)
    """
    return 2 * cholesky(fisher).diagonal(dim1=-2, dim2=-1).log().sum(-1)


def cholesky(fisher: Tensor, name: str = "fisher") -> Tensor:
    """Factorises positive-definite matrices, naming those that are not.

    Args:
        fisher: Symmetric matrices, shape (*, p, p).
        name: What the caller calls the matrix; used in the message.

    Returns:
        Lower Cholesky factors, shape (*, p, p).

    Example:
        >>> cholesky(torch.tensor([[4.0]]))
        tensor([[2.]])
    """
    expect_square(name, fisher)
    factor: Tensor
    factor, status = torch.linalg.cholesky_ex(fisher)
    # cholesky_ex reports NaN input as success, so the factor itself is looked at
    bad = (status != 0) | ~torch.isfinite(factor).all(-1).all(-1)
    if bool(bad.any()):
        raise NotPositiveDefiniteError(_complaint(fisher, bad, name))
    return factor


def _complaint(fisher: Tensor, bad: Tensor, name: str) -> str:
    finite = torch.isfinite(fisher).all(-1).all(-1)
    kinds = {"not finite": bad & ~finite, "indefinite or singular": bad & finite}
    what = " and ".join(f"{kind}{_place(where)}" for kind, where in kinds.items() if bool(where.any()))
    hint = (
        "An empty or too small set carries no full-rank information on its own: add a prior, for example "
        "`information.posterior(prior)`."
        if name == "fisher"
        else "Give a positive-definite matrix."
    )
    return f"`{name}` is {what}, so it has no Cholesky factor. {hint}"


def _place(where: Tensor) -> str:
    elements = [tuple(w) if len(w) > 1 else w[0] for w in where.nonzero().tolist()] if where.ndim else []
    return f" at batch element {describe_rows(elements)}" if elements else ""


def _factor_entries(raw: Tensor, num_params: int) -> list[Tensor]:
    """Packed entries of the full factor, softplus on the diagonal, each of shape (*)."""
    diagonal = {i * (i + 3) // 2 for i in range(num_params)}
    return [softplus(entry) if i in diagonal else entry for i, entry in enumerate(raw.unbind(-1))]


def _factor_rows(raw: Tensor, num_params: int, kind: str) -> list[list[Tensor]]:
    """Rows of the factor without the zeros above a triangle, entry by entry, each of shape (*)."""
    if kind == "full":
        entries = _factor_entries(raw, num_params)
        return [entries[i * (i + 1) // 2 : (i + 1) * (i + 2) // 2] for i in range(num_params)]
    columns, rank = list(raw.unbind(-1)), factor_rank(kind, num_params)
    return [columns[i * rank : (i + 1) * rank] for i in range(num_params)]


def _dot(left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Sum of products over the entries both rows have."""
    total = left[0] * right[0]
    for a, b in zip(left[1:], right[1:], strict=False):
        total = total + a * b
    return total
