r"""The training losses of stacked networks on a batch of sets, in standardised data and parameters.

The first networks are trained on the Gaussian loss under the model's prior. Local networks :math:`t(d; \theta_*)`,
:math:`F(d; \theta_*)` take the expansion point as an extra input. They are trained on the same sets and the same loss
at points scattered around the truth,

.. math:: \theta_* = \theta + w\,\epsilon, \qquad \epsilon \sim \mathcal N(0, 1),

so that, before the data are seen, the truth has the law :math:`\mathcal N(\theta_*, w^2)`: exactly the Gaussian prior
that the loss wants, whatever the prior of the parameters is (a Normal one multiplies it, any other is taken as flat
over a width). The width :math:`w` is what the first networks leave uncertain of the set at hand, at most ``WIDEST``
prior standard deviations: narrow enough for a quadratic, wide enough for each set to tell something.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fishnets.algebra.gaussian import gaussian_loss, gaussian_loss_packed
from fishnets.algebra.packing import diagonal_positions, pack_symmetric, unpack_symmetric
from fishnets.networks import TwinNetwork
from fishnets.ops.segment_information import segment_information
from fishnets.ragged import Sets
from fishnets.sets.sources import Batch

__all__ = ["LocalObjective", "Objective", "Standards", "evaluator", "local_rows"]

UNROLLED = 6  # up to this many parameters the loss is written out entry by entry
WIDEST = 0.3  # of the prior's standard deviation


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


Evaluator = Callable[..., tuple[Tensor, Tensor]]


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
        self.evaluate = evaluator(networks, standards.feature_shift, half, compiled)

    def __call__(self, batch: Batch) -> Tensor:
        """Losses, shape (K, B)."""
        return self.with_precision(batch)[0]

    def with_precision(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Losses, shape (K, B), and packed posterior precisions, shape (K, B, p(p+1)/2)."""
        rows = self.standards.features(batch.sets.values).to(torch.float32)  # standardised first: float64 may need it
        score, fisher_packed = _summed(self.evaluate(rows, self.half), batch.sets, self.factor)
        precision = fisher_packed + self.prior_packed
        return _loss(score + self.prior_pull, precision, self.standards.parameters(batch.theta)), precision


class LocalObjective:
    """Losses of the first networks plus those of the local ones around the truth.

    Args:
        first: The objective of the first networks.
        networks: The local networks, whose rows end in the expansion point.
        prior_precision: Precision of a Normal prior in standardised parameters, shape (p, p); zero for any other prior.
        compiled: Use ``torch.compile``, except for networks that run as fused kernels already.
    """

    def __init__(self, first: Objective, networks: TwinNetwork, prior_precision: Tensor, compiled: bool) -> None:
        self.first, self.factor = first, networks.factor
        self.prior_precision = prior_precision.to(torch.float32)
        self.prior_packed = pack_symmetric(self.prior_precision)
        self.is_normal = bool((prior_precision != 0).any())
        example = torch.cat([first.standards.feature_shift, first.standards.fiducial])
        self.evaluate = evaluator(networks, example, first.half, compiled)
        self.diagonal = diagonal_positions(networks.num_params, example.device)

    def __call__(self, batch: Batch) -> Tensor:
        """Losses, shape (K, B)."""
        assert batch.noise is not None
        loss, precision = self.first.with_precision(batch)
        standards, noise = self.first.standards, batch.noise.to(torch.float32)
        width = precision.detach()[..., self.diagonal].mean(0).rsqrt().clamp(max=WIDEST)  # (B, p)
        point = standards.parameters(batch.theta) + width * noise
        rows = local_rows(standards.features(batch.sets.values).to(torch.float32), point, batch.sets)
        score, fisher_packed = _summed(self.evaluate(rows, self.first.half), batch.sets, self.factor)
        around = self.prior_packed.repeat(len(width), 1)
        around[:, self.diagonal] += width.square().reciprocal()
        if self.is_normal:
            score = score + (self.first.prior_pull - point @ self.prior_precision)
        return loss + _loss(score, fisher_packed + around, -width * noise)


def evaluator(networks: TwinNetwork, example: Tensor, half: bool, compiled: bool) -> Evaluator:
    """The networks, compiled if asked to unless rows like the example (d,) run through fused kernels anyway."""
    if compiled and not (half and networks.fuses(example.to(torch.float32).unsqueeze(0))):
        return torch.compile(networks, dynamic=True)
    return networks


def local_rows(features: Tensor, point: Tensor, sets: Sets) -> Tensor:
    """Standardised features (n, d) followed by the standardised expansion point of each row's set, (B, p)."""
    if sets.common_size is not None:
        repeated = point.unsqueeze(1).expand(-1, sets.common_size, -1).flatten(0, 1)
    else:
        repeated = point[sets.index]
    return torch.cat([features, repeated.to(features)], dim=1)


def _summed(outputs: tuple[Tensor, Tensor], sets: Sets, factor: str) -> tuple[Tensor, Tensor]:
    """Scores (K, B, p) and packed Fisher matrices (K, B, p(p+1)/2) of sets."""
    return segment_information(*outputs, sets.offsets, factor, torch.float32, sets.common_size)


def _loss(score: Tensor, precision: Tensor, offset: Tensor) -> Tensor:
    """Losses (K, B) of scores, packed precisions and the truths' offsets (B, p) from the expansion points."""
    expanded = offset.expand_as(score)
    if score.shape[-1] <= UNROLLED:
        return gaussian_loss_packed(score, precision, expanded)
    return gaussian_loss(score, unpack_symmetric(precision), expanded)
