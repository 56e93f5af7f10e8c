r"""A centring for every point of the prior, fitted once and stored with the model.

The mean :math:`b(\theta)`, slope :math:`A(\theta)` and covariance :math:`V(\theta)` of the local score at its own
parameter are smooth functions. Measured at points drawn from the prior, they are fitted by polynomials (products of
Legendre polynomials of bounded total degree), the degree chosen by points held out; for the covariance they give the
logarithms of D and the entries of U in :math:`V = U D U^\top`, so that it is one everywhere. A fit pools the
simulations of all points, so it is worth many more of them at any one; how many, ``num_simulated``, is measured on the
points held out.

A mean over the simulator's covariates holds for sets with the same law of covariates. The fit remembers that law, the
columns that ``simulator.like`` leaves alone, and refuses sets of another.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fishnets.algebra.cholesky import cholesky
from fishnets.algebra.packing import pack_symmetric, packed_size, triangle_from_packed
from fishnets.errors import ConfigError, DataError
from fishnets.ragged import Sets
from fishnets.sets.centring import Centring
from fishnets.sets.pools import LocalModel, Pools
from fishnets.sets.sources import Simulator, simulate

__all__ = ["StoredCentring", "fit_centring"]

FEWEST_POINTS = 32
DEGREES = (2, 3, 4, 5, 6, 8, 10, 12, 16)
LAW_SIZE = 4096  # rows of covariates remembered
REFUSED = 1e-6  # a law is refused when as large a distance comes by chance this rarely


@dataclass(frozen=True, eq=False)
class StoredCentring:
    """Polynomials for mean, slope and covariance of the local score.

    Args:
        low: Lower corner of the fitted region, shape (p,).
        high: Upper corner, shape (p,); points outside are treated as on its edge.
        orders: Orders of the Legendre polynomials of each term, int64, shape (m, p).
        coefficients: Of each term, for the entries of b, A and V in the form of a factor, shape (m, p + p² + p(p+1)/2).
        num_simulated: Simulated data at a single point that the fit is worth, shape ().
        total_simulated: Data simulated for the fit, int64, shape ().
        columns: Columns that are covariates, int64, shape (c,).
        law: Covariates as they were in the fit, sorted column by column, shape (rows, c).
    """

    low: Tensor
    high: Tensor
    orders: Tensor
    coefficients: Tensor
    num_simulated: Tensor
    total_simulated: Tensor
    columns: Tensor
    law: Tensor

    def at(self, points: Tensor) -> Centring:
        """The centring at points (B, p)."""
        p, self = self.orders.shape[1], self.to(points.device)
        unit = ((2 * points - self.low - self.high) / (self.high - self.low)).clamp(-1, 1)
        values = legendre(unit, self.orders) @ self.coefficients
        intercept, slope, packed = values.split([p, p * p, packed_size(p)], dim=1)
        spread = _covariance(packed)
        number = self.num_simulated.expand(len(points))
        none = torch.zeros(len(points), dtype=torch.int64, device=points.device)
        return Centring(points, intercept, slope.unflatten(1, (p, p)), spread, spread, number, none)

    def expect_law(self, sets: Sets) -> None:
        """Raises :class:`DataError` unless the covariates, of all sets and of each one, follow the law of the fit."""
        if not len(self.columns):
            return
        self._expect_law(sets.values, "the sets", REFUSED)
        for i, rows in enumerate(sets.to_list()):
            self._expect_law(rows, f"set {i}", REFUSED / len(sets))

    def _expect_law(self, rows: Tensor, whose: str, chance: float) -> None:
        for position, column in enumerate(self.columns.tolist()):
            observed = rows[:, column].float().sort().values  # in one precision, or equal values would differ
            distance = _distance(observed, self.law[:, position].float())
            allowed = math.sqrt(-math.log(chance / 2) / 2 * (1 / max(1, len(observed)) + 1 / len(self.law)))
            if distance > allowed:
                raise DataError(
                    f"Column {column} of {whose} follows another law than the covariates that the stored centring was "
                    f"fitted under: their distributions differ by {distance:.3f}, and up to {allowed:.3f} would be "
                    "chance. Give `simulator=...`, whose `like` redraws data at the observed covariates, or "
                    "`centre=False`."
                )

    def tensors(self) -> dict[str, Tensor]:
        """Everything, by name."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def to(self, device: torch.device | str) -> StoredCentring:
        """Copies to a device."""
        return StoredCentring(**{name: tensor.to(device) for name, tensor in self.tensors().items()})


