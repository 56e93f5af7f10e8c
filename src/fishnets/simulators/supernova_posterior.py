r"""The exact posterior of the supernovae: matter density and one more on a grid, the offset integrated out.

A modulus is smooth in the logarithm of the redshift, so a set is condensed once into a small matrix that gives the
misfit of any universe. With two parameters the grid holds both; with three it holds matter density and equation of
state, and the offset, in which the modulus is linear, is integrated at each of its points.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fishnets.simulators.cosmology import unit_nodes
from fishnets.simulators.grid import GridPosterior, adaptive_grid

__all__ = ["SupernovaPosterior", "posterior_of_pairs", "posterior_of_triples"]

TERMS = 24  # of the polynomial in ln(1 + z) that stands for the modulus, to 1e-9 up to z = 2.5
OFFSET_NODES, DEPTH = 64, 32.0  # the offset is integrated where its density is within this of its maximum, in logarithm
Shift = Callable[[Tensor, Tensor], Tensor]  # redshifts (K,) and parameters (G, 1, p) to moduli less reference, (G, K)


@dataclass(frozen=True, eq=False)
class SupernovaPosterior:
    """A posterior over three parameters: two on a grid, and the law of the third at each of its points.

    Args:
        grid: Posterior of matter density and equation of state.
        offset_mean: Mean of the offset given both, shape (G, H).
        offset_variance: Its variance, shape (G, H).

    Example:
        >>> from fishnets import Sets, simulators
        >>> posterior = simulators.Supernovae(dark_energy=True).posterior(Sets.from_list([torch.zeros(0, 3)]))
        >>> posterior.covariance.diagonal().sqrt()  # the prior's: there are no data
        tensor([0.2887, 0.4619, 0.2887], dtype=torch.float64)
    """

    grid: GridPosterior
    offset_mean: Tensor
    offset_variance: Tensor

    @property
    def mean(self) -> Tensor:
        """Posterior mean, shape (3,)."""
        return torch.cat([self.grid.mean, (self.grid.mass * self.offset_mean).sum().unsqueeze(0)])

    @property
    def covariance(self) -> Tensor:
        """Posterior covariance, shape (3, 3)."""
        mass, offset = self.grid.mass, self.offset_mean - self.mean[2]
        cross = torch.stack([(mass * offset).sum(1) @ self.grid.first, (mass * offset).sum(0) @ self.grid.second])
        variance = (mass * (self.offset_variance + offset.square())).sum()
        last = torch.cat([cross, variance.unsqueeze(0)]).unsqueeze(0)  # (1, 3)
        return torch.cat([torch.cat([self.grid.covariance, cross.unsqueeze(0)]), last.mT], dim=1)


def posterior_of_pairs(values: Tensor, shift: Shift, low: Tensor, high: Tensor, points: int) -> GridPosterior:
    """The posterior of matter density and offset, uniform between bounds (2,) before the data.

    Args:
        values: Rows of one set, float64, shape (n, 3).
        shift: Modulus minus that of the reference.
        low: Lower bounds, shape (2,).
        high: Upper bounds, shape (2,).
        points: Grid points along each parameter.
    """
    fit = _Fit.of_rows(values)
    return adaptive_grid(lambda pairs: -0.5 * fit.misfit(shift(fit.z, pairs.unsqueeze(1)))[0], low, high, points)


def posterior_of_triples(values: Tensor, shift: Shift, low: Tensor, high: Tensor, points: int) -> SupernovaPosterior:
    """The posterior of matter density, equation of state and offset; arguments as in :func:`posterior_of_pairs`."""
    fit = _Fit.of_rows(values)
    weight = fit.matrix[:-1, :-1].sum()  # of the inverse variances: the polynomials add to one

    def offset_law(pairs: Tensor) -> tuple[Tensor, ...]:
        without = torch.cat([pairs, torch.zeros_like(pairs[:, :1])], dim=1)
        misfit = fit.misfit(shift(fit.z, without.unsqueeze(1)))
        return _offset_law(*misfit, weight, low[-1], high[-1])

    grid = adaptive_grid(lambda pairs: offset_law(pairs)[0], low[:2], high[:2], points)
    moments = offset_law(torch.cartesian_prod(grid.first, grid.second))[1:]
    return SupernovaPosterior(grid, *(x.view_as(grid.log_density) for x in moments))


class _Fit(NamedTuple):
    r"""A set, condensed so that the misfit of any universe costs the same however many supernovae there are.

    A modulus is smooth in :math:`u = \ln(1+z)`, so that its values m at K Chebyshev nodes give it everywhere by
    Lagrange's polynomials :math:`\ell_k`. With :math:`V = (\ell_1(u), \dots, \ell_K(u), y)` and :math:`q = (-m, 1)`,

    .. math:: \chi^2 = \sum_i \frac{(y_i - \sum_k m_k \ell_k(u_i))^2}{\sigma_i^2} = q^T (V^T \Sigma^{-1} V)\, q .
    """

    z: Tensor  # (K,), redshifts of the nodes
    matrix: Tensor  # (K + 1, K + 1)

    @staticmethod
    def of_rows(values: Tensor) -> _Fit:
        y, log_z, log_sigma = values.unbind(1)
        u = torch.log1p(log_z.exp())
        reach = u.max() if len(u) else u.new_ones(())
        order = torch.arange(TERMS, dtype=u.dtype, device=u.device)
        angle = math.pi / TERMS * (order + 0.5)
        scaled = torch.acos((2 * u / reach - 1).clamp(-1, 1))
        lagrange = (2 * torch.cos(torch.outer(scaled, order)) @ torch.cos(torch.outer(order, angle)) - 1) / TERMS
        columns = torch.cat([lagrange, y.unsqueeze(1)], dim=1) * torch.exp(-log_sigma).unsqueeze(1)
        return _Fit(torch.expm1(0.5 * reach * (1 + angle.cos())), columns.mT @ columns)

    def misfit(self, modulus: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of the squared and of the plain residuals over variances, (G,) each, for moduli (G, K) at the nodes."""
        q = torch.cat([-modulus, modulus.new_ones((len(modulus), 1))], dim=1)
        product = q @ self.matrix
        return (product * q).sum(1), product[:, :-1].sum(1)


