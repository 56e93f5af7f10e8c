r"""Is a posterior calibrated? Several looks at the same question.

Draw :math:`\theta` from the prior, data from the model, and S samples from the posterior under test. If the posterior
is right, truth and samples are exchangeable: the truth is one more sample. So for **any** function :math:`f(\theta, x)`
the place of :math:`f(\theta, x)` among the :math:`f(\theta_s, x)` is uniform. With *b* samples below the truth, *e*
equal to it and :math:`u \sim U(0, 1)`, each test set gives one *level*

.. math:: \ell = \frac{b + u\,(e + 1)}{S + 1} ,

which is exactly uniform on [0, 1], for any S and with ties, and no longer when the posterior is wrong in a way that
*f* can see. The checks differ in *f* alone:

======================  ===========================================  ==================================================
check                   :math:`f(\theta, x)`                         does not see
======================  ===========================================  ==================================================
:func:`pit`             one parameter                                correlations
:func:`coverage_levels` minus the posterior density                  errors that keep the content of density regions
:func:`tarp_levels`     distance to a random reference point         errors that average out over the references
======================  ===========================================  ==================================================

A posterior that ignores the data and repeats the prior is calibrated and passes all three; only references that depend
on the data (``tarp_levels(..., references=...)``) expose it. What the levels look like tells what is wrong: too many
near 0 and 1 in :func:`pit` say over-confident, too many near 1/2 too wide, a slope says biased; in
:func:`coverage_levels` over-confidence piles up at 1. :func:`fishnets.inference.uniformity.uniformity` tests them.

References: Cook, Gelman and Rubin 2006 and Talts et al. 2018 (arXiv:1804.06788) for ranks; Hermans et al. 2021
(arXiv:2110.06581) for coverage; Lemos et al. 2023 (arXiv:2302.03026) for TARP.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fishnets.arrays import ArrayLike, as_float
from fishnets.errors import DataError, NonFiniteError, ShapeError, describe_rows

__all__ = ["coverage_levels", "pit", "ranks", "tarp_levels"]

MIN_SAMPLES = 10
SEED = 230203026  # fixed, and one that nobody draws parameters with: references must not repeat the truth


def ranks(samples: ArrayLike, theta: ArrayLike, generator: torch.Generator | None = None) -> Tensor:
    r"""Counts the samples below the truth, the rank statistic of simulation-based calibration.

    Args:
        samples: Posterior samples of T test sets, shape (T, S, p). Thin correlated (MCMC) samples first.
        theta: True parameters, shape (T, p).
        generator: Breaks ties at random; the same fixed seed each time when absent. Without ties it has no effect.

    Returns:
        Ranks, int64, shape (T, p): uniform over 0, ..., S under calibration.

    Example:
        >>> samples = torch.arange(20.0).reshape(1, 20, 1)
        >>> ranks(samples, [[4.5]])
        tensor([[5]])
    """
    samples, theta = _checked(samples, theta)
    place = _place(samples.movedim(1, -1), theta, generator)
    return place.floor().to(torch.int64).clamp(max=samples.shape[1])


def pit(samples: ArrayLike, theta: ArrayLike, generator: torch.Generator | None = None) -> Tensor:
    r"""Probability integral transform: the level of the truth in each marginal posterior.

    It is the rank, moved to a random place within its cell, (rank + u) / (S + 1). Ranks are discrete, and a
    Kolmogorov-Smirnov test of rank / S is not exact; of these levels it is. The credible level of the *central*
    interval whose edge is the truth is ``(2 * levels - 1).abs()``.

    Args:
        samples: Posterior samples of T test sets, shape (T, S, p).
        theta: True parameters, shape (T, p).
        generator: Source of *u*; the same fixed seed each time when absent.

    Returns:
        Levels in [0, 1], float64, shape (T, p).

    Example:
        >>> samples = torch.arange(99.0).reshape(1, 99, 1)
        >>> 0.5 <= pit(samples, [[49.5]]).item() < 0.51
        True
    """
    samples, theta = _checked(samples, theta)
    return _place(samples.movedim(1, -1), theta, generator) / (samples.shape[1] + 1)


def coverage_levels(
    log_prob_samples: ArrayLike, log_prob_theta: ArrayLike, generator: torch.Generator | None = None
) -> Tensor:
    r"""Credible level of the highest-density region whose edge passes through the truth.

    .. math:: \ell = \int \mathbb{1}[q(\theta' | x) > q(\theta | x)]\, q(\theta' | x)\, d\theta'

    Args:
        log_prob_samples: Log-density of each posterior sample under its own posterior, shape (T, S). The
            normalisation may be missing, if it is the same for the samples and the truth of one set.
        log_prob_theta: Log-density of the true parameters under the same posteriors, shape (T,). Minus infinity is a
            truth that the posterior rules out: it lies outside every region.
        generator: Source of *u*; the same fixed seed each time when absent.

    Returns:
        Levels in [0, 1], float64, shape (T,). At nominal coverage c, the share of levels below c is the coverage found.

    Example:
        >>> 0.5 <= coverage_levels(torch.arange(99.0).reshape(1, 99), [48.5]).item() < 0.51
        True
    """
    inside = as_float(log_prob_samples, "log_prob_samples").to(torch.float64)
    truth = as_float(log_prob_theta, "log_prob_theta").to(inside)
    if inside.ndim != 2 or truth.shape != inside.shape[:1]:
        raise ShapeError(
            f"`log_prob_samples` has shape {tuple(inside.shape)} and `log_prob_theta` {tuple(truth.shape)} but (T, S) "
            f"and (T,) were expected.{_transposed(inside, truth)}"
        )
    _expect_samples("log_prob_samples", inside)
    _expect_finite("log_prob_samples", inside)
    _expect_finite("log_prob_theta", torch.where(truth == -torch.inf, 0, truth))
    return _place(-inside, -truth, generator) / (inside.shape[1] + 1)


def tarp_levels(
    samples: ArrayLike,
    theta: ArrayLike,
    references: ArrayLike | None = None,
    generator: torch.Generator | None = None,
    bounds: tuple[ArrayLike, ArrayLike] | None = None,
) -> Tensor:
    r"""Share of samples closer to a reference point than the truth is: tests of accuracy with random points (TARP).

    .. math:: \ell = \int \mathbb{1}[d(\theta', r) < d(\theta, r)]\, q(\theta' | x)\, d\theta', \qquad
        d(\theta, r)^2 = \sum_a (\theta_a - r_a)^2 / w_a^2

    with the box widths :math:`w_a`. References that are independent of the data, the default, cannot expose a posterior
    that repeats the prior. References that move with the data can: give a rough estimate plus noise, say.

    Args:
        samples: Posterior samples of T test sets, shape (T, S, p).
        theta: True parameters, shape (T, p).
        references: Reference points, shape (T, p). They may depend on the data, never on ``theta`` itself.
            Uniform over the box when absent.
        generator: Source of the references and of *u*; the same fixed seed each time when absent.
        bounds: Box, (low, high), each of shape (p,); the one spanned by ``theta`` when absent.

    Returns:
        Levels in [0, 1], float64, shape (T,).

    Example:
        >>> generator = torch.Generator().manual_seed(1)
        >>> x = torch.randn(500, 2, generator=generator)
        >>> samples = x.unsqueeze(1) + torch.randn(500, 200, 2, generator=generator)
        >>> levels = tarp_levels(samples, x + torch.randn(500, 2, generator=generator))
        >>> 0.45 < levels.mean() < 0.55
        tensor(True)
    """
    samples, theta = _checked(samples, theta)
    generator = _source(generator)
    low, width = _box(theta, bounds)
    if references is None:
        uniform = torch.rand(theta.shape, generator=generator, dtype=torch.float64, device=generator.device)
        points = low + width * uniform.to(theta.device)
    else:
        points = as_float(references, "references").to(theta)
        if points.shape != theta.shape:
            raise ShapeError(
                f"`references` has shape {tuple(points.shape)} but one point for each of the {len(theta)} test sets, "
                f"{tuple(theta.shape)}, was expected."
            )
        _expect_finite("references", points)
    to_truth = ((theta - points) / width).norm(dim=-1)  # (T,)
    to_samples = ((samples - points.unsqueeze(1)) / width).norm(dim=-1)  # (T, S)
    return _place(to_samples, to_truth, generator) / (samples.shape[1] + 1)


def _place(values: Tensor, truth: Tensor, generator: torch.Generator | None) -> Tensor:
    """Place of each truth (*) among its values (*, S), uniform on [0, S + 1) if they are exchangeable."""
    source = _source(generator)
    u = torch.rand(truth.shape, generator=source, dtype=torch.float64, device=source.device).to(truth.device)
    below = (values < truth.unsqueeze(-1)).sum(-1)
    equal = (values == truth.unsqueeze(-1)).sum(-1)
    return below + u * (equal + 1)


def _source(generator: torch.Generator | None) -> torch.Generator:
    return torch.Generator().manual_seed(SEED) if generator is None else generator


def _box(theta: Tensor, bounds: tuple[ArrayLike, ArrayLike] | None) -> tuple[Tensor, Tensor]:
    """Lower corner and widths (p,) of the box that references fill."""
    if bounds is None:
        low, high = theta.amin(0), theta.amax(0)
        fix = "All test sets share this parameter; leave it out, or give `bounds=(low, high)`."
    else:
        low, high = (as_float(edge, "bounds").to(theta) for edge in bounds)
        fix = "Give the lower corner first."
    if low.shape != theta.shape[1:] or high.shape != theta.shape[1:]:
        raise ShapeError(
            f"`bounds` holds shapes {tuple(low.shape)} and {tuple(high.shape)} but a lower and an upper corner of "
            f"shape ({theta.shape[1]},) were expected."
        )
    width = high - low
    wrong = (~(width > 0) | ~width.isfinite()).nonzero().flatten().tolist()
    if wrong:
        raise DataError(
            f"the box of TARP runs from {low[wrong[0]].item():g} to {high[wrong[0]].item():g} for parameter {wrong[0]} "
            f"but a finite, positive width was expected. {fix}"
        )
    return low, width


def _checked(samples: ArrayLike, theta: ArrayLike) -> tuple[Tensor, Tensor]:
    """Samples (T, S, p) and truths (T, p), float64 on one device."""
    drawn = as_float(samples, "samples").to(torch.float64)
    truth = as_float(theta, "theta").to(drawn)
    if drawn.ndim != 3 or truth.ndim != 2 or truth.shape != (drawn.shape[0], drawn.shape[2]) or truth.numel() == 0:
        raise ShapeError(
            f"`samples` has shape {tuple(drawn.shape)} and `theta` {tuple(truth.shape)} but (T, S, p) and (T, p) were "
            f"expected, T test sets with S posterior samples each.{_transposed(drawn, truth)}"
        )
    _expect_samples("samples", drawn)
    _expect_finite("samples", drawn)
    _expect_finite("theta", truth)
    return drawn, truth


def _transposed(samples: Tensor, truth: Tensor) -> str:
    """A hint, where the shapes suggest that samples came first."""
    if truth.ndim == samples.ndim - 1 >= 1 and truth.shape == samples.shape[1:]:
        return f" {len(truth)} sets come second here: give `samples.transpose(0, 1)`."
    return " One parameter still needs its axis: (T, S, 1) and (T, 1)." if samples.ndim == 2 == truth.ndim + 1 else ""


def _expect_samples(name: str, samples: Tensor) -> None:
    if samples.shape[1] < MIN_SAMPLES:
        raise DataError(
            f"`{name}` has shape {tuple(samples.shape)}, {samples.shape[1]} samples per test set, but at least "
            f"{MIN_SAMPLES} were expected. Draw more (500 is a good number)."
        )


def _expect_finite(name: str, values: Tensor) -> None:
    wrong = (~values.isfinite()).nonzero()
    if len(wrong):
        rows = list(dict.fromkeys(wrong[:, 0].tolist()))
        raise NonFiniteError(
            f"`{name}` holds {len(wrong)} NaN or infinite values, in test sets {describe_rows(rows)}. Leaving sets out "
            "would hide failures: mend the posterior, or drop those sets and say so."
        )
