r"""The two directions of learning a posterior from pairs (theta, summary), as what is modelled given what.

``"posterior"`` models the parameters given the summary: the residual :math:`w = S^{-1}(v - \hat v)` of
:mod:`fishnets.inference.coordinates`, given the summary's vector.

``"likelihood"`` models the summary given the parameters. With :math:`L` the factor of the precision
:math:`P = F + C_p^{-1}`, its variables are the score at the parameters in units of that factor,

.. math:: r = L^{-1}\left[t - F(\theta - \theta_*)\right]
            = L^\top (\hat\theta - \theta) + L^{-1} C_p^{-1} (\theta - \mu_p),

which for exact information has mean zero and covariance :math:`L^{-1} F L^{-\top}` at every :math:`\theta`, and the
shape of :math:`L`, as it differs from what is usual for such parameters. The number of data is a condition. At a fixed
shape :math:`|\det\partial r/\partial\hat\theta| = \det L` does not depend on theta, so it cancels in the posterior; it
is kept, and the density is one of the vector :math:`(\hat\theta, \ln\text{-Cholesky})`.

Summaries of your own (plain arrays) have no units: they are standardised column by column, and so is :math:`v`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import cast

import torch
from torch import Tensor, nn

from fishnets.algebra.packing import lower_indices, pack_symmetric, packed_size
from fishnets.inference.coordinates import Coordinates
from fishnets.inference.standardisation import Standard, Trend, squash
from fishnets.inference.summaries import Summaries

__all__ = ["Condition", "Direction", "GivenSummary", "GivenTheta"]

Condition = Summaries | Tensor


class Direction(nn.Module, ABC):
    """What is modelled given what: an interface, with one class per direction.

    ``variables`` and ``conditions`` are the widths of the two, known once :meth:`measure` has seen the pairs.
    """

    variables: int
    conditions: int

    @abstractmethod
    def measure(self, theta: Tensor, summaries: Condition) -> None:
        """Measures the standardisations on parameters (N, p) and N summaries."""

    @abstractmethod
    def pairs(self, theta: Tensor, summaries: Condition) -> tuple[Tensor, Tensor, Tensor]:
        """Variables (B, S, d), conditions (B, S, c) and log-determinants (B, S) of theta (B, S, p)."""


class GivenSummary(Direction):
    """Parameters given the summary.

    Args:
        coordinates: Unbounded coordinates of the parameters.
        width: Columns of the summaries: 0 for :class:`Summaries`, else those of the plain array.
    """

    def __init__(self, coordinates: Coordinates, width: int) -> None:
        super().__init__()
        self.coordinates, self.plain = coordinates, width > 0
        num_params = len(coordinates.shift)
        shape = 0 if self.plain else packed_size(num_params)
        place = width if self.plain else num_params * (2 if coordinates.boxed else 1) + 1
        self.variables, self.conditions = num_params, place + shape
        self.residual, self.condition_scale = Standard(num_params), Standard(place + shape)
        self.trend = Trend(num_params + 1, shape)

    @torch.no_grad()
    def measure(self, theta: Tensor, summaries: Condition) -> None:
        """Measures residuals and conditions."""
        v, _ = self.coordinates.unbounded(theta)
        centre, factor = self._frame(summaries, v)
        self.residual.measure(_solved(factor, (v - centre).unsqueeze(-1)).squeeze(-1))
        if isinstance(summaries, Summaries):
            weight = _weight(summaries)
            self.trend.measure(weight.unsqueeze(-1) * shape_of(summaries), self._drivers(summaries), weight)
        self.condition_scale.measure(self._columns(summaries))

    def condition(self, summaries: Condition) -> Tensor:
        """Standardised conditions, shape (B, c)."""
        return squash(self.condition_scale(self._columns(summaries)))

    def pairs(self, theta: Tensor, summaries: Condition) -> tuple[Tensor, Tensor, Tensor]:
        """Variables (B, S, d), conditions (B, S, c) and log-determinants (B, S) of theta (B, S, p)."""
        v, log_det = self.coordinates.unbounded(theta)
        centre, factor = self._frame(summaries, v)
        white = _solved(factor, (v - centre.unsqueeze(1)).mT).mT
        log_det = log_det - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True) + self.residual.log_det
        condition = self.condition(summaries).unsqueeze(1).expand(-1, theta.shape[1], -1)
        return self.residual(white), condition, log_det

    def theta(self, variables: Tensor, summaries: Condition) -> Tensor:
        """Parameters (B, S, p) from variables (B, S, p)."""
        centre, factor = self._frame(summaries, variables)
        return self.coordinates.bounded(centre.unsqueeze(1) + self.residual.restore(variables) @ factor.mT)

    def _frame(self, summaries: Condition, like: Tensor) -> tuple[Tensor, Tensor]:
        """Centre (B, p) and factor (B, p, p) of each set's own units; those of a plain array are the common ones."""
        if isinstance(summaries, Summaries):
            return self.coordinates.frame(summaries.gaussian)
        size = self.variables
        unit = torch.eye(size, dtype=like.dtype, device=like.device).expand(len(summaries), size, size)
        return unit.new_zeros(len(summaries), size), unit

    def _columns(self, summaries: Condition) -> Tensor:
        """Estimate, its unbounded coordinates where there is a box, ln(1 + n), and how unusual the shape is."""
        if not isinstance(summaries, Summaries):
            return summaries
        weight, drivers = _weight(summaries), self._drivers(summaries)
        shape = weight.unsqueeze(-1) * shape_of(summaries) - self.trend(drivers, weight)
        centre = [self.coordinates.frame(summaries.gaussian)[0]] if self.coordinates.boxed else []
        return torch.cat([*centre, drivers, shape], dim=-1)

    @staticmethod
    def _drivers(summaries: Summaries) -> Tensor:
        return torch.cat([summaries.gaussian.mean, _log_size(summaries).unsqueeze(-1)], dim=-1)