def _offset_law(misfit: Tensor, pull: Tensor, weight: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, ...]:
    r"""Logarithm of the mass, mean and variance, (G,) each, of the offset's density between two bounds.

    .. math:: \ln p(\delta) = -\tfrac12 (\mathrm{misfit} - 2\,\delta\,\mathrm{pull} + \delta^2\,\mathrm{weight})

    is normal, cut off. The nodes lie where it is within :math:`e^{-32}` of its maximum, which stays accurate where the
    closed form, a difference of error functions, does not: without data, or far from the bounds.
    """
    peak = (pull / weight.clamp(min=1e-300)).clamp(low, high)
    slope = (pull - weight * peak).abs()  # zero unless the interval cuts the density off
    reach = 2 * DEPTH / (slope + (slope.square() + 2 * DEPTH * weight).sqrt()).clamp(min=1e-300)
    start, end = (peak - reach).clamp(min=low), (peak + reach).clamp(max=high)
    nodes, weights = unit_nodes(OFFSET_NODES, peak)
    offset = start.unsqueeze(1) + torch.outer(end - start, nodes)  # (G, nodes)
    log_density = offset * pull.unsqueeze(1) - 0.5 * weight * offset.square() + weights.log()
    share = torch.softmax(log_density, dim=1)
    mean = (share * offset).sum(1)
    variance = (share * (offset - mean.unsqueeze(1)).square()).sum(1)
    return torch.logsumexp(log_density, dim=1) + (end - start).log() - 0.5 * misfit, mean, variance
