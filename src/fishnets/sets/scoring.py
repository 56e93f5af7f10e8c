r"""Scoring: from a first estimate to the root of the local score.

One global expansion cannot be optimal where the Fisher matrix depends on the parameters. Local networks give the
information of a set at any point :math:`\theta_*`, and Fisher scoring steps from point to point,

.. math:: \theta_* \leftarrow \theta_* + (F + C_p^{-1})^{-1}\,[t - C_p^{-1}(\theta_* - \mu_p)],

each pass one more sum over the data, until a step is small beside the posterior's width. With a simulator the score is
then centred (:mod:`fishnets.sets.centring`), first from a small pool, then from one large enough for the wanted loss of
information, and stepped to the root of what simulations say. Points stay in the prior's support; estimates may not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fishnets.algebra.gaussian import Gaussian
from fishnets.algebra.information import Information
from fishnets.errors import ConvergenceWarning
from fishnets.priors import Prior
from fishnets.ragged import Sets
from fishnets.sets.centring import Centring
from fishnets.sets.estimate import Estimate
from fishnets.sets.support import drawn_inside, supported

__all__ = ["CentringAt", "plain_estimate", "refined_estimate"]

SMALL_STEP = 0.01  # of the posterior's width: local steps have settled
CENTRED_STEP = 0.5  # likewise centred ones, each of which is exact to a few hundredths of its length
ROUGH = 10  # the pool of the first centred pass is this many times smaller

CentringAt = Callable[[Sets, Tensor, float], Centring]


class LocalModel(Protocol):
    """What scoring asks of a model."""

    @property
    def prior(self) -> Prior: ...

    def compress(self, sets: Sets, *, at: Tensor | None = None, chunk: int = ...) -> Information: ...


@dataclass(frozen=True, eq=False)
class _Pass:
    """What a pass over some sets found."""

    raw: Information
    information: Information
    posterior: Gaussian
    centring: Centring | None


def plain_estimate(model: LocalModel, sets: Sets, chunk: int) -> Estimate:
    """The posterior of the first networks, in one pass."""
    information = model.compress(sets, chunk=chunk)
    posterior = information.posterior(model.prior)
    every = torch.ones(len(sets), dtype=torch.bool, device=sets.device)
    none = torch.zeros(len(sets), dtype=torch.float64, device=sets.device)
    inside = supported(model.prior, posterior.mean)
    return Estimate(posterior, information, posterior.covariance, posterior.mean, every, inside, 1, none, none.long())


def refined_estimate(
    model: LocalModel, sets: Sets, centring_at: CentringAt | None, loss: float, passes: int, clamp: bool, chunk: int
) -> Estimate:
    """Local steps to the root, then, with centring, centred ones."""
    first = plain_estimate(model, sets, chunk)
    start = drawn_inside(model.prior, first.mean, model.prior.mean.to(first.mean))
    found = _settle(model, sets, start, lambda number, sets, at: None, SMALL_STEP, passes, chunk)
    found = replace(found, num_passes=found.num_passes + 1)
    if centring_at is not None:
        def centre(number: int, sets: Sets, at: Tensor) -> Centring:
            return centring_at(sets, at, min(0.5, loss * ROUGH) if number == 0 else loss)

        start = drawn_inside(model.prior, found.mean, found.information.fiducial)
        local = found
        found = _settle(model, sets, start, centre, CENTRED_STEP, passes, chunk, fewest=2)
        found = replace(found, num_passes=found.num_passes + local.num_passes)
    if clamp:
        mean = drawn_inside(model.prior, found.mean, found.information.fiducial)
        found = replace(found, posterior=Gaussian(mean, found.precision), inside=supported(model.prior, mean))
    for warning in found.warnings:
        warnings.warn(warning, ConvergenceWarning, stacklevel=4)
    return found


def _settle(
    model: LocalModel,
    sets: Sets,
    points: Tensor,
    centre: Callable[[int, Sets, Tensor], Centring | None],
    small: float,
    passes: int,
    chunk: int,
    fewest: int = 1,
) -> Estimate:
    """Steps every set from its point (B, p) until its step is small, sets that have settled left alone."""
    num_sets, device = len(sets), sets.device
    previous, moving = points.clone(), torch.arange(num_sets, device=device)
    settled = torch.zeros(num_sets, dtype=torch.bool, device=device)
    added = torch.zeros(num_sets, dtype=torch.float64, device=device)
    simulated = torch.zeros(num_sets, dtype=torch.int64, device=device)
    fields: dict[str, Tensor] = {}
    number = 0
    while number < passes and len(moving):
        part = sets if len(moving) == num_sets else sets[moving]
        at = points[moving]
        raw = model.compress(part, at=at, chunk=chunk)
        centring = centre(number, part, at)
        information = raw if centring is None else centring.apply(raw)
        posterior = information.posterior(model.prior)
        step = (posterior.mean - at).unsqueeze(-1)
        new = drawn_inside(model.prior, posterior.mean, at)
        moved = (new - at).unsqueeze(-1)
        length = ((moved.mT @ posterior.precision @ moved).flatten() / step.shape[-2]).sqrt()
        values = {
            "score": information.score,
            "fisher": information.fisher,
            "fiducial": at,
            "count": information.count,
            "mean": posterior.mean,
            "precision": posterior.precision,
            "learned": raw.posterior(model.prior).covariance,
        }
        for name, value in values.items():
            if name not in fields:
                fields[name] = value.new_zeros((num_sets, *value.shape[1:]))
            fields[name][moving] = value
        if centring is not None:
            added[moving] = centring.added_noise(information.count)
            simulated[moving] += centring.total_simulated
        number += 1
        done = (length < small) & (number >= fewest)
        settled[moving] = done
        previous[moving] = at
        points = points.clone()
        points[moving[~done]] = new[~done]
        moving = moving[~done]
    if not fields:
        raise AssertionError
    information = Information(fields["score"], fields["fisher"], fields["fiducial"], fields["count"])
    posterior = Gaussian(fields["mean"], fields["precision"])
    inside = supported(model.prior, posterior.mean)
    return Estimate(
        posterior, information, fields["learned"], previous, settled, inside, number, added, simulated
    )
