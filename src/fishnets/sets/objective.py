"""The training loss of stacked networks on a batch of sets, in standardised data and parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fishnets.algebra.gaussian import gaussian_loss, gaussian_loss_packed
from fishnets.algebra.packing import pack_symmetric, unpack_symmetric
from fishnets.networks import TwinNetwork
from fishnets.ops.segment_information import segment_information
from fishnets.sets.sources import Batch

__all__ = ["Objective", "Standards"]

UNROLLED = 6  # up to this many parameters the loss is written out entry by entry


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

    def features(self, values: Tensor) -> Tensor:
        """Standardised rows, in the dtype and on the device of the rows."""
        return (values - self.feature_shift.to(values)) / self.feature_scale.to(values)

    def parameters(self, theta: Tensor) -> Tensor:
        """Standardised parameters, float32."""
        return ((theta - self.fiducial) / self.theta_scale).to(torch.float32)


class Objective:
    """Losses of every member on every set of a batch.

    Args:
        networks: The stacked networks.
        standards: Units of data and parameters, and the prior.
        half: Run the networks' products in bfloat16. Everything after them is float32.
        compiled: Use ``torch.compile``, except for networks that run as fused kernels already.
    """

    def __init__(self, networks: TwinNetwork, standards: Standards, half: bool, compiled: bool) -> None:
        self.standards, self.half, self.factor = standards, half, networks.factor
        self.prior_packed = pack_symmetric(standards.prior_precision).to(torch.float32)
        self.prior_pull = standards.prior_pull.to(torch.float32)
        self.evaluate: Callable[..., tuple[Tensor, Tensor]] = networks
        if compiled and not (half and networks.fuses(standards.feature_shift.to(torch.float32).unsqueeze(0))):
            self.evaluate = torch.compile(networks, dynamic=True)

    def __call__(self, batch: Batch) -> Tensor:
        """Losses, shape (K, B)."""
        rows = self.standards.features(batch.sets.values).to(torch.float32)  # standardised first: float64 may need it
        score, raw_factor = self.evaluate(rows, self.half)
        score, fisher_packed = segment_information(
            score, raw_factor, batch.sets.offsets, self.factor, torch.float32, batch.sets.common_size
        )
        precision = fisher_packed + self.prior_packed
        offset = self.standards.parameters(batch.theta).expand_as(score)
        if score.shape[-1] <= UNROLLED:
            return gaussian_loss_packed(score + self.prior_pull, precision, offset)
        return gaussian_loss(score + self.prior_pull, unpack_symmetric(precision), offset)
