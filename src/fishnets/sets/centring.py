r"""Centring: what simulations say of a learned score, and the information that is left once it is heard.

A true score has mean zero at its own parameter. A learned one, :math:`t(d; \theta_*)`, is off by a little, which is
harmless in small sets and fatal in large ones, where :math:`n` times the little outgrows the noise :math:`\sqrt n`. A
simulator can measure it. Per datum, at the expansion point,

.. math::
    b = \mathrm E_{\theta_*}[t], \qquad
    A = \partial_\theta\, \mathrm E_\theta[t] \,\big|_{\theta_*}, \qquad
    V = \mathrm{Cov}_{\theta_*}[t],

and whatever the network is, a set's summed score :math:`T` near :math:`\theta_*` has mean :math:`n(b + A(\theta -
\theta_*))` and covariance :math:`nV`; with :math:`b` known from :math:`M` simulated data only, :math:`S = nV + n^2 V_b/M`.
The information in such a summary (the paper's eq. 1) is

.. math:: t_c = n A^\top S^{-1} (T - n b), \qquad F_c = n^2 A^\top S^{-1} A,

whose inverse is the sandwich :math:`A^{-1} V A^{-\top} (1 + n/M)/n`. An exact score has :math:`A = V = F`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fishnets.algebra.information import Information
from fishnets.errors import NotPositiveDefiniteError, describe_rows

__all__ = ["Centring"]

FLATTEST = 1e-6  # smallest share of the largest information that a direction may hold


@dataclass(frozen=True, eq=False)
class Centring:
    """Mean, slope and covariance of the local score of one datum, for each of B sets at its own point.

    Args:
        fiducial: Expansion points, shape (B, p).
        intercept: Mean score b at the points, shape (B, p).
        slope: Derivative A of the mean score with respect to the parameters of the data, shape (B, p, p).
        spread: Covariance V of the score, shape (B, p, p).
        num_simulated: Data behind the intercepts, M, shape (B,); infinite where they are exact.
        total_simulated: Data simulated for everything, slopes included, shape (B,).
        noise: Covariance behind the intercepts' own noise, shape (B, p, p), where it is not the spread.

    Example:
        >>> point = torch.zeros(1, 1)
        >>> centring = Centring(point, torch.tensor([[0.5]]), torch.ones(1, 1, 1), torch.ones(1, 1, 1), torch.tensor([400.0]))
        >>> raw = Information(torch.tensor([[60.0]]), torch.tensor([[[90.0]]]), point, torch.tensor([100]))
        >>> centred = centring.apply(raw)
        >>> centred.estimate(), centring.added_noise(raw.count)
        (tensor([[0.1000]]), tensor([0.2500]))
    """

    fiducial: Tensor
    intercept: Tensor
    slope: Tensor
    spread: Tensor
    num_simulated: Tensor
    total_simulated: Tensor | int = 0
    noise: Tensor | None = None

    def added_noise(self, count: Tensor) -> Tensor:
        """Share by which the noise of the intercept adds to the variance of sets of these sizes, shape (B,)."""
        return count / self.num_simulated

    def apply(self, information: Information) -> Information:
        """The information of the summed scores as simulations say, in place of what the networks say of themselves.

        Args:
            information: Local information at the same points, shape (B,).

        Returns:
            Centred information at the same points.
        """
        n = information.count.to(self.slope).unsqueeze(-1)  # (B, 1)
        noise = self.spread if self.noise is None else self.noise
        rate = (n.squeeze(-1) / self.num_simulated).view(-1, 1, 1)
        covariance = self.spread + rate * noise  # S / n
        weights = torch.linalg.solve(covariance, self.slope).mT  # Aᵀ (S/n)⁻¹
        fisher = n.unsqueeze(-1) * (weights @ self.slope)
        self._refuse_singular(weights @ self.slope)
        score = (weights @ (information.score - n * self.intercept).unsqueeze(-1)).squeeze(-1)
        return Information(score, 0.5 * (fisher + fisher.mT), information.fiducial, information.count)

    def _refuse_singular(self, fisher: Tensor) -> None:
        """Raises unless the slope tells every direction of the parameters, in units in which the diagonal is one."""
        scale = fisher.diagonal(dim1=-2, dim2=-1).clamp(min=1e-300).rsqrt()
        scaled = fisher * scale.unsqueeze(-1) * scale.unsqueeze(-2)
        finite = torch.isfinite(scaled).all(-1).all(-1)
        lowest = torch.linalg.eigvalsh(torch.where(finite.view(-1, 1, 1), scaled, torch.eye(scaled.shape[-1]).to(scaled)))
        bad = ~finite | (lowest[:, 0] < FLATTEST)
        if bool(bad.any()):
            rows = bad.nonzero().flatten().tolist()
            raise NotPositiveDefiniteError(
                f"The slope of the mean score is singular for sets {describe_rows(rows)}; that of set {rows[0]} is "
                f"{self.slope[rows[0]].tolist()}. The learned score does not tell these parameters apart there: train "
                "longer, or leave out a parameter that the data do not constrain."
            )
