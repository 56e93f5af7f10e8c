r"""Coordinates: parameters without bounds, and each set's own units.

A density estimator should not spend itself on what is known. Parameters in a box become unbounded by a logit, so no
mass can leave the box; other parameters are scaled by the prior's moments. In these coordinates :math:`v` the Gaussian
that a summary stands for has a centre :math:`\hat v` and a factor :math:`S`, and the residual

.. math:: w = S^{-1} (v - \hat v)

is of order one whatever the number of data: a set of 10 and one of 10,000 differ by a factor 30 in the width of
:math:`v` and by little in :math:`w`. What a network learns is the correction to a Gaussian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fishnets.algebra.gaussian import Gaussian
from fishnets.priors import Box, Prior

__all__ = ["Coordinates"]

EDGE = 2.0**-53  # of a unit interval: its last float64 neighbour of 1
REACH = 5.0  # standard deviations by which a centre may lie outside the box


@dataclass(frozen=True, eq=False)
class Coordinates:
    r"""The map between parameters :math:`\theta` and unbounded coordinates :math:`v`, one parameter at a time.

    Args:
        shift: Lower corner of the box, or mean of the prior, shape (p,).
        scale: Widths of the box, or standard deviations of the prior, shape (p,).
        boxed: Whether there is a box.

    Example:
        >>> v, log_det = Coordinates.of(Box([0.0], [4.0])).unbounded(torch.tensor([[2.0]], dtype=torch.float64))
        >>> v, log_det
        (tensor([[0.]], dtype=torch.float64), tensor([0.], dtype=torch.float64))
    """

    shift: Tensor
    scale: Tensor
    boxed: bool

    @staticmethod
    def of(prior: Prior) -> Coordinates:
        """The coordinates that suit a prior."""
        if isinstance(prior, Box):
            return Coordinates(prior.low, prior.high - prior.low, True)
        sd = prior.covariance.to(torch.float64).diagonal().sqrt()
        return Coordinates(prior.mean.to(torch.float64), sd, False)

    def unbounded(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        r"""Maps parameters (*, p) to :math:`v`, with :math:`\ln|\det \partial v/\partial\theta|` (*)."""
        shift, scale = self.shift.to(theta.device), self.scale.to(theta.device)
        unit = (theta.to(torch.float64) - shift) / scale
        log_det = -scale.log().sum().expand(unit.shape[:-1])
        if not self.boxed:
            return unit, log_det
        unit = unit.clamp(EDGE, 1 - EDGE)
        return torch.logit(unit), log_det - (unit.log() + torch.log1p(-unit)).sum(-1)

    def bounded(self, v: Tensor) -> Tensor:
        """Maps coordinates (*, p) back to parameters, inside the box where there is one."""
        shift, scale = self.shift.to(v.device), self.scale.to(v.device)
        if not self.boxed:
            return shift + scale * v
        return torch.minimum(shift + scale * torch.sigmoid(v), shift + scale)

    def frame(self, gaussian: Gaussian) -> tuple[Tensor, Tensor]:
        r"""Centre :math:`\hat v` (*, p) and lower-triangular factor :math:`S` (*, p, p) of a Gaussian in theta.

        Inside a box each marginal is cut at the walls, and its median and central 68 % carried over to :math:`v`: near
        a wall, or for a set that says nothing, the tangent of the logit would be off by any factor. The correlations
        are those of the Gaussian.
        """
        covariance = gaussian.covariance
        sd = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
        shift, scale = self.shift.to(sd.device), self.scale.to(sd.device)
        correlation = covariance / (sd.unsqueeze(-1) * sd.unsqueeze(-2))
        centre, spread = (gaussian.mean - shift) / scale, sd / scale
        if self.boxed:
            low, centre, high = _cut_quantiles(centre, spread)
            spread = 0.5 * (high - low)
        return centre, spread.unsqueeze(-1) * torch.linalg.cholesky(correlation)


def _cut_quantiles(mean: Tensor, sd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of the 16, 50 and 84 % quantiles of normal laws cut to the unit interval."""
    mean = torch.minimum(torch.maximum(mean, -REACH * sd), 1 + REACH * sd)
    below, above = torch.special.ndtr(-mean / sd), torch.special.ndtr((1 - mean) / sd)
    levels = [0.5 * math.erfc(z / math.sqrt(2)) for z in (1.0, 0.0, -1.0)]
    units = [mean + sd * torch.special.ndtri(below + level * (above - below)) for level in levels]
    low, median, high = (torch.logit(unit.clamp(EDGE, 1 - EDGE)) for unit in units)
    return low, median, high