def fit_centring(
    model: LocalModel,
    simulator: Simulator,
    num_data: int,
    num_points: int,
    generator: torch.Generator,
    chunk: int,
) -> StoredCentring:
    """Measures the local score at points of the prior and fits polynomials, for :meth:`Fishnet.fit_centring`."""
    pools = Pools(model, simulator, 0.5, "simulated", generator, chunk)
    p = len(model.prior.mean)
    fewest = max(FEWEST_POINTS, math.ceil(4 * (p + 1) * (p + 2) / 3))  # a third more than two for each quadratic term
    each = max(100, 50 * p)
    if num_points < fewest or num_data < each * num_points:
        raise ConfigError(
            f"`num_points` is {num_points} and `num_data` {num_data} but at least {fewest} points with {each} data "
            "each were expected."
        )
    points = model.prior.sample(num_points, generator).to(torch.float64)
    few = points[:FEWEST_POINTS].float()
    size = torch.full((len(few),), LAW_SIZE // len(few), device=few.device)
    typical = simulate(simulator, few, size, generator, model.num_features)
    columns, law = _covariates(simulator, typical, few, generator)
    pools = replace(pools, simulator=_without_like(simulator))
    half = num_data // (2 * num_points)
    wanted, on_a_side = [half] * num_points, [half // (2 * points.shape[1])] * num_points
    empty = Sets(typical.values[:0], torch.zeros(num_points + 1, dtype=torch.int64, device=points.device))
    return _fitted(points, pools.measured(empty, points, points, wanted, on_a_side), columns, law)


def _fitted(points: Tensor, measured: Centring, columns: Tensor, law: Tensor) -> StoredCentring:
    """Polynomials of the degree that predicts held-out points best, refitted to all."""
    low, high = points.amin(0), points.amax(0)
    unit = (2 * points - low - high) / (high - low)
    targets = torch.cat([measured.intercept, measured.slope.flatten(1), _packed_factor(measured.spread)], dim=1)
    held = torch.arange(len(points), device=points.device) % 4 == 0
    p, whitener = points.shape[1], torch.linalg.inv(measured.spread)
    best: tuple[float, Tensor] | None = None
    for degree in DEGREES:
        if 2 * math.comb(p + degree, degree) > int((~held).sum()):
            break
        orders = _orders(p, degree).to(points.device)
        basis = legendre(unit, orders)
        coefficients = torch.linalg.lstsq(basis[~held], targets[~held]).solution
        gap = (basis[held] @ coefficients - targets[held])[:, :p].unsqueeze(-1)
        error = float((gap.mT @ whitener[held] @ gap).mean()) / p
        if best is None or error < best[0]:
            best = (error, orders)
    assert best is not None
    error, orders = best
    basis = legendre(unit, orders)
    coefficients = torch.linalg.lstsq(basis, targets).solution.contiguous()  # as a file keeps it: products round alike
    per_point = float(measured.num_simulated.mean())
    of_fit = max(error - 1 / per_point, len(orders) / (len(points) * per_point))  # variance of b, in units of V
    total = measured.total_simulated.sum()
    return StoredCentring(low, high, orders, coefficients, points.new_tensor(1 / of_fit), total, columns, law)


def _packed_factor(covariance: Tensor) -> Tensor:
    r"""Entries (B, p(p+1)/2) of U below and of :math:`\tfrac12\ln D` on the diagonal, where :math:`V = U D U^\top`."""
    factor = cholesky(covariance, "spread")
    diagonal = factor.diagonal(dim1=-2, dim2=-1)
    return pack_symmetric((factor / diagonal.unsqueeze(-2)).tril(-1) + torch.diag_embed(diagonal.log()))


def _covariance(packed: Tensor) -> Tensor:
    """Covariances (B, p, p) from the entries of their factors."""
    entries = triangle_from_packed(packed)
    diagonal = entries.diagonal(dim1=-2, dim2=-1).exp()
    factor = entries.tril(-1) * diagonal.unsqueeze(-2) + torch.diag_embed(diagonal)
    return factor @ factor.mT


def legendre(unit: Tensor, orders: Tensor) -> Tensor:
    """Products of Legendre polynomials: points in the unit cube (B, p) and orders (m, p) to terms (B, m).

    Example:
        >>> legendre(torch.tensor([[0.5, 1.0]]), torch.tensor([[0, 0], [2, 1]]))
        tensor([[ 1.0000, -0.1250]])
    """
    highest = int(orders.max())
    table = [torch.ones_like(unit), unit]
    for k in range(1, highest):
        table.append(((2 * k + 1) * unit * table[k] - k * table[k - 1]) / (k + 1))
    stacked = torch.stack(table[: highest + 1])  # (orders, B, p)
    terms = [stacked[orders[:, j], :, j] for j in range(unit.shape[1])]
    return torch.stack(terms).prod(0).mT


def _orders(num_params: int, degree: int) -> Tensor:
    """All orders (m, p) of a total degree up to the given one."""
    terms = (itertools.combinations_with_replacement(range(num_params), total) for total in range(degree + 1))
    return torch.tensor([[term.count(j) for j in range(num_params)] for term in itertools.chain.from_iterable(terms)])


def _covariates(
    simulator: Simulator, typical: Sets, theta: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The columns that ``like`` leaves alone (c,), and their sorted values (rows, c)."""
    like: Any = getattr(simulator, "like", None)
    if not callable(like):
        columns = torch.zeros(0, dtype=torch.int64, device=typical.device)
    else:
        redrawn = like(typical, theta.to(typical.values), generator)
        rounding = 16 * torch.finfo(typical.values.dtype).eps * typical.values.abs().amax(0)  # of a column read back
        columns = ((redrawn.values - typical.values).abs() <= rounding).all(0).nonzero().flatten()
    return columns, typical.values[:, columns].to(torch.float64).sort(0).values


def _without_like(simulator: Simulator) -> Simulator:
    """The simulator with covariates of its own law."""

    def fresh(theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
        return simulator(theta, size, generator)

    return fresh


def _distance(a: Tensor, b: Tensor) -> float:
    """Kolmogorov-Smirnov distance of two sorted samples."""
    if not len(a):
        return 0.0
    a, b = a.contiguous(), b.contiguous()
    both = torch.cat([a, b])
    gap = torch.searchsorted(a, both, right=True) / len(a) - torch.searchsorted(b, both, right=True) / len(b)
    return float(gap.abs().max())