class GivenTheta(Direction):
    """The summary given parameters; arguments as for :class:`GivenSummary`."""

    def __init__(self, coordinates: Coordinates, width: int) -> None:
        super().__init__()
        self.coordinates, self.plain = coordinates, width > 0
        num_params = len(coordinates.shift)
        self.conditions = num_params + (0 if self.plain else 1)
        columns = width if self.plain else num_params + packed_size(num_params)
        self.scale, self.condition_scale = Standard(columns), Standard(self.conditions)
        self.trend = Trend(self.conditions, columns)

    @property
    def variables(self) -> int:  # type: ignore[override]
        """Number of columns that vary: the others have no density."""
        return int(self.scale.varies.sum())

    @torch.no_grad()
    def measure(self, theta: Tensor, summaries: Condition) -> None:
        """Measures scores, shapes and conditions."""
        theta = theta.unsqueeze(1)
        columns, weight = self._columns(theta, summaries), _weight(summaries).unsqueeze(-1)
        drivers = self._with_size(theta, summaries)
        self.trend.measure(columns.squeeze(1), drivers.squeeze(1), weight.squeeze(1))
        self.scale.measure((columns - self.trend(drivers, weight)).squeeze(1))
        v, _ = self.coordinates.unbounded(theta)
        self.condition_scale.measure(self._with_size(v, summaries).squeeze(1))

    def pairs(self, theta: Tensor, summaries: Condition) -> tuple[Tensor, Tensor, Tensor]:
        """Variables (B, S, d), conditions (B, S, c) and log-determinants (B, S) of theta (B, S, p)."""
        weight = _weight(summaries).unsqueeze(-1).expand(theta.shape[:2])
        expected = self.trend(self._with_size(theta, summaries), weight)
        variables = self.scale(self._columns(theta, summaries) - expected)[..., self.scale.varies]
        v, _ = self.coordinates.unbounded(theta)
        log_det = self.scale.log_det.expand(theta.shape[:2])
        if isinstance(summaries, Summaries):
            log_det = log_det + _column_log_det(summaries, self.scale.varies).unsqueeze(1)
        return variables, squash(self.condition_scale(self._with_size(v, summaries))), log_det

    def _columns(self, theta: Tensor, summaries: Condition) -> Tensor:
        """Score at theta and shape, (B, S, d); or the plain array, the same for every theta."""
        if not isinstance(summaries, Summaries):
            return summaries.unsqueeze(1).expand(-1, theta.shape[1], -1)
        shape = (_weight(summaries).unsqueeze(-1) * shape_of(summaries)).unsqueeze(1).expand(-1, theta.shape[1], -1)
        return torch.cat([score_at(theta, summaries), shape], dim=-1)

    def _with_size(self, columns: Tensor, summaries: Condition) -> Tensor:
        """Columns (B, S, p) with ln(1 + n), which is known of a :class:`Summaries`."""
        if not isinstance(summaries, Summaries):
            return columns
        size = _log_size(summaries).view(-1, 1, 1).expand(-1, columns.shape[1], 1)
        return torch.cat([columns, size], dim=-1)


def shape_of(summaries: Summaries) -> Tensor:
    r"""Packed shape of the factor, (B, p(p+1)/2): :math:`\ln L_{jj}`, and :math:`L_{ij}/L_{jj}` below the diagonal.

    The ratios, unlike the entries, do not grow with the number of data.
    """
    diagonal = summaries.factor.diagonal(dim1=-2, dim2=-1)
    ratios = summaries.factor / diagonal.unsqueeze(-2)
    return pack_symmetric(ratios + torch.diag_embed(diagonal.log() - 1))


def score_at(theta: Tensor, summaries: Summaries) -> Tensor:
    r"""The score at theta (B, S, p) in units of the factor, :math:`L^{-1}[t - F(\theta-\theta_*)]`, shape (B, S, p)."""
    info = summaries.information
    fiducial = info.fiducial if info.fiducial.ndim == 1 else info.fiducial.unsqueeze(1)
    score = info.score.unsqueeze(1) - (theta - fiducial) @ info.fisher  # F is symmetric
    return _solved(summaries.factor, score.mT).mT


def _column_log_det(summaries: Summaries, varies: Tensor) -> Tensor:
    """Log-determinant (B,) of score and weighted shape with respect to estimate and packed log-Cholesky factor."""
    log_diagonal, num_params = summaries.factor.diagonal(dim1=-2, dim2=-1).log(), summaries.num_params
    rows, cols = lower_indices(num_params, varies.device)
    shape = varies[num_params:]
    ratios: Tensor = (log_diagonal[:, cols] * (shape & (rows > cols))).sum(-1)
    return log_diagonal.sum(-1) - ratios + shape.sum() * _weight(summaries).log()


def _weight(summaries: Condition) -> Tensor:
    """The square root of 1 + n of each set, shape (B,); 1 where n is not known."""
    if not isinstance(summaries, Summaries):
        return torch.ones_like(summaries[:, 0])
    return (1 + summaries.sizes.to(torch.float64)).sqrt()


def _log_size(summaries: Summaries) -> Tensor:
    return summaries.sizes.to(torch.float64).log1p()


def _solved(factor: Tensor, columns: Tensor) -> Tensor:
    return cast(Tensor, torch.linalg.solve_triangular(factor, columns, upper=False))
