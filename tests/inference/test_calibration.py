"""Calibration: exact levels, and checks that tell right posteriors from wrong ones, each in what it can see."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import Tensor

from fishnets.errors import DataError, NonFiniteError, ShapeError
from fishnets.inference.calibration import coverage_levels, pit, ranks, tarp_levels
from fishnets.inference.uniformity import uniformity

NUM_SETS, NUM_SAMPLES = 1000, 500
PRIOR_STD, CORRELATION = 3.0, 0.9
WRONG = ["over-confident", "too wide", "biased", "wrongly correlated", "the prior"]


@dataclass(frozen=True)
class Toy:
    """Test sets of a Gaussian mean with correlated noise, and samples of a posterior that may be wrong."""

    theta: Tensor
    data: Tensor
    samples: Tensor
    log_prob_samples: Tensor
    log_prob_theta: Tensor


@lru_cache
def toy(case: str) -> Toy:
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    eye = torch.eye(2, dtype=torch.float64)
    noise = (1 - CORRELATION) * eye + CORRELATION
    theta = PRIOR_STD * normal(NUM_SETS, 2)
    data = theta + normal(NUM_SETS, 2) @ torch.linalg.cholesky(noise).T
    covariance = torch.linalg.inv(torch.linalg.inv(noise) + eye / PRIOR_STD**2)
    mean, covariance = spoil(case, data @ torch.linalg.inv(noise) @ covariance, covariance)
    factor = torch.linalg.cholesky(covariance)
    samples = mean.unsqueeze(1) + normal(NUM_SETS, NUM_SAMPLES, 2) @ factor.T

    def log_prob(points: Tensor) -> Tensor:
        white = torch.linalg.solve_triangular(factor, (points - mean.unsqueeze(1)).mT, upper=False)
        return -0.5 * white.square().sum(1)

    return Toy(theta, data, samples, log_prob(samples), log_prob(theta.unsqueeze(1)).squeeze(1))


def spoil(case: str, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    match case:
        case "over-confident":
            return mean, 0.7**2 * covariance
        case "too wide":
            return mean, 1.4**2 * covariance
        case "biased":
            return mean + 0.7 * covariance.diagonal().sqrt(), covariance
        case "wrongly correlated":
            return mean, covariance * torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
        case "the prior":
            return torch.zeros_like(mean), PRIOR_STD**2 * torch.eye(2, dtype=torch.float64)
    return mean, covariance


def p_value(check: str, given: Toy) -> float:
    if check == "pit":  # both parameters together, by Bonferroni
        return 2 * min(uniformity(column).p_value for column in pit(given.samples, given.theta).T)
    if check == "coverage":
        return uniformity(coverage_levels(given.log_prob_samples, given.log_prob_theta)).p_value
    if check == "tarp":
        return uniformity(tarp_levels(given.samples, given.theta)).p_value
    noise = torch.randn(given.data.shape, generator=torch.Generator().manual_seed(4))
    return uniformity(tarp_levels(given.samples, given.theta, references=given.data + noise)).p_value


SEES = {
    "pit": {"over-confident", "too wide", "biased"},
    "coverage": {"over-confident", "too wide", "biased", "wrongly correlated"},
    "tarp": {"over-confident", "too wide", "biased", "wrongly correlated"},
    "tarp near the data": {"over-confident", "too wide", "biased", "wrongly correlated", "the prior"},
}


@pytest.mark.parametrize("case", ["exact", *WRONG])
@pytest.mark.parametrize("check", SEES)
def test_each_check_flags_what_it_can_see_and_passes_the_rest(check: str, case: str) -> None:
    found = p_value(check, toy(case))
    assert found < 1e-3 if case in SEES[check] else found > 0.01


def test_levels_lean_the_way_the_posterior_is_wrong() -> None:
    central = {case: (2 * pit(toy(case).samples, toy(case).theta) - 1).abs().mean() for case in ("exact", *WRONG)}
    assert central["over-confident"] > 0.55 > central["exact"] > 0.45 > central["too wide"]
    content = {c: coverage_levels(toy(c).log_prob_samples, toy(c).log_prob_theta).mean() for c in ("exact", *WRONG)}
    assert content["over-confident"] > 0.55 > content["exact"] > 0.45 > content["too wide"]


@pytest.mark.parametrize("num_samples", [10, 17])
def test_levels_are_exactly_uniform_even_of_few_tied_samples(num_samples: int, generator: torch.Generator) -> None:
    """Whole numbers tie all the time; the rank cell is randomised, so the level still is uniform."""
    drawn = torch.randint(4, (20_000, num_samples + 1, 1), generator=generator)
    levels = pit(drawn[:, 1:], drawn[:, 0], generator)[:, 0]
    assert uniformity(levels).p_value > 0.01
    assert uniformity(levels).inside
    found = torch.bincount(ranks(drawn[:, 1:], drawn[:, 0], generator)[:, 0], minlength=num_samples + 1)
    expected = 20_000 / (num_samples + 1)
    assert ((found - expected) ** 2 / expected).sum() < 2 * num_samples + 10


def test_ranks_count_samples_below_the_truth() -> None:
    samples = torch.stack([torch.arange(20.0), torch.arange(20.0, 40.0)], dim=1).unsqueeze(0)  # (1, 20, 2)
    found = ranks(samples, torch.tensor([[-1.0, 100.0]]))
    assert found.dtype == torch.int64
    assert found.tolist() == [[0, 20]]


def test_pit_is_the_rank_within_its_cell() -> None:
    given = toy("exact")
    assert torch.equal(
        (pit(given.samples, given.theta) * (NUM_SAMPLES + 1)).floor().long(), ranks(given.samples, given.theta)
    )


def test_pit_is_the_posterior_distribution_function() -> None:
    given = toy("exact")
    mean, std = given.samples.mean(1), given.samples.std(1)
    expected = torch.special.ndtr((given.theta - mean) / std)
    assert (pit(given.samples, given.theta) - expected).abs().max() < 0.08


def test_coverage_level_is_the_content_of_the_region_through_the_truth() -> None:
    """In two dimensions the region of log-density -r²/2 and more holds 1 - exp(-r²/2)."""
    given = toy("exact")
    expected = 1 - given.log_prob_theta.exp()
    found = coverage_levels(given.log_prob_samples, given.log_prob_theta)
    assert (found - expected).abs().max() < 0.09
    assert (found - expected).abs().mean() < 0.02


def test_a_truth_that_the_posterior_rules_out_lies_outside_every_region() -> None:
    levels = coverage_levels(torch.zeros(1, 99), torch.tensor([-torch.inf]))
    assert levels.item() >= 0.99


def test_tarp_does_not_depend_on_units() -> None:
    given = toy("too wide")
    scale, shift = torch.tensor([1e3, 1e-3]), torch.tensor([5.0, -7.0])
    moved = tarp_levels(scale * given.samples + shift, scale * given.theta + shift)
    torch.testing.assert_close(moved, tarp_levels(given.samples, given.theta))


def test_tarp_bounds_place_the_references_and_set_the_scale() -> None:
    given = toy("exact")
    box = (given.theta.amin(0), given.theta.amax(0))
    assert torch.equal(tarp_levels(given.samples, given.theta, bounds=box), tarp_levels(given.samples, given.theta))
    references = torch.zeros_like(given.theta)
    one = tarp_levels(given.samples, given.theta, references, bounds=([-9.0, -9e9], [9.0, 9e9]))
    alone = tarp_levels(given.samples[..., :1], given.theta[:, :1], references[:, :1])
    torch.testing.assert_close(one, alone)  # a parameter does not count in a box that is wide enough


def test_the_same_seed_gives_the_same_levels_and_none_is_a_fixed_one() -> None:
    given = toy("exact")
    for levels in (pit, tarp_levels):
        first, second = (
            levels(given.samples, given.theta, generator=torch.Generator().manual_seed(1)) for _ in range(2)
        )
        assert torch.equal(first, second)
        assert torch.equal(levels(given.samples, given.theta), levels(given.samples, given.theta))
        assert not torch.equal(first, levels(given.samples, given.theta))


def test_numpy_and_float32_are_read() -> None:
    given = toy("exact")
    samples, theta = given.samples.float().numpy(), given.theta.float().numpy()
    found = pit(np.asfortranarray(samples), theta)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, pit(given.samples, given.theta), atol=5e-3, rtol=0)


def test_ranks_agree_with_sbi() -> None:
    pytest.importorskip("sbi")
    from sbi.diagnostics.sbc import _run_sbc

    given = toy("biased")
    theirs = _run_sbc(given.theta, given.data, given.samples.transpose(0, 1), "marginals", show_progress_bar=False)
    assert torch.equal(theirs.long(), ranks(given.samples, given.theta))


@pytest.mark.parametrize("case", ["exact", "too wide"])
def test_tarp_agrees_with_sbi(case: str) -> None:
    pytest.importorskip("sbi")
    from sbi.diagnostics.tarp import _run_tarp

    given = toy(case)
    references = 8 * torch.rand(given.theta.shape, generator=torch.Generator().manual_seed(5)).double() - 4
    theirs, nominal = _run_tarp(given.samples.transpose(0, 1), given.theta, references, z_score_theta=True)
    levels = tarp_levels(given.samples, given.theta, references)
    ours = torch.searchsorted(levels.sort().values, nominal.double()) / NUM_SETS
    assert (ours - theirs).abs().max() < 0.02  # theirs are k / S, ours in the cell from k / (S + 1)


@pytest.mark.parametrize(
    ("samples", "theta", "message"),
    [
        (
            (5, 20, 2),
            (5, 3),
            r"`samples` has shape \(5, 20, 2\) and `theta` \(5, 3\) but \(T, S, p\) and \(T, p\) were",
        ),
        ((20, 5, 2), (5, 2), r"5 sets come second here: give `samples.transpose\(0, 1\)`"),
        ((5, 20), (5,), r"One parameter still needs its axis: \(T, S, 1\) and \(T, 1\)"),
        ((0, 20, 2), (0, 2), r"`samples` has shape \(0, 20, 2\)"),
    ],
)
def test_shapes_are_checked(samples: tuple[int, ...], theta: tuple[int, ...], message: str) -> None:
    for check in (ranks, pit, tarp_levels):
        with pytest.raises(ShapeError, match=message):
            check(torch.zeros(samples), torch.zeros(theta))


def test_shapes_of_densities_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"`log_prob_samples` has shape \(5, 20\) and `log_prob_theta` \(4,\) but"):
        coverage_levels(torch.zeros(5, 20), torch.zeros(4))
    with pytest.raises(ShapeError, match=r"20 sets come second here"):
        coverage_levels(torch.zeros(5, 20), torch.zeros(20))


def test_few_samples_are_refused() -> None:
    with pytest.raises(DataError, match=r"`samples` has shape \(5, 9, 2\), 9 samples per test set, but at least 10"):
        pit(torch.zeros(5, 9, 2), torch.zeros(5, 2))
    with pytest.raises(DataError, match=r"`log_prob_samples` has shape \(5, 3\), 3 samples per test set"):
        coverage_levels(torch.zeros(5, 3), torch.zeros(5))


def test_values_that_are_not_finite_are_named() -> None:
    samples, theta = torch.zeros(5, 20, 2), torch.zeros(5, 2)
    bad = samples.clone()
    bad[3, 4:6] = torch.nan
    with pytest.raises(NonFiniteError, match=r"`samples` holds 4 NaN or infinite values, in test sets 3\. Leaving"):
        pit(bad, theta)
    with pytest.raises(NonFiniteError, match=r"`theta` holds 10 NaN or infinite values, in test sets 0, 1, 2, 3, 4"):
        ranks(samples, theta + torch.inf)
    with pytest.raises(NonFiniteError, match=r"`log_prob_samples` holds 20 NaN or infinite values, in test sets 3"):
        coverage_levels(torch.where(torch.arange(5)[:, None] == 3, -torch.inf, torch.zeros(5, 20)), torch.zeros(5))
    with pytest.raises(NonFiniteError, match=r"`log_prob_theta` holds 5 NaN or infinite values"):
        coverage_levels(torch.zeros(5, 20), torch.full((5,), torch.nan))
    with pytest.raises(NonFiniteError, match=r"`references` holds 10 NaN or infinite values"):
        tarp_levels(samples, torch.arange(10.0).reshape(5, 2), torch.full((5, 2), torch.nan))


def test_references_and_bounds_are_checked() -> None:
    samples, theta = torch.zeros(5, 20, 2), torch.arange(10.0).reshape(5, 2)
    with pytest.raises(ShapeError, match=r"`references` has shape \(2,\) but one point for each of the 5 test sets"):
        tarp_levels(samples, theta, torch.zeros(2))
    with pytest.raises(ShapeError, match=r"`bounds` holds shapes \(1,\) and \(1,\) but a lower and an upper corner"):
        tarp_levels(samples, theta, bounds=([0.0], [1.0]))
    with pytest.raises(
        DataError, match=r"runs from 2 to 1 for parameter 1 but a finite, positive width.* lower corner"
    ):
        tarp_levels(samples, theta, bounds=([0.0, 2.0], [1.0, 1.0]))
    with pytest.raises(DataError, match=r"runs from 0 to 0 for parameter 0 but .* All test sets share this parameter"):
        tarp_levels(samples, torch.zeros(5, 2))
