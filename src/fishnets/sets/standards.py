r"""Standards: the units in which networks see data and speak of parameters.

Networks see features of zero mean and unit spread and speak of :math:`u = (\theta - \theta_*) / s`, with :math:`s` the
prior's standard deviations. In these units the prior's precision is the inverse of its correlations :math:`R`, and its
score at the fiducial, where :math:`u = 0`, is

.. math:: R^{-1} (\mu - \theta_*) / s.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fishnets.priors import Prior

__all__ = ["Standards"]


@dataclass(frozen=True, eq=False)
class Standards:
    """What data and parameters are measured in, and the prior in these units.

    Attributes:
        feature_shift: Subtracted from features, shape (d,).
        feature_scale: Divides features, shape (d,).
        fiducial: Subtracted from parameters, shape (p,).
        theta_scale: Divides parameters, shape (p,).
        prior_precision: Precision of the prior in standardised parameters, shape (p, p).
        prior_pull: Its score at the fiducial, zero when that is the prior's mean, shape (p,).
    """

    feature_shift: Tensor
    feature_scale: Tensor
    fiducial: Tensor
    theta_scale: Tensor
    prior_precision: Tensor
    prior_pull: Tensor

    @staticmethod
    def make(num_features: int, prior: Prior, fiducial: Tensor) -> Standards:
        """The standards of a prior, in float64, with features as they are.

        Args:
            num_features: Width of a datum.
            prior: The prior.
            fiducial: Expansion point, shape (p,), float64.

        Returns:
            The standards.

        Example:
            >>> from fishnets.priors import Normal
            >>> standards = Standards.make(3, Normal([1.0], [4.0]), torch.tensor([0.0], dtype=torch.float64))
            >>> standards.theta_scale.item(), standards.prior_precision.item(), standards.prior_pull.item()
            (2.0, 1.0, 0.5)
        """
        covariance = prior.covariance.to(torch.float64)
        scale = covariance.diagonal().sqrt()
        precision = torch.linalg.inv(covariance / torch.outer(scale, scale))
        return Standards(
            feature_shift=torch.zeros(num_features, dtype=torch.float64),
            feature_scale=torch.ones(num_features, dtype=torch.float64),
            fiducial=fiducial.clone(),
            theta_scale=scale,
            prior_precision=0.5 * (precision + precision.mT),
            prior_pull=precision @ ((prior.mean.to(torch.float64) - fiducial) / scale),  # −C⁻¹(θ* − μ)
        )

    def features(self, values: Tensor) -> Tensor:
        """Standardised rows, in the dtype and on the device of the rows."""
        return (values - self.feature_shift.to(values)) / self.feature_scale.to(values)

    def parameters(self, theta: Tensor) -> Tensor:
        """Standardised parameters, float32."""
        return ((theta - self.fiducial) / self.theta_scale).to(torch.float32)
