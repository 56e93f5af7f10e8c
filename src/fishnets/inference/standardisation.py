r"""Columns of numbers brought to order one: a smooth trend taken off, then centred and scaled.

What a summary of n data says fluctuates by :math:`1/\sqrt n` about a smooth function of the parameters and of n. A
network that is to see the fluctuations at every n is given

.. math:: \sqrt{1 + n}\,\left[s - m(\theta, n)\right],

with m a cubic polynomial, fitted once by least squares. Whatever m leaves behind is for the network to learn.
"""

from __future__ import annotations

import math
from itertools import chain, combinations_with_replacement

import torch
from torch import Tensor, nn

__all__ = ["Standard", "Trend", "squash"]

MANY = 5  # drivers beyond which the polynomial is quadratic, to keep its terms below a hundred


class Standard(nn.Module):
    """Centre and spread of columns, measured once; a column that does not vary is mapped to zero.

    Args:
        width: Number of columns.
    """

    centre: Tensor
    spread: Tensor
    varies: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("spread", torch.ones(width, dtype=torch.float64))
        self.register_buffer("varies", torch.zeros(width, dtype=torch.bool))

    @torch.no_grad()
    def measure(self, columns: Tensor) -> None:
        """Takes the medians and half the widths of the central 68 % of columns (N, width), which few sets can move."""
        ordered = columns.sort(0).values
        low, mid, high = (ordered[round(level * (len(columns) - 1))] for level in (0.1587, 0.5, 0.8413))
        spread = 0.5 * (high - low)
        spread = torch.where(spread > 0, spread, columns.std(0, correction=0))  # most values equal, some not
        varies = spread > 1e-9 * (1 + columns.abs().amax(0))
        self.centre.copy_(mid)
        self.spread.copy_(torch.where(varies, spread, torch.ones_like(spread)))
        self.varies.copy_(varies)

    def forward(self, columns: Tensor) -> Tensor:
        """Standardised columns (*, width), zero where they never varied."""
        return (columns - self.centre) / self.spread * self.varies

    def restore(self, standard: Tensor) -> Tensor:
        """Columns from standardised ones."""
        return standard * self.spread + self.centre

    @property
    def log_det(self) -> Tensor:
        """Log-determinant of the standardisation over the columns that vary."""
        return -(self.spread.log() * self.varies).sum()


class Trend(nn.Module):
    r"""A polynomial m of a few drivers, times a known weight: what columns are expected to be.

    Args:
        drivers: Number of drivers k.
        width: Number of columns.
    """

    coefficients: Tensor

    def __init__(self, drivers: int, width: int) -> None:
        super().__init__()
        degree = 3 if drivers <= MANY else 2
        self.terms = list(chain(*(combinations_with_replacement(range(drivers), d) for d in range(degree + 1))))
        self.scale = Standard(drivers)
        self.register_buffer("coefficients", torch.zeros(len(self.terms), width, dtype=torch.float64))

    @torch.no_grad()
    def measure(self, columns: Tensor, drivers: Tensor, weight: Tensor) -> None:
        """Fits columns (N, width) by drivers (N, k) and weights (N,)."""
        self.scale.measure(drivers)
        basis = weight.unsqueeze(-1) * self._basis(drivers)
        normal = basis.mT @ basis
        ridge = 1e-8 * normal.diagonal().max() * torch.eye(len(normal), dtype=normal.dtype, device=normal.device)
        self.coefficients.copy_(torch.linalg.solve(normal + ridge, basis.mT @ columns))

    def forward(self, drivers: Tensor, weight: Tensor) -> Tensor:
        """Expected columns (*, width) for drivers (*, k) and weights (*)."""
        return weight.unsqueeze(-1) * (self._basis(drivers) @ self.coefficients)

    def _basis(self, drivers: Tensor) -> Tensor:
        parts = squash(self.scale(drivers)).unbind(-1)
        one = torch.ones_like(drivers[..., 0])
        return torch.stack([math.prod((parts[k] for k in term), start=one) for term in self.terms], dim=-1)


def squash(standard: Tensor) -> Tensor:
    """Standardised values with long tails drawn in: linear up to about 2, logarithmic beyond.

    Example:
        >>> squash(torch.tensor([1.0, 1000.0]))
        tensor([ 0.9824, 19.5069])
    """
    return 3 * torch.asinh(standard / 3)
