r"""Information: a score and a Fisher matrix at a fiducial point, which add.

Around the fiducial :math:`\theta_*` the log-likelihood of a set is read as the quadratic

.. math::
    \ln p(d \mid \theta) \simeq \text{const} + t^\top (\theta-\theta_*)
        - \tfrac12 (\theta-\theta_*)^\top F\,(\theta-\theta_*),

so the information of a union is the sum of the parts, a part can be taken out again, and the same quadratic can be
written at another point exactly: :math:`t' = t - F(\theta_*' - \theta_*)`. A prior is one more addend, brought in
explicitly by :meth:`Information.posterior`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fishnets.algebra.cholesky import cholesky, log_determinant, solve
from fishnets.algebra.gaussian import Gaussian, MomentPrior
from fishnets.errors import (
    ConfigError,
    IncompatibleInformationError,
    ShapeError,
    describe_rows,
    expect_last_dim,
    expect_square,
)

__all__ = ["Information", "estimate"]


def estimate(score: Tensor, fisher: Tensor, fiducial: Tensor) -> Tensor:
    r"""Solves for the parameters the information points to.

    .. math:: \hat\theta = \theta_* + F^{-1} t

    Args:
        score: Total score :math:`t`, shape :math:`(*, p)`.
        fisher: Total Fisher matrix :math:`F`, shape :math:`(*, p, p)`, positive definite.
        fiducial: Expansion point :math:`\theta_*`, shape :math:`(p,)` or :math:`(*, p)`.

    Returns:
        The estimate :math:`\hat\theta`, shape :math:`(*, p)`.

    Example:
        >>> estimate(torch.tensor([4.0]), torch.tensor([[2.0]]), torch.tensor([1.0]))
        tensor([3.])
    """
    return fiducial + solve(fisher, score)


@dataclass(frozen=True, eq=False)
class Information:
    r"""The additive state: score, Fisher matrix and number of data at a fiducial point. Never changed in place.

    Args:
        score: Score :math:`t`, shape :math:`(*, p)`.
        fisher: Fisher matrix :math:`F`, shape :math:`(*, p, p)`.
        fiducial: Expansion point :math:`\theta_*`, shape :math:`(p,)` for all or :math:`(*, p)` for each.
        count: Number of data summed, int64, shape :math:`(*)`.

    Example:
        >>> a = Information(torch.tensor([1.0]), torch.tensor([[2.0]]), torch.zeros(1), torch.tensor(3))
        >>> (a + a).count, (a + a - a).score
        (tensor(6), tensor([1.]))
    """

    score: Tensor
    fisher: Tensor
    fiducial: Tensor
    count: Tensor

    def __post_init__(self) -> None:
        for name in ("score", "fisher", "fiducial", "count"):  # lists and plain numbers are welcome
            object.__setattr__(self, name, _tensor(getattr(self, name), floating=name != "count"))
        num_params = self.score.shape[-1] if self.score.ndim else 0
        hint = "If these are packed entries, unpack them with `unpack_symmetric` first."
        expect_square("fisher", self.fisher, num_params, hint)
        expect_last_dim("fiducial", self.fiducial, num_params)
        batch = self.score.shape[:-1]
        if self.fisher.shape[:-2] != batch or self.count.shape != batch:
            raise ShapeError(
                f"`score` has batch shape {tuple(batch)} but `fisher` has {tuple(self.fisher.shape[:-2])} and `count` "
                f"{tuple(self.count.shape)}; the three must agree."
            )
        if self.fiducial.ndim > 1 and self.fiducial.shape != self.score.shape:
            raise ShapeError(
                f"`fiducial` has shape {tuple(self.fiducial.shape)} but ({num_params},) or {tuple(self.score.shape)} "
                "was expected."
            )

    @staticmethod
    def zero(
        num_params: int, batch: tuple[int, ...] = (), fiducial: Tensor | None = None, device: torch.device | None = None
    ) -> Information:
        """The information of an empty set: the identity of ``+``, at any fiducial.

        Example:
            >>> Information.zero(2).fisher
            tensor([[0., 0.],
                    [0., 0.]], dtype=torch.float64)
        """
        score = torch.zeros((*batch, num_params), dtype=torch.float64, device=device)
        fisher = torch.zeros((*batch, num_params, num_params), dtype=torch.float64, device=device)
        point = torch.zeros(num_params, dtype=torch.float64, device=device) if fiducial is None else fiducial
        return Information(score, fisher, point, torch.zeros(batch, dtype=torch.int64, device=device))

    @property
    def num_params(self) -> int:
        """Number of parameters p."""
        return int(self.score.shape[-1])

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the batch of sets, () for a single one."""
        return self.score.shape[:-1]

    @property
    def natural(self) -> Tensor:
        r"""Natural parameter :math:`\eta = t + F\theta_*`, the same at every fiducial, shape (*, p)."""
        return self.score + _matvec(self.fisher, self.fiducial)

    def __len__(self) -> int:
        if not self.batch_shape:
            raise TypeError("This information belongs to a single set and has no length.")
        return self.batch_shape[0]

    def __getitem__(self, key: int | slice | Tensor) -> Information:
        if isinstance(key, int) and not -len(self) <= key < len(self):
            raise IndexError(f"There is no set {key}: there are {len(self)}.")
        fiducial = self.fiducial if self.fiducial.ndim == 1 else self.fiducial[key]
        return Information(self.score[key], self.fisher[key], fiducial, self.count[key])

    def __add__(self, other: Information) -> Information:
        if not isinstance(other, Information):
            return NotImplemented
        fiducial, score = _common_fiducial(self, other), self.score + other.score
        return Information(score, self.fisher + other.fisher, fiducial.to(score), self.count + other.count)

    def __radd__(self, other: int) -> Information:
        """Lets the built-in ``sum`` start from 0."""
        if isinstance(other, int) and other == 0:
            return self
        return NotImplemented

    def __sub__(self, part: Information) -> Information:
        """Takes out a part that was added before; its count may not exceed ours."""
        if not isinstance(part, Information):
            return NotImplemented
        fiducial, score = _common_fiducial(self, part), self.score - part.score
        count = self.count - part.count
        if bool((count < 0).any()):
            raise IncompatibleInformationError(
                f"The part holds more data ({part.count.tolist()}) than the whole ({self.count.tolist()}), so it "
                "cannot be a part of it."
            )
        return Information(score, self.fisher - part.fisher, fiducial.to(score), count)

    def sum(self, dim: int = 0) -> Information:
        """Merges the sets along one batch dimension into one.

        Example:
            >>> Information.zero(2, batch=(5,)).sum().count
            tensor(0)
        """
        if not self.batch_shape:
            raise ShapeError("This information belongs to a single set: there is no batch dimension to sum over.")
        dims = len(self.batch_shape)
        if not -dims <= dim < dims:
            raise ShapeError(f"`dim` is {dim} but the batch shape {tuple(self.batch_shape)} has {dims} dimensions.")
        dim = dim % dims
        fiducial = self.fiducial
        if fiducial.ndim > 1:
            informed = ~_is_empty(self)
            first = informed.to(torch.int8).argmax(dim, keepdim=True).unsqueeze(-1)
            point = self.fiducial.take_along_dim(first, dim)
            if bool(((self.fiducial != point).any(-1) & informed).any()):
                raise IncompatibleInformationError(
                    "The sets have different fiducials, so their scores cannot be summed. Bring them to one point "
                    "with `information.at(point)` first."
                )
            fiducial = point.squeeze(dim)
        return Information(self.score.sum(dim), self.fisher.sum(dim), fiducial, self.count.sum(dim))

    def at(self, fiducial: Tensor) -> Information:
        r"""Writes the same quadratic at another point: :math:`t' = t - F(\theta_*' - \theta_*)`, exactly.

        Args:
            fiducial: New expansion point, shape (p,) or (*, p).

        Returns:
            The same information at ``fiducial``.

        Example:
            >>> a = Information(torch.tensor([4.0]), torch.tensor([[2.0]]), torch.zeros(1), torch.tensor(1))
            >>> a.at(torch.tensor([2.0])).score
            tensor([0.])
        """
        point = torch.as_tensor(fiducial).to(self.score)
        expect_last_dim("fiducial", point, self.num_params)
        return Information(self.score - _matvec(self.fisher, point - self.fiducial), self.fisher, point, self.count)

    def estimate(self) -> Tensor:
        """The estimate from the data alone, shape (*, p); needs a positive-definite Fisher matrix."""
        return estimate(self.score, self.fisher, self.fiducial)

    def log_determinant(self) -> Tensor:
        """Log-determinant of the Fisher matrix, shape (*)."""
        return log_determinant(self.fisher)

    def posterior(self, prior: MomentPrior) -> Gaussian:
        r"""Adds a prior and returns the Gaussian posterior :math:`\mathcal N(\hat\theta, P^{-1})`.

        Args:
            prior: Anything with ``mean`` (p,) and ``covariance`` (p, p).

        Returns:
            Posterior with batch shape (*).

        Example:
            >>> from fishnets.priors import Normal
            >>> Information.zero(1).posterior(Normal([3.0], [[4.0]])).mean
            tensor([3.], dtype=torch.float64)
        """
        if not isinstance(getattr(prior, "mean", None), Tensor) or not hasattr(prior, "covariance"):
            raise ConfigError(
                f"The prior is {prior!r} but an object with tensors `mean` and `covariance` was expected, such as "
                "`fishnets.priors.Normal(mean, covariance)`."
            )
        prior_mean, covariance = prior.mean.to(self.score), prior.covariance.to(self.score)
        expect_last_dim("prior.mean", prior_mean, self.num_params)
        prior_precision = torch.cholesky_inverse(cholesky(covariance, "prior.covariance"))
        precision = self.fisher + prior_precision
        pull = _matvec(prior_precision, self.fiducial - prior_mean)
        mean = self.fiducial + solve(precision, self.score - pull)
        return Gaussian(mean, precision)

    def to(self, device: torch.device | str) -> Information:
        """Copies the state to a device."""
        return Information(
            self.score.to(device), self.fisher.to(device), self.fiducial.to(device), self.count.to(device)
        )

    def __repr__(self) -> str:
        total = int(self.count.sum())
        return f"Information(sets={tuple(self.batch_shape)}, num_params={self.num_params}, data={total})"

    @staticmethod
    def merge(parts: Iterable[Information]) -> Information:
        """Folds parts from left to right; the order fixes the rounding.

        Example:
            >>> Information.merge([Information.zero(2), Information.zero(2)])
            Information(sets=(), num_params=2, data=0)
        """
        folded: Information | None = None
        for part in parts:
            folded = part if folded is None else folded + part
        if folded is None:
            raise ShapeError("There is nothing to merge: the list of parts is empty. Start from `Information.zero(p)`.")
        return folded


