"""Adaptive importance sampling against known densities."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fishnets.inference.importance import importance_samples
from fishnets.priors import Normal

WIDE = Normal([0.0, 0.0], [100.0, 100.0])


def test_narrow_targets_far_from_the_guess_are_found(generator: torch.Generator) -> None:
    """Widths from 1/200 of the guess to its own, centres up to two of its widths away."""
    mean = torch.tensor([[0.0, 0.0], [2.0, -1.0], [-1.5, 1.5]], dtype=torch.float64)
    sd = torch.tensor([[1.0, 1.0], [0.005, 0.05], [0.3, 0.01]], dtype=torch.float64)
    seen: list[int] = []

    def log_target(points: Tensor, rows: Tensor) -> Tensor:
        seen.append(len(rows))
        return -0.5 * ((points - mean[rows].unsqueeze(1)) / sd[rows].unsqueeze(1)).square().sum(-1)

    drawn = importance_samples(
        log_target,
        lambda number: WIDE.sample(number, generator),
        WIDE.log_prob,
        torch.zeros(3, 2, dtype=torch.float64),
        torch.eye(2, dtype=torch.float64).expand(3, 2, 2),
        4000,
        generator,
    )
    assert drawn.samples.shape == (3, 4000, 2)
    assert bool((drawn.effective_share > 0.4).all())
    assert (((drawn.samples.mean(1) - mean) / sd).abs() < 0.1).all()
    assert ((drawn.samples.std(1) / sd - 1).abs() < 0.08).all()
    assert seen[0] == 3
    assert min(seen) < 3, "a set that is done is not refined again"


def test_two_peaks_keep_their_weights(generator: torch.Generator) -> None:
    def log_target(points: Tensor, rows: Tensor) -> Tensor:
        left = -0.5 * ((points[..., 0] + 3) / 0.5).square() + math.log(0.25)
        right = -0.5 * ((points[..., 0] - 3) / 0.5).square() + math.log(0.75)
        return torch.logaddexp(left, right)

    wide = Normal([0.0], [25.0])
    one = torch.ones(1, 1, dtype=torch.float64)

    def prior_sample(number: int) -> Tensor:
        return wide.sample(number, generator)

    drawn = importance_samples(log_target, prior_sample, wide.log_prob, 0 * one, one.unsqueeze(0), 4000, generator)
    assert abs((drawn.samples > 0).double().mean() - 0.75) < 0.05


def test_an_impossible_target_has_no_effective_share(generator: torch.Generator) -> None:
    wide = Normal([0.0], [1.0])
    one = torch.ones(1, 1, dtype=torch.float64)
    drawn = importance_samples(
        lambda points, rows: -1e12 * points[..., 0].sub(0.123456789).abs(),
        lambda number: wide.sample(number, generator),
        wide.log_prob,
        0 * one,
        one.unsqueeze(0),
        100,
        generator,
    )
    assert not bool(drawn.effective_share[0] >= 0.5)
