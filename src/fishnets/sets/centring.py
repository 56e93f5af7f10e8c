r"""Centring: what simulations say of a learned score, and the information that is left once it is heard.

A true score has mean zero at its own parameter. A learned one, :math:`t(d; \theta_*)`, is off by a little, which is
harmless in small sets and fatal in large ones, where :math:`n` times the little outgrows the noise :math:`\sqrt n`. A
simulator can measure it. Per datum,

.. math::
    b = \mathrm E_{\theta'}[t], \qquad
    A = \partial_\theta\, \mathrm E_\theta[t] \,\big|_{\theta'}, \qquad
    V = \mathrm{Cov}_{\theta'}[t],

where the data are drawn at :math:`\theta'`, the expansion point itself or one near it. Whatever the network is, a set's
summed score :math:`T` has, for parameters near :math:`\theta'`, mean :math:`n(b + A(\theta - \theta'))` and covariance
:math:`nV`; with :math:`b` known from :math:`M` simulated data only, :math:`S = nV + n^2 V_b/M`. The information in such
a summary (the paper's eq. 1), with :math:`\theta'` its fiducial, is

.. math:: t_c = n A^\top S^{-1} (T - n b), \qquad F_c = n^2 A^\top S^{-1} A,

whose inverse is the sandwich :math:`A^{-1} V A^{-\top} (1 + n/M)/n`. An exact score has :math:`A = V = F`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fishnets.algebra.information import Information
from fishnets.errors import NotPositiveDefiniteError, describe_rows

__all__ = ["Centring"]

FLATTEST = 1e-12  # smallest share of the largest information that a direction may hold: less is rounding


@dataclass(frozen=True, eq=False)
class Centring:
    """Mean, slope and covariance of the local score of one datum, for each of B sets.

    Args:
        around: Parameters of the simulated data, shape (B, p).
        intercept: Mean score b, shape (B, p).
        slope: Derivative A of the mean score with respect to the parameters of the data, shape (B, p, p).
        spread: Covariance V of the score, shape (B, p, p).
        noise: Covariance V_b behind the intercept's own noise, shape (B, p, p); the spread, unless that was taken from
            observed data.
        num_simulated: Data behind the intercept, M, shape (B,).
        total_simulated: Data simulated for everything, the slope included, int64, shape (B,).

    Example:
        >>> one, point = torch.ones(1, 1, 1), torch.zeros(1, 1)
        >>> number = torch.tensor([400])
        >>> centring = Centring(point, torch.tensor([[0.5]]), one, one, one, number, number)
        >>> raw = Information(torch.tensor([[60.0]]), 90 * one, point, torch.tensor([100]))
        >>> centring.apply(raw).estimate(), centring.added_noise(raw.count)
        (tensor([[0.1000]]), tensor([0.2500]))
    """

    around: Tensor
    intercept: Tensor
    slope: Tensor
    spread: Tensor
    noise: Tensor
    num_simulated: Tensor
    total_simulated: Tensor

    @staticmethod
    def of_nothing(around: Tensor) -> Centring:
        """The centring of empty sets, which leaves them without information; ``around`` has shape (B, p)."""
        unit = torch.eye(around.shape[1], dtype=around.dtype, device=around.device).expand(len(around), -1, -1)
        number = around.new_full((len(around),), torch.inf)
        return Centring(around, torch.zeros_like(around), unit, unit, unit, number, torch.zeros_like(number).long())

    def updated(self, rows: Tensor, part: Centring) -> Centring:
        """The centring with that of some rows replaced."""
        pairs = ((getattr(self, field.name), getattr(part, field.name)) for field in fields(self))
        return Centring(*(whole.index_copy(0, rows, new) for whole, new in pairs))

    def added_noise(self, count: Tensor) -> Tensor:
        """Share by which the noise of the intercept adds to the variance of sets of these sizes, shape (B,)."""
        return count / self.num_simulated

    def apply(self, information: Information) -> Information:
        """The information of the summed scores as simulations say, in place of what the networks say of themselves.

        Args:
            information: Local information of B sets.

        Returns:
            Centred information, at the points the simulated data were drawn around.
        """
        n = information.count.to(self.slope).unsqueeze(-1)  # (B, 1)
        covariance = self.spread + self.added_noise(n.squeeze(-1)).view(-1, 1, 1) * self.noise  # S / n
        weights = (_inverse(covariance) @ self.slope).mT  # Aᵀ (S/n)⁻¹
        per_datum = weights @ self.slope
        self._refuse_singular(per_datum, information.count)
        fisher = n.unsqueeze(-1) * 0.5 * (per_datum + per_datum.mT)
        score = (weights @ (information.score - n * self.intercept).unsqueeze(-1)).squeeze(-1)
        return Information(score, fisher, self.around, information.count)

    def _refuse_singular(self, fisher: Tensor, count: Tensor) -> None:
        """Raises unless the slope tells every direction of the parameters, in units in which the diagonal is one.

        A set of no more data than parameters need not: at the covariates of one datum no score can.
        """
        scaled, _ = _unit_diagonal(fisher)
        finite = torch.isfinite(scaled).flatten(1).all(1)
        lowest = torch.linalg.eigvalsh(torch.where(finite.view(-1, 1, 1), scaled, torch.zeros_like(scaled)))
        bad = ~finite | ((lowest[:, 0] < FLATTEST) & (count > fisher.shape[-1]))
        if bool(bad.any()):
            rows = bad.nonzero().flatten().tolist()
            raise NotPositiveDefiniteError(
                f"The slope of the mean score is singular for sets {describe_rows(rows)}; that of set {rows[0]} is "
                f"{self.slope[rows[0]].tolist()}. The learned score does not tell these parameters apart there: train "
                "longer, or leave out a parameter that the data do not constrain."
            )


def _unit_diagonal(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices (B, p, p) in units in which their diagonal is one, and these units (B, p, p)."""
    unit = matrix.diagonal(dim1=-2, dim2=-1).clamp(min=1e-300).rsqrt()
    units = unit.unsqueeze(-1) * unit.unsqueeze(-2)
    return matrix * units, units


def _inverse(covariance: Tensor) -> Tensor:
    """Inverses of covariances (B, p, p) where they have any extent; NaN for those that are not finite."""
    scaled, units = _unit_diagonal(covariance)
    finite = torch.isfinite(scaled).flatten(1).all(1).view(-1, 1, 1)
    inverse = torch.linalg.pinv(torch.where(finite, scaled, torch.zeros_like(scaled)), hermitian=True, rtol=1e-12)
    return torch.where(finite, inverse * units, inverse.new_full((), torch.nan))