def _tensor(value: Tensor, floating: bool) -> Tensor:
    tensor = torch.as_tensor(value)
    if tensor.is_floating_point() == floating:
        return tensor
    if not floating and not bool((tensor == tensor.round()).all()):
        raise ShapeError(f"`count` is {tensor.tolist()} but whole numbers of data were expected.")
    return tensor.to(torch.float64 if floating else torch.int64)


def _matvec(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _is_empty(info: Information) -> Tensor:
    """True where score and Fisher matrix vanish: such a quadratic is the same at every fiducial, shape (*)."""
    return (info.score == 0).all(-1) & (info.fisher == 0).all(-1).all(-1)


def _common_fiducial(a: Information, b: Information) -> Tensor:
    """The fiducial two states share, row by row; a row without information takes the other's."""
    if a.num_params != b.num_params or a.batch_shape != b.batch_shape:
        raise IncompatibleInformationError(
            f"Cannot merge information of {tuple(a.batch_shape)} sets with {a.num_params} parameters and of "
            f"{tuple(b.batch_shape)} sets with {b.num_params}. Both must describe the same sets; to merge sets of one "
            "batch into one, use `information.sum()`."
        )
    differ = (a.fiducial != b.fiducial).any(-1)
    if not bool(differ.any()):
        return a.fiducial
    empty_a, empty_b = _is_empty(a), _is_empty(b)
    bad = differ & ~empty_a & ~empty_b
    if bool(bad.any()):
        where = f" (first in set {describe_rows(bad.flatten().nonzero().flatten().tolist())})" if bad.ndim else ""
        raise IncompatibleInformationError(
            f"The two states have different fiducials{where}, so their scores cannot be added. Bring one to the "
            "other's point with `information.at(other.fiducial)`, which is exact."
        )
    if bool((empty_a | ~differ).all()):
        return b.fiducial
    if bool((empty_b | ~differ).all()):
        return a.fiducial
    points = torch.where(empty_a.unsqueeze(-1), b.fiducial, a.fiducial)
    return points.expand(a.score.shape).contiguous()
