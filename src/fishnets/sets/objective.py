"""The training loss of stacked networks on a batch of sets, in standardised data and parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fishnets.algebra.gaussian import gaussian_loss
from fishnets.algebra.packing import unpack_symmetric
from fishnets.networks import TwinNetwork
from fishnets.ops.segment_information import segment_information
from fishnets.sets.sources import Batch

__all__ = ["Objective", "Standards"]


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
        self.prior_precision = standards.prior_precision.to(torch.float32)
        self.prior_pull = standards.prior_pull.to(torch.float32)
        self.evaluate: Callable[..., tuple[Tensor, Tensor]] = networks
        self.sum: Callable[..., Tensor] = _losses
        if compiled:
            self.sum = torch.compile(_losses, dynamic=True)
            if not (half and networks.fuses(standards.feature_shift.to(torch.float32).unsqueeze(0))):
                self.evaluate = torch.compile(networks, dynamic=True)

    def __call__(self, batch: Batch) -> Tensor:
        """Losses, shape (K, B)."""
        size = batch.sets.common_size
        add = _losses if size is None else self.sum  # looking at unequal sizes cannot be compiled
        score, raw_factor = self.evaluate(self.standards.features(batch.sets.values), self.half)
        offset = self.standards.parameters(batch.theta)
        return add(
            score, raw_factor, batch.sets.offsets, size, self.factor, self.prior_precision, self.prior_pull, offset
        )


def _losses(
    score: Tensor,  # (K, n, p)
    raw_factor: Tensor,  # (K, n, w)
    ptr: Tensor,  # (B + 1,)
    common_size: int | None,
    factor: str,
    prior_precision: Tensor,  # (p, p)
    prior_pull: Tensor,  # (p,)
    offset: Tensor,  # (B, p)
) -> Tensor:
    score, fisher_packed = segment_information(score, raw_factor, ptr, factor, torch.float32, common_size)
    precision = unpack_symmetric(fisher_packed) + prior_precision
    return gaussian_loss(score + prior_pull, precision, offset.expand_as(score))
