r"""Distances in a flat universe, by quadrature, with their derivatives.

.. math::
    \mu(z) = 5 \log_{10} \frac{d_L(z)}{10\,\mathrm{pc}}, \quad
    d_L = (1+z) \frac{c}{H_0} D(z), \quad D = \int_0^z \frac{dz'}{E(z')}, \quad
    E^2 = \Omega_m (1+z)^3 + (1-\Omega_m) (1+z)^{3(1+w)},

with :math:`H_0 = 70` km/s/Mpc. In :math:`u = \ln(1+z)` the integrand is analytic and, for :math:`w \ge -2`, no
singularity comes nearer than :math:`\pi/6`, so sixteen Gauss-Legendre nodes give moduli to 1e-10 magnitudes up to
z = 2.5 (1e-6 up to z = 10).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["MAGNITUDES", "REFERENCE", "DistancePath", "reference_modulus", "unit_nodes"]

NODES = 16  # of the distance integral
MAGNITUDES = 5 / math.log(10)  # per unit of the natural logarithm of a distance
HUBBLE_DISTANCE = 299_792.458 / 70  # c/H0 in Mpc
REFERENCE = 0.3  # matter density of the flat LambdaCDM universe from which moduli are measured


class DistancePath(NamedTuple):
    """Nodes on the way to redshifts (*), (*, NODES) each, and distances in units of c/H0 for parameters (*, 1)."""

    u: Tensor  # ln(1 + z)
    matter: Tensor  # (1 + z)³, the density of matter relative to today's
    weights: Tensor  # of the integral over z

    @staticmethod
    def until(z: Tensor) -> DistancePath:
        """The nodes from here to redshifts (*)."""
        nodes, weights = unit_nodes(NODES, z)
        reach = torch.log1p(z).unsqueeze(-1)
        stretch = (u := reach * nodes).exp()
        return DistancePath(u, stretch * stretch * stretch, reach * weights * stretch)

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


def reference_modulus(z: Tensor) -> Tensor:
    """Distance moduli for a matter density of 0.3 and a cosmological constant, shape (*), at redshifts (*)."""
    distance = HUBBLE_DISTANCE * (1 + z) * DistancePath.until(z).distance(REFERENCE)
    return MAGNITUDES * distance.log() + 25  # 1 Mpc is 10^5 times 10 pc


def unit_nodes(number: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights on (0, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(number)
    return torch.from_numpy(0.5 * (nodes + 1)).to(like), torch.from_numpy(0.5 * weights).to(like)
