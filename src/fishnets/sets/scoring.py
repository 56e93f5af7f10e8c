r"""Scoring: from a first estimate to the root of the local score.

One global expansion cannot be optimal where the Fisher matrix depends on the parameters. Local networks give the
information of a set at any point :math:`\theta_*`, and Fisher scoring steps from point to point,

.. math:: \theta_* \leftarrow \theta_* + (F + C_p^{-1})^{-1}\,[t - C_p^{-1}(\theta_* - \mu_p)],

each pass one more sum over the data, until a step is small beside the posterior's width. With centring
(:mod:`fishnets.sets.centring`) the last expansion point is kept and the parameters are found at which simulated data
have the observed mean score: steps that cost simulations but no further pass over the data, first with a small pool,
then with one large enough for the wanted loss of information. Only where they lead far away is the score expanded anew.
Points stay in the prior's support; estimates may not.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Protocol

import torch
from torch import Tensor

from fishnets.algebra.gaussian import Gaussian
from fishnets.algebra.information import Information
from fishnets.errors import ConfigError
from fishnets.priors import Prior
from fishnets.ragged import Sets
from fishnets.sets.centring import Centring
from fishnets.sets.estimate import Estimate
from fishnets.sets.pools import Pools
from fishnets.sets.stored_centring import StoredCentring
from fishnets.sets.support import moved_inside, supported

__all__ = ["plain_estimate", "refined_estimate"]

SMALL_STEP = 0.01  # widths of the posterior: a local step that needs no other
CENTRED_STEP = 1.0  # likewise a centred one, exact to a few hundredths of its length; three where the way is short
NEAR = 0.05  # of the prior's standard deviation: so far from its point a local score is as good as at it
ROUGH = 10.0  # the first pool is this many times smaller
LONGEST, FARTHEST = 1.0, 5.0  # a local step, and a point, in the prior's standard deviations
LOCAL_PASSES = 5  # before pools take over: they find the root however far it is
MOST_EXPANSIONS = 4


class LocalModel(Protocol):
    """What scoring asks of a model."""

    @property
    def prior(self) -> Prior: ...

    @property
    def theta_scale(self) -> Tensor: ...

    def compress(self, sets: Sets, at: Tensor | None = None) -> Information: ...


def plain_estimate(model: LocalModel, sets: Sets) -> Estimate:
    """The posterior of the first networks, in one pass."""
    information = model.compress(sets)
    mean = information.posterior(model.prior).mean
    settled = torch.ones(len(sets), dtype=torch.bool, device=sets.device)
    return _concluded(model, information, None, mean, settled, 1)


def refined_estimate(
    model: LocalModel,
    sets: Sets,
    centrer: Pools | StoredCentring | None,
    pilot: int | None,
    passes: int,
) -> Estimate:
    """Local steps and centred ones; with a pilot, both on that many rows of each set, and then one pass over all."""
    if passes < 1:
        raise ConfigError(f"`passes` is {passes} but at least 1 was expected.")
    if pilot is not None and pilot < 1:
        raise ConfigError(f"`pilot` is {pilot} but at least 1 row of each set was expected.")
    if isinstance(centrer, StoredCentring):
        centrer.expect_law(sets)
    if pilot is not None:
        first = refined_estimate(model, sets.thinned(pilot), centrer, None, passes)
    else:
        first = plain_estimate(model, sets)
    number = 0 if pilot is not None else 1
    start = _bounded(model, moved_inside(model.prior, first.mean, model.prior.mean.to(first.mean)))
    if isinstance(centrer, Pools):
        if pilot is None:
            first = _local(model, sets, start, min(passes, LOCAL_PASSES), None)
            start = _bounded(model, moved_inside(model.prior, first.mean, first.information.fiducial))
            number += first.num_passes
        found = _centred(model, sets, centrer, start, passes, pilot is not None)
    else:
        found = _local(model, sets, start, passes, centrer, pilot is not None)
    return replace(
        found, num_passes=found.num_passes + number, num_simulated=found.num_simulated + first.num_simulated
    )


def _local(
    model: LocalModel,
    sets: Sets,
    start: Tensor,
    passes: int,
    stored: StoredCentring | None,
    one_pass: bool = False,
) -> Estimate:
    """Local steps from points (B, p), centred by a stored fit if there is one, until all are small or too many."""
    at, previous, number = start, start, 0
    share, before = torch.ones_like(start[:, :1]), torch.zeros_like(start)
    while True:
        raw, number = model.compress(sets, at), number + 1
        centring = None if stored is None else stored.at(at)
        posterior = (raw if centring is None else centring.apply(raw)).posterior(model.prior)
        step = posterior.mean - at
        settled = _widths(moved_inside(model.prior, posterior.mean, at) - at, posterior.precision) < SMALL_STEP
        if one_pass:
            settled = _trusted(model, step, posterior, 3 * CENTRED_STEP)
        if one_pass or number >= passes or bool(settled.all()):
            return _concluded(model, raw, centring, previous, settled, number)
        back = (step * before / model.theta_scale.to(step) ** 2).sum(-1, keepdim=True) < 0
        share, before = torch.where(back, share / 2, share), step  # a step that turns back has overshot
        longest = _way(model, step).unsqueeze(-1).clamp(min=LONGEST) / LONGEST
        at, previous = _bounded(model, moved_inside(model.prior, at + share * step / longest, at)), posterior.mean


def _centred(
    model: LocalModel, sets: Sets, pools: Pools, start: Tensor, passes: int, one_pass: bool
) -> Estimate:
    """Steps centred by simulation from points (B, p), those of a pilot if the data may be passed over once only."""
    at = pools.shared(start)
    raw, centring, num_passes = model.compress(sets, at), pools.measure(sets, at, at, ROUGH), 1
    simulated = centring.total_simulated
    while True:
        posterior = centring.apply(raw).posterior(model.prior)
        around = moved_inside(model.prior, posterior.mean, at)
        far = (~_trusted(model, around - at, posterior, math.inf)).nonzero().flatten()
        if one_pass or num_passes == MOST_EXPANSIONS or not len(far):
            break
        points = pools.shared(around[far])
        found, num_passes = pools.measure(sets[far], points, points, ROUGH), num_passes + 1
        at, raw = at.index_copy(0, far, points), _replaced(raw, far, model.compress(sets[far], points))
        centring, simulated = centring.updated(far, found), simulated.index_add(0, far, found.total_simulated)
    settled, previous = torch.zeros(len(sets), dtype=torch.bool, device=sets.device), posterior.mean
    for _ in range(passes):
        left = (~settled).nonzero().flatten()
        around = around.index_copy(0, left, pools.shared(around[left], posterior.precision[left], at[left]))
        found = pools.measure(sets[left], at[left], around[left])
        centring, simulated = centring.updated(left, found), simulated.index_add(0, left, found.total_simulated)
        previous, posterior = posterior.mean, centring.apply(raw).posterior(model.prior)
        following = moved_inside(model.prior, posterior.mean, around)
        settled = _trusted(model, following - around, posterior, 3 * CENTRED_STEP)
        if bool(settled.all()):
            break
        around = following
    return _concluded(model, raw, centring, previous, settled, num_passes, simulated)


def _concluded(
    model: LocalModel,
    raw: Information,
    centring: Centring | None,
    previous: Tensor,
    settled: Tensor,
    num_passes: int,
    simulated: Tensor | None = None,
) -> Estimate:
    """The estimate that information and, if any, its centring give."""
    information = raw if centring is None else centring.apply(raw)
    posterior = information.posterior(model.prior)
    learned = raw.posterior(model.prior).covariance
    inside = supported(model.prior, posterior.mean)
    added = torch.zeros_like(raw.score[:, 0]) if centring is None else centring.added_noise(raw.count)
    number = torch.zeros_like(raw.count) if simulated is None else simulated
    return Estimate(posterior, information, learned, previous, settled, inside, num_passes, added, number)


def _widths(step: Tensor, precision: Tensor) -> Tensor:
    """Lengths (B,) of steps (B, p) in units of the posterior's width."""
    column = step.unsqueeze(-1)
    return ((column.mT @ precision @ column).flatten() / step.shape[-1]).sqrt()


def _way(model: LocalModel, step: Tensor) -> Tensor:
    """Lengths (B,) of steps (B, p) in units of the prior's standard deviations, the largest over parameters."""
    return (step.abs() / model.theta_scale.to(step)).amax(-1)


def _bounded(model: LocalModel, points: Tensor) -> Tensor:
    """Points (B, p) no farther from the prior's mean than networks can have seen."""
    offset, most = points - model.prior.mean.to(points), FARTHEST * model.theta_scale.to(points)
    return model.prior.mean.to(points) + offset.clamp(-most, most)


def _trusted(model: LocalModel, step: Tensor, posterior: Gaussian, most_widths: float) -> Tensor:
    """Whether steps (B, p) are short: a width of the posterior, or some more where that is a short way, shape (B,)."""
    widths = _widths(step, posterior.precision)
    return (widths <= CENTRED_STEP) | ((_way(model, step) <= NEAR) & (widths <= most_widths))


def _replaced(whole: Information, rows: Tensor, part: Information) -> Information:
    """The information of B sets, each with its own fiducial, with that of some rows replaced."""
    pairs = ((getattr(whole, field.name), getattr(part, field.name)) for field in fields(whole))
    return Information(*(old.index_copy(0, rows, new) for old, new in pairs))
