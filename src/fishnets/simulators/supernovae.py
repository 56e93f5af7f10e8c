r"""Type Ia supernovae: distance moduli of a flat universe, each with its own redshift and error.

.. math::
    \mu_i \sim \mathcal N(\mu(z_i; \theta), \sigma_i^2), \quad
    \mu(z) = 5 \log_{10} \frac{d_L(z)}{10\,\mathrm{pc}} + \delta, \quad
    d_L = (1+z) \frac{c}{H_0} D(z), \quad D = \int_0^z \frac{dz'}{E(z')}, \quad
    E^2 = \Omega_m (1+z)^3 + (1-\Omega_m) (1+z)^{3(1+w)},

with :math:`H_0 = 70` km/s/Mpc, whose error and that of the absolute magnitude are the offset :math:`\delta`. In
:math:`u = \ln(1+z)` the integrand is analytic and, for :math:`w \ge -2`, no singularity comes nearer than
:math:`\pi/6`, so sixteen Gauss-Legendre nodes give moduli to 1e-10 magnitudes up to z = 2.5 (1e-6 up to z = 10).
Redshifts and errors are given, not inferred: at :math:`\theta` a datum has the Jacobian
:math:`J_i = \nabla_\theta \mu(z_i; \theta)`, and

.. math::
    t = \sum_i J_i \frac{\mu_i - \mu(z_i; \theta)}{\sigma_i^2}, \qquad F = \sum_i \frac{J_i J_i^T}{\sigma_i^2} .
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fishnets.arrays import ArrayLike, as_float
from fishnets.errors import DataError, ShapeError, describe_rows, expect_last_dim
from fishnets.ops.segment_information import segment_sum
from fishnets.priors import Box
from fishnets.ragged import Sets
from fishnets.simulators.grid import GridPosterior, adaptive_grid

__all__ = ["SupernovaPosterior", "Supernovae"]

NODES = 16  # of the distance integral
TERMS = 24  # of the polynomial in ln(1 + z) that stands for the modulus in posteriors, to 1e-9 up to z = 2.5
OFFSET_NODES, DEPTH = 64, 32.0  # the offset is integrated where its density is within this of its maximum, in logarithm
MAGNITUDES = 5 / math.log(10)  # per unit of the natural logarithm of a distance
HUBBLE_DISTANCE = 299_792.458 / 70  # c/H0 in Mpc
REFERENCE = 0.3  # matter density of the flat LambdaCDM universe from which the first feature is measured
Z_RANGE, NEARBY_Z, SIGMA_RANGE = (0.01, 2.0), 0.1, (0.05, 1.5)
# what differs from survey to survey: depth, power with which redshifts crowd towards zero, typical error at z = 0;
LOG_UNIFORM = ((0.3, 2.0), (0.5, 2.0), (0.08, 0.5))
# share of a nearby sample, power of (1 + z) with which errors grow, scatter of their logarithm
UNIFORM = ((0.0, 0.6), (-0.5, 1.5), (0.1, 0.6))


@dataclass(frozen=True)
class Supernovae:
    r"""The simulator and its exact answers.

    A datum has three features, :math:`(\mu - \mu_{\rm ref}(z), \ln z, \ln\sigma)`, where :math:`\mu_{\rm ref}` is the
    modulus for :math:`\Omega_m = 0.3, w = -1, \delta = 0`: computed from the table alone, of order one, and without the
    thirteen magnitudes by which far supernovae are fainter than near ones in every universe.

    Args:
        dark_energy: Whether w is a parameter, :math:`\theta = (\Omega_m, w, \delta)`; else it is -1 and
            :math:`\theta = (\Omega_m, \delta)`.

    Example:
        >>> simulator = Supernovae()
        >>> theta = torch.tensor([[0.3, 0.0]])
        >>> sets = simulator(theta, torch.tensor([1000]), torch.Generator().manual_seed(0))
        >>> sets
        Sets(num_sets=1, num_data=1000, num_features=3)
        >>> simulator.posterior(sets).mean.round(decimals=2)
        tensor([0.3100, 0.0000], dtype=torch.float64)
    """

    dark_energy: bool = False

    @property
    def num_features(self) -> int:
        """Width of a datum."""
        return 3

    @property
    def num_params(self) -> int:
        """Number of parameters, p."""
        return 3 if self.dark_energy else 2

    @property
    def prior(self) -> Box:
        """Uniform: matter density from 0 to 1, equation of state from -2 to -0.4, offset within 0.5 magnitudes."""
        return Box([0.0, -2.0, -0.5], [1.0, -0.4, 0.5]) if self.dark_energy else Box([0.0, -0.5], [1.0, 0.5])

    def __call__(self, theta: Tensor, size: Tensor, generator: torch.Generator | None = None) -> Sets:
        """Draws one survey per row of ``theta``, each with its own depth, nearby sample and error model.

        Args:
            theta: Parameters, shape (B, p); its dtype and device are those of the result.
            size: Number of supernovae of each set, int64, shape (B,).
            generator: Source of the randomness, on the device of ``theta``.

        Returns:
            B sets.
        """
        expect_last_dim("theta", theta, self.num_params)
        if theta.ndim != 2 or size.shape != theta.shape[:1]:
            raise ShapeError(
                f"`theta` has shape {tuple(theta.shape)} and `size` {tuple(size.shape)} but (B, {self.num_params}) and "
                "(B,) were expected."
            )
        offsets = torch.cat([size.new_zeros(1), size.cumsum(0)])
        # one wait for the device answers both questions
        num_data, num_bad = torch.stack([offsets[-1], _impossible(theta).sum()]).tolist()
        if num_bad:
            _refuse(theta)
        survey = torch.rand((len(theta), 6), generator=generator, dtype=theta.dtype, device=theta.device)
        rows = torch.repeat_interleave(torch.cat([theta, survey], dim=1), size, dim=0, output_size=num_data)
        z, sigma = _covariates(rows[:, -6:], generator)
        return Sets(self._observe(rows[:, :-6], z.log(), sigma.log(), generator), offsets)

    def like(self, sets: Sets, theta: Tensor, generator: torch.Generator | None = None) -> Sets:
        """Draws new moduli at each row's own redshift and error, for parameters ``theta`` (B, p)."""
        self._expect_one_each(sets, theta)
        rows = theta.to(sets.values)[sets.index]
        return Sets(self._observe(rows, sets.values[:, 1], sets.values[:, 2], generator), sets.offsets)

    def modulus(self, z: Tensor, theta: Tensor) -> Tensor:
        """Distance moduli mu(z; theta) in magnitudes, shape (*), of redshifts (*) and parameters (*, p) or (p,).

        Example:
            >>> Supernovae().modulus(torch.tensor([0.5, 1.0]), torch.tensor([0.3, 0.0])).round(decimals=2)
            tensor([42.2600, 44.1000])
        """
        expect_last_dim("theta", theta, self.num_params)
        return _reference_modulus(z) + self._shift(z, theta)

    def pack(self, z: ArrayLike, mu: ArrayLike, sigma: ArrayLike) -> Tensor:
        """Turns columns of a table, each of shape (n,), into the rows of a set, shape (n, 3).

        Example:
            >>> Supernovae().pack([0.5], [42.3611], [0.2]).round(decimals=3)
            tensor([[ 0.1000, -0.6930, -1.6090]])
        """
        names = ("z", "mu", "sigma")
        columns = [as_float(column, name) for column, name in zip((z, mu, sigma), names, strict=True)]
        if any(column.ndim != 1 or column.shape != columns[0].shape for column in columns):
            shapes = ", ".join(f"`{name}` {tuple(c.shape)}" for name, c in zip(names, columns, strict=True))
            raise ShapeError(f"The columns have shapes {shapes} but one and the same (n,) was expected.")
        _expect_table(*columns)
        return torch.stack([columns[1] - _reference_modulus(columns[0]), columns[0].log(), columns[2].log()], dim=1)

    def columns(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reads z, mu and sigma back from the features, each of shape (n,)."""
        expect_last_dim("values", values, 3)
        z = values[:, 1].exp()
        return z, values[:, 0] + _reference_modulus(z), values[:, 2].exp()

    def log_likelihood(self, sets: Sets, theta: Tensor) -> Tensor:
        """Exact log-likelihood of each set at its own parameters (B, p), shape (B,), float64."""
        self._expect_one_each(sets, theta)
        y, log_z, log_sigma = sets.values.to(torch.float64).unbind(1)
        white = (y - self._shift(log_z.exp(), theta.to(y)[sets.index])) / log_sigma.exp()
        log_density = -0.5 * white.square() - log_sigma - 0.5 * math.log(2 * math.pi)
        return segment_sum(log_density.unsqueeze(1), sets.offsets).squeeze(1)

    def score(self, sets: Sets, theta: Tensor) -> Tensor:
        """Exact score of each set at its own parameters (B, p), shape (B, p), float64."""
        residual, jacobian, weight = self._linearised(sets, theta)
        return segment_sum(jacobian * (weight * residual).unsqueeze(1), sets.offsets)

    def fisher(self, sets: Sets, theta: Tensor) -> Tensor:
        """Exact expected Fisher matrix at each set's own redshifts, errors and parameters, (B, p, p), float64."""
        _, jacobian, weight = self._linearised(sets, theta)
        outer = (weight.unsqueeze(1) * jacobian).unsqueeze(2) * jacobian.unsqueeze(1)  # (n, p, p)
        return segment_sum(outer.flatten(1), sets.offsets).reshape(-1, self.num_params, self.num_params)

    def posterior(self, sets: Sets, points: int = 81) -> GridPosterior | SupernovaPosterior:
        """The exact posterior of a single set, on a grid of ``points`` squared that adapts to it.

        With two parameters the grid holds both; with three it holds the first two, and the offset, in which the modulus
        is linear, is integrated out at each of its points.
        """
        if len(sets) != 1:
            raise ShapeError(f"One set was expected but {len(sets)} were given; take them one by one: `sets[i]`.")
        expect_last_dim("values", sets.values, 3)
        fit = _Fit.of_rows(sets.values.to(torch.float64))
        low, high = (bound.to(sets.device) for bound in (self.prior.low, self.prior.high))

        def misfit(theta: Tensor) -> tuple[Tensor, Tensor]:
            return fit.misfit(self._shift(fit.z, theta.unsqueeze(1)))

        def offset_law(pairs: Tensor) -> tuple[Tensor, ...]:
            without = torch.cat([pairs, torch.zeros_like(pairs[:, :1])], dim=1)
            weight = fit.matrix[:-1, :-1].sum()  # of the inverse variances: the polynomials add to one
            return _offset_law(*misfit(without), weight, low[-1], high[-1])

        if not self.dark_energy:
            return adaptive_grid(lambda pairs: -0.5 * misfit(pairs)[0], low, high, points)
        grid = adaptive_grid(lambda pairs: offset_law(pairs)[0], low[:2], high[:2], points)
        moments = offset_law(torch.cartesian_prod(grid.first, grid.second))[1:]
        return SupernovaPosterior(grid, *(x.view_as(grid.log_density) for x in moments))

    def _shift(self, z: Tensor, theta: Tensor) -> Tensor:
        """Modulus minus that of the reference, shape (*), at redshifts (*) and parameters (*, p)."""
        path = _Path.until(z)
        ratio = path.distance(*self._universe(theta)) / path.distance(REFERENCE)
        return MAGNITUDES * ratio.log() + theta[..., -1]

    def _universe(self, theta: Tensor) -> tuple[Tensor, Tensor | None]:
        """Matter density and, if it is free, equation of state, (*, 1) each."""
        return theta[..., :1], theta[..., 1:2] if self.dark_energy else None

    def _observe(self, theta: Tensor, log_z: Tensor, log_sigma: Tensor, generator: torch.Generator | None) -> Tensor:
        """Rows (n, 3) with drawn moduli, for one row of parameters each (n, p)."""
        noise = torch.randn(len(log_z), generator=generator, dtype=log_z.dtype, device=log_z.device)
        residual = self._shift(log_z.exp(), theta) + log_sigma.exp() * noise
        return torch.stack([residual, log_z, log_sigma], dim=1)

    def _linearised(self, sets: Sets, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Residual (n,), Jacobian of the modulus (n, p) and inverse variance (n,) of every row, in float64."""
        self._expect_one_each(sets, theta)
        y, log_z, log_sigma = sets.values.to(torch.float64).unbind(1)
        rows, path = theta.to(y)[sets.index], _Path.until(log_z.exp())
        universe = self._universe(rows)
        relative = path.slopes(*universe) / path.distance(*universe).unsqueeze(1)
        jacobian = torch.cat([MAGNITUDES * relative, torch.ones_like(relative[:, :1])], dim=1)
        return y - self._shift(log_z.exp(), rows), jacobian, torch.exp(-2 * log_sigma)

    def _expect_one_each(self, sets: Sets, theta: Tensor) -> None:
        expect_last_dim("values", sets.values, 3)
        if theta.shape != (shape := (len(sets), self.num_params)):
            raise ShapeError(f"`theta` has shape {tuple(theta.shape)} but one row per set, {shape}, was expected.")
        if bool(_impossible(theta).any()):
            _refuse(theta)


@dataclass(frozen=True, eq=False)
class SupernovaPosterior:
    """A posterior over three parameters: two on a grid, and the law of the third at each of its points.

    Args:
        grid: Posterior of matter density and equation of state.
        offset_mean: Mean of the offset given both, shape (G, H).
        offset_variance: Its variance, shape (G, H).

    Example:
        >>> posterior = Supernovae(dark_energy=True).posterior(Sets.from_list([torch.zeros(0, 3)]))
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
    nodes, weights = _unit_nodes(OFFSET_NODES, peak)
    offset = start.unsqueeze(1) + torch.outer(end - start, nodes)  # (G, nodes)
    log_density = offset * pull.unsqueeze(1) - 0.5 * weight * offset.square() + weights.log()
    share = torch.softmax(log_density, dim=1)
    mean = (share * offset).sum(1)
    variance = (share * (offset - mean.unsqueeze(1)).square()).sum(1)
    return torch.logsumexp(log_density, dim=1) + (end - start).log() - 0.5 * misfit, mean, variance


class _Path(NamedTuple):
    """Nodes on the way to redshifts (*), (*, NODES) each, and distances in units of c/H0 for parameters (*, 1)."""

    u: Tensor  # ln(1 + z)
    matter: Tensor  # (1 + z)³, the density of matter relative to today's
    weights: Tensor  # of the integral over z

    @staticmethod
    def until(z: Tensor) -> _Path:
        nodes, weights = _unit_nodes(NODES, z)
        reach = torch.log1p(z).unsqueeze(-1)
        stretch = (u := reach * nodes).exp()
        return _Path(u, stretch * stretch * stretch, reach * weights * stretch)

    def dark(self, w: Tensor | None) -> Tensor:
        """Density of dark energy relative to today's, constant where no equation of state is given."""
        return self.u.new_ones(()) if w is None else (3 * (1 + w) * self.u).exp()

    def distance(self, omega_m: Tensor | float, w: Tensor | None = None) -> Tensor:
        """Comoving distance D, shape (*)."""
        dark = self.dark(w)
        return (self.weights * (dark + omega_m * (self.matter - dark)).rsqrt()).sum(-1)

    def slopes(self, omega_m: Tensor, w: Tensor | None) -> Tensor:
        """Derivatives of D with respect to matter density and, where given, equation of state: (*, 1) or (*, 2)."""
        dark = self.dark(w)
        by_square = -0.5 * self.weights * (dark + omega_m * (self.matter - dark)).pow(-1.5)
        slopes = [self.matter - dark]  # of E²
        if w is not None:
            slopes.append(3 * (1 - omega_m) * self.u * dark)
        return torch.stack([(by_square * slope).sum(-1) for slope in slopes], dim=-1)


def _reference_modulus(z: Tensor) -> Tensor:
    distance = HUBBLE_DISTANCE * (1 + z) * _Path.until(z).distance(REFERENCE)
    return MAGNITUDES * distance.log() + 25  # 1 Mpc is 10^5 times 10 pc


def _unit_nodes(number: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights on (0, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(number)
    return torch.from_numpy(0.5 * (nodes + 1)).to(like), torch.from_numpy(0.5 * weights).to(like)


def _covariates(survey: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Redshifts and errors (n,), given six numbers between 0 and 1 that each shares with its survey, (n, 6)."""
    unit = survey.unbind(1)
    depth, crowding, typical = (low * (high / low) ** x for x, (low, high) in zip(unit[:3], LOG_UNIFORM, strict=True))
    nearby, growth, scatter = (low + (high - low) * x for x, (low, high) in zip(unit[3:], UNIFORM, strict=True))
    place, part = torch.rand((2, len(survey)), generator=generator, dtype=survey.dtype, device=survey.device)
    lowest, highest = Z_RANGE
    far = lowest + (depth - lowest) * place**crowding
    near = lowest * (NEARBY_Z / lowest) ** place
    z = torch.where(part < nearby, near, far).clamp(lowest, highest)
    noise = torch.randn(len(survey), generator=generator, dtype=survey.dtype, device=survey.device)
    sigma = typical * (1 + z) ** growth * torch.exp(scatter * noise)
    return z, sigma.clamp(*SIGMA_RANGE)


def _expect_table(z: Tensor, mu: Tensor, sigma: Tensor) -> None:
    bad = ~((z > 0) & (sigma > 0) & torch.isfinite(z + mu + sigma))
    if bool(bad.any()):
        rows = bad.nonzero().flatten().tolist()
        first = ", ".join(f"{float(column[rows[0]]):.3g}" for column in (z, mu, sigma))
        raise DataError(
            f"{len(rows)} of {len(z)} supernovae are impossible: rows {describe_rows(rows)}; row {rows[0]} has (z, mu, "
            f"sigma) = ({first}), and finite numbers with positive z and sigma were expected. Leave such rows out."
        )


def _impossible(theta: Tensor) -> Tensor:
    """Rows of parameters (B, p) for which there is no expanding universe, or which are not finite."""
    return ~((theta[:, 0] >= 0) & torch.isfinite(theta).all(1))


def _refuse(theta: Tensor) -> None:
    rows = _impossible(theta).nonzero().flatten().tolist()
    raise DataError(
        f"The matter density, `theta[:, 0]`, must not be negative, and all must be finite, but rows "
        f"{describe_rows(rows)} are not so; row {rows[0]} is {theta[rows[0]].tolist()}. Keep to the prior."
    )
