r"""The training losses of stacked networks on a batch of sets, in standardised data and parameters.

The first networks are trained on the Gaussian loss under the model's prior. Local networks :math:`t(d; \theta_*)`,
:math:`F(d; \theta_*)` take the expansion point as an extra input. They are trained on the same sets and the same loss
at points scattered around the truth,

.. math:: \theta_* = \theta + w\,\epsilon, \qquad \epsilon \sim \mathcal N(0, 1),

so that, before the data are seen, the truth has the law :math:`\mathcal N(\theta_*, w^2)`: exactly the Gaussian prior
that the loss wants, whatever the prior of the parameters is (a Normal one multiplies it, any other is taken as flat
over a width). The width :math:`w` is what the first networks leave uncertain of a parameter given the others, for the
set at hand, at most ``WIDEST`` prior standard deviations: narrow enough for a quadratic, wide enough for each set to
tell something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from fishnets.algebra.gaussian import gaussian_loss, gaussian_loss_packed
from fishnets.algebra.packing import diagonal_positions, pack_symmetric, unpack_symmetric
from fishnets.networks import TwinNetwork
from fishnets.ops.segment_information import segment_information
from fishnets.priors import Normal
from fishnets.ragged import Sets
from fishnets.sets.recipe import Recipe
from fishnets.sets.sources import Batch, Source
from fishnets.sets.standards import Standards
from fishnets.sets.training import Losses

__all__ = ["LocalObjective", "Objective", "build_losses", "build_objective", "evaluator", "local_rows"]

Evaluator = Callable[..., tuple[Tensor, Tensor]]

UNROLLED = 6  # up to this many parameters the loss is written out entry by entry
WIDEST = 0.3  # of the prior's standard deviation


class Model(Protocol):
    """What the losses ask of a model."""

    recipe: Recipe
    networks: TwinNetwork
    local: TwinNetwork | None

    @property
    def standards(self) -> Standards: ...


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


def build_losses(model: Model, precision: str, compiling: str, source: Source) -> tuple[Losses, Losses | None]:
    """Losses of a model in float32 and, where it was asked for or pays, in bfloat16.

    Args:
        model: The model, on the device of the source.
        precision: ``"float32"``, ``"bfloat16"``, or ``"auto"`` for what pays.
        compiling: ``"on"``, ``"off"``, or ``"auto"`` for compiling on a GPU.
        source: The batches to come.

    Returns:
        The losses in float32, and those in bfloat16 or None.
    """
    rows = source.typical.values[:1].float()
    half = precision == "bfloat16" or (precision == "auto" and _half_pays(model, rows))
    compiled = compiling == "on" or (compiling == "auto" and model.standards.fiducial.is_cuda)
    exact = build_objective(model, False, compiled and not half)  # too few steps to pay for compiling
    return exact, build_objective(model, True, compiled) if half else None


def build_objective(model: Model, half: bool, compiled: bool) -> Objective | LocalObjective:
    """The objective of a model's first networks, or of both where it has local ones; settings as in these classes."""
    standards = model.standards
    first = Objective(model.networks, standards, half, compiled)
    if model.local is None:
        return first
    is_normal = isinstance(model.recipe.prior, Normal)
    precision = standards.prior_precision if is_normal else torch.zeros_like(standards.prior_precision)
    return LocalObjective(first, model.local, precision, compiled)


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
    raw = torch.cat(outputs, dim=-1).to(torch.float32)
    return segment_information(raw, outputs[0].shape[-1], sets.offsets, factor, common_size=sets.common_size)


def _loss(score: Tensor, precision: Tensor, offset: Tensor) -> Tensor:
    """Losses (K, B) of scores, packed precisions and the truths' offsets (B, p) from the expansion points."""
    expanded = offset.expand_as(score)
    if score.shape[-1] <= UNROLLED:
        return gaussian_loss_packed(score, precision, expanded)
    return gaussian_loss(score, unpack_symmetric(precision), expanded)


def _half_pays(model: Model, rows: Tensor) -> bool:
    return rows.is_cuda and (model.networks.fuses(rows) or model.recipe.network.width >= 128)
