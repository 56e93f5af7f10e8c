"""The algebra of centring against dense float64 formulas, and the slopes that are refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from tests.laws import close, same_information
from tests.strategies import PROPERTY, conditions, normals, num_params, positive_definite, seeds
from torch import Tensor

from fishnets import Information
from fishnets.errors import NotPositiveDefiniteError
from fishnets.priors import Normal
from fishnets.sets.centring import Centring

SIZES = [1, 30, 70_000]


def many(matrix: Tensor) -> Tensor:
    return matrix.expand(len(SIZES), *matrix.shape).contiguous()


def centred(
    around: Tensor, intercept: Tensor, slope: Tensor, spread: Tensor, noise: Tensor, number: float = torch.inf
) -> Centring:
    counts = torch.full((len(around),), number, dtype=torch.float64)
    return Centring(around, intercept, slope, spread, noise, counts, torch.zeros(len(around), dtype=torch.int64))


def raw(seed: int, p: int, sizes: list[int] = SIZES) -> Information:
    """Local information of a few sets, of which centring takes the score and the count alone."""
    n = torch.tensor(sizes)
    score = normals(seed, len(n), p) * n.sqrt().unsqueeze(-1) + 0.1 * n.unsqueeze(-1)
    return Information(score, 3 * torch.eye(p, dtype=torch.float64).expand(len(n), p, p), normals(seed + 1, p), n)


@PROPERTY
@given(seeds, num_params, conditions)
def test_an_exact_score_is_left_as_it_is(seed, p, condition):
    fisher, around, given_ = positive_definite(seed, p, condition=condition), normals(seed + 2, 3, p), raw(seed, p)
    found = centred(around, torch.zeros(3, p, dtype=torch.float64), *(many(fisher) for _ in range(3))).apply(given_)
    n = given_.count.view(-1, 1, 1)
    scale = condition * given_.score.abs().max().item()
    torch.testing.assert_close(found.score, given_.score, rtol=1e-9, atol=1e-12 * scale)
    torch.testing.assert_close(found.fisher, n * fisher, rtol=1e-9, atol=1e-12 * condition * max(SIZES))
    close(found.fiducial, around)
    assert found.count.tolist() == SIZES


@PROPERTY
@given(seeds, num_params, conditions)
def test_covariance_is_the_sandwich_with_the_noise_of_the_simulations(seed, p, condition):
    spread, simulated = positive_definite(seed, p, condition=condition), 500.0
    slope = positive_definite(seed + 3, p) @ positive_definite(seed + 4, p) + 0.3 * normals(seed + 5, p, p)
    assume(torch.linalg.cond(slope).item() < 1e4)
    around = normals(seed + 6, 3, p)
    intercept = normals(seed + 7, 3, p)
    given_ = raw(seed, p)
    found = centred(around, intercept, many(slope), many(spread), many(spread), simulated).apply(given_)
    inverse = torch.linalg.inv(slope)
    for i, n in enumerate(SIZES):
        covariance = inverse @ spread @ inverse.mT * (1 + n / simulated) / n
        expected = torch.linalg.inv(covariance)
        torch.testing.assert_close(found.fisher[i], expected, rtol=1e-6, atol=1e-8 * expected.abs().max().item())
        root = around[i] + inverse @ (given_.score[i] / n - intercept[i])
        torch.testing.assert_close(found.estimate()[i], root, rtol=1e-6, atol=1e-8 * root.abs().max().item())


def test_spread_and_noise_may_differ() -> None:
    """The data scatter by one covariance, the mean of the simulations by another."""
    slope, spread, noise = normals(1, 2, 2) + 2 * torch.eye(2), positive_definite(2, 2), positive_definite(3, 2)
    point, given_ = torch.zeros(3, 2, dtype=torch.float64), raw(4, 2)
    found = centred(point, point, many(slope), many(spread), many(noise), 90.0).apply(given_)
    for i, n in enumerate(SIZES):
        total = n * spread + n**2 / 90 * noise
        weights = n * slope.mT @ torch.linalg.inv(total)
        close(found.fisher[i], n * weights @ slope)
        close(found.score[i], weights @ given_.score[i])


def test_fisher_matrix_is_symmetric_and_a_shift_of_the_score_is_taken_out() -> None:
    slope, spread = normals(1, 3, 3) + 3 * torch.eye(3), positive_definite(2, 3, condition=1e3)
    bias, around, given_ = normals(5, 3, 3), normals(6, 3, 3), raw(4, 3)
    shifted = Information(
        given_.score + given_.count.unsqueeze(-1) * bias, given_.fisher, given_.fiducial, given_.count
    )
    first = centred(around, torch.zeros_like(bias), many(slope), many(spread), many(spread), 1e5).apply(given_)
    second = centred(around, bias, many(slope), many(spread), many(spread), 1e5).apply(shifted)
    assert torch.equal(first.fisher, first.fisher.mT)
    torch.testing.assert_close(second.score, first.score, rtol=1e-8, atol=1e-8)
    same_information(second.at(around), Information(second.score, first.fisher, around, first.count))


def test_added_noise_is_the_ratio_of_data_to_simulations() -> None:
    one = torch.ones(3, 1, 1, dtype=torch.float64)
    centring = centred(one[:, 0], one[:, 0], one, one, one, 1000.0)
    close(centring.added_noise(torch.tensor([0, 50, 2000])), torch.tensor([0.0, 0.05, 2.0], dtype=torch.float64))


def test_an_empty_set_stays_without_information() -> None:
    slope, spread, point = normals(1, 1, 2, 2) + 2 * torch.eye(2), positive_definite(2, 1, 2), normals(3, 1, 2)
    empty = Information.zero(2, (1,))
    found = centred(point, point, slope, spread, spread, 100.0).apply(empty)
    assert bool((found.score == 0).all())
    assert bool((found.fisher == 0).all())
    assert found.count.tolist() == [0]


@pytest.mark.parametrize(
    "slope",
    [
        [[1.0, 2.0], [2.0, 4.0]],
        [[1.0, 0.0], [0.0, 0.0]],
        [[0.0, 0.0], [0.0, 0.0]],
        [[1e-9, 1e-9], [1e6, 1e6]],
        [[1.0, torch.nan], [0.0, 1.0]],
    ],
    ids=["rank one", "a flat direction", "no slope", "badly scaled", "nan"],
)
def test_singular_slopes_are_refused_naming_the_sets(slope: list[list[float]]) -> None:
    one, point = torch.eye(2, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64)
    slopes = torch.stack([one, torch.tensor(slope, dtype=torch.float64), one])
    centring = centred(point, point, slopes, many(one), many(one))
    message = (
        r"The slope of the mean score is singular for sets 1; that of set 1 is \[\[.*\]\]\. The learned score does not "
        r"tell these parameters apart there: train longer, or leave out a parameter"
    )
    with pytest.raises(NotPositiveDefiniteError, match=message):
        centring.apply(raw(0, 2))


def test_a_datum_need_not_tell_parameters_apart() -> None:
    """At the covariates x of a single datum any score is a function of x·θ alone: rank one, and no fault."""
    x, point = torch.tensor([[1.0, 3.0]], dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64)
    turn = normals(1, 2, 2) + 2 * torch.eye(2)
    fisher = x.mT @ x
    slope, spread = turn @ fisher, turn @ fisher @ turn.mT
    centring = centred(point, point, many(slope), many(spread), many(spread))
    one = Information(torch.stack([turn @ x[0] * s for s in (0.5, 1.0, -2.0)]), many(fisher), point, [1, 2, 1])
    found = centring.apply(one)
    torch.testing.assert_close(found.fisher, torch.tensor([1.0, 2.0, 1.0]).double().view(3, 1, 1) * fisher)
    torch.testing.assert_close(found.score, torch.tensor([0.5, 1.0, -2.0]).double().view(3, 1) * x)
    more = Information(one.score, one.fisher, point, [1, 3, 1])
    with pytest.raises(NotPositiveDefiniteError, match=r"slope of the mean score is singular for sets 1; that of set"):
        centring.apply(more)


def test_directions_that_are_told_badly_are_left_to_the_prior() -> None:
    """Little information is no error: a posterior has its prior, and says how wide it is."""
    turn, _ = torch.linalg.qr(normals(1, 2, 2))
    slope = turn @ torch.diag(torch.tensor([1.0, 1e-4], dtype=torch.float64)) @ turn.mT
    one, point = torch.eye(2, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64)
    found = centred(point, point, many(slope), many(one), many(one)).apply(raw(0, 2, [50] * 3))
    widths = found.posterior(Normal([0.0, 0.0], [1.0, 1.0])).covariance @ turn
    torch.testing.assert_close(widths[0] @ torch.tensor([0.0, 1.0]).double(), turn[:, 1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("flaw", [torch.nan, torch.inf])
@pytest.mark.parametrize("count", [1, 100])
def test_measurements_that_are_not_finite_are_refused_in_sets_of_any_size(flaw: float, count: int) -> None:
    one, point = torch.eye(2, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64)
    broken = many(one).clone()
    broken[2, 0, 1] = broken[2, 1, 0] = flaw
    given_ = raw(0, 2, [count] * 3)
    for matrices in ((broken, many(one)), (many(one), broken)):
        with pytest.raises(NotPositiveDefiniteError, match=r"slope of the mean score is singular for sets 2; that of"):
            centred(point, point, matrices[0], matrices[1], matrices[1]).apply(given_)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_units_of_the_parameters_do_not_make_a_slope_singular(unit: float) -> None:
    """Whether a slope tells parameters apart does not depend on what they are measured in."""
    units = torch.diag(torch.tensor([1.0, unit], dtype=torch.float64))
    spread, point = positive_definite(2, 2), torch.zeros(3, 2, dtype=torch.float64)
    turned, given_ = units @ spread @ units, raw(0, 2)
    scaled = Information(given_.score @ units, given_.fisher, given_.fiducial, given_.count)
    found = centred(point, point, many(turned), many(turned), many(turned)).apply(scaled)
    expected = torch.linalg.solve(spread, given_.score.mT).mT / given_.count.unsqueeze(-1)
    torch.testing.assert_close(found.estimate() @ units, expected, rtol=1e-8, atol=1e-12)
