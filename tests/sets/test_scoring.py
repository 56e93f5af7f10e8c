"""Scoring with models whose errors are known: consistency, honest covariances, edges, pilots, and what is reported."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.sets.helpers import generator
from tests.sets.stubs import BIAS, STANDARD, TURN, Counted, Curved, Line, Location, Stub, biased, of_line, of_location
from tests.sets.stubs import pools as make_pools
from torch import Tensor

from fishnets import Estimate, Sets
from fishnets.errors import ConfigError, ConvergenceWarning, NotPositiveDefiniteError
from fishnets.priors import Box
from fishnets.sets import pools as module
from fishnets.sets import scoring
from fishnets.sets.scoring import plain_estimate, refined_estimate

ONE = torch.eye(2, dtype=torch.float64)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools of a thousand: the problems are simple, and their noise is to be seen."""
    monkeypatch.setattr(module, "SMALLEST_POOL", 1_000)
    monkeypatch.setattr(module, "SLOPE_POOL", (1_000, 1_000))


def refined(model: Stub, sets: Sets, simulator: Any = None, pilot: int | None = None, passes: int = 20) -> Estimate:
    centrer = None if simulator is None else make_pools(model, simulator, loss=0.5)
    return refined_estimate(model, sets, centrer, pilot, passes)


def drawn(simulator: Any, theta: Tensor, *sizes: int) -> Sets:
    number = torch.tensor(sizes if len(sizes) > 1 else sizes * len(theta))
    return simulator(theta, number, generator(6))


def whitened(estimate: Estimate, theta: Tensor) -> Tensor:
    """Errors in units of what the estimate says of itself, standard normal where it is honest, shape (B, p)."""
    factor = torch.linalg.cholesky(estimate.precision)
    return (factor.mT @ (theta - estimate.mean).unsqueeze(-1)).squeeze(-1)


def check_honest(errors: Tensor) -> None:
    """Means of zero, and as many errors within one and two widths as there should be."""
    number = errors.numel()
    assert errors.mean(0).abs().max().item() < 4 / math.sqrt(len(errors))
    for width in (1.0, 1.96):
        share = math.erf(width / math.sqrt(2))
        assert (errors.abs() < width).double().mean().item() == pytest.approx(
            share, abs=3 * math.sqrt(share * (1 - share) / number)
        )


def exact_line(sets: Sets) -> tuple[Tensor, Tensor]:
    """Exact posterior means and precisions of sets of a line under the standard prior."""
    means, precisions = [], []
    for rows in sets.to_list():
        design = torch.stack([torch.ones(len(rows), dtype=torch.float64), rows[:, 1]], dim=1)
        precisions.append(design.mT @ design + ONE)
        means.append(torch.linalg.solve(precisions[-1], design.mT @ rows[:, 0]))
    return torch.stack(means), torch.stack(precisions)


def distances(estimate: Estimate, means: Tensor, precisions: Tensor) -> Tensor:
    """Distances from exact means in widths, shape (B,)."""
    gap = (estimate.mean - means).unsqueeze(-1)
    return ((gap.mT @ precisions @ gap).flatten() / gap.shape[1]).sqrt()


@pytest.mark.parametrize("kind", ["line", "location"])
def test_centred_estimates_are_unbiased_and_honest_where_uncentred_ones_are_neither(kind: str) -> None:
    """Half as many simulated data as observed ones widen the posteriors by a half, and the errors are that much."""
    simulator, model = (Line(), of_line()) if kind == "line" else (Location(), of_location())
    theta = STANDARD.sample(400, generator(5))
    sets = drawn(simulator, theta, 500)
    centred = refined(model, sets, simulator)
    assert bool(centred.settled.all())
    assert centred.added_noise.tolist() == [0.5] * 400
    check_honest(whitened(centred, theta))
    plain = refined(model, sets, passes=200)
    assert bool(plain.settled.all())
    assert whitened(plain, theta).mean(0).abs().max().item() > 5, "the bias outgrew the noise"
    assert (plain.mean - theta).std(0).min() < 0.1, "which is as small as before"


def test_centred_estimates_are_consistent() -> None:
    theta = STANDARD.sample(6, generator(5))
    sets = drawn(Line(), theta, 20_000)
    model = of_line(bias=lambda values: 0.3 * torch.stack([values[:, 1].square(), -values[:, 1]], dim=1))
    centred = refined(model, sets, Line())
    means, precisions = exact_line(sets)
    assert distances(centred, means, precisions).max().item() < 2.5
    assert distances(refined(model, sets, passes=200), means, precisions).min().item() > 5
    expected = torch.linalg.inv((precisions - ONE) / 1.5 + ONE)  # half as much noise again, from the simulations
    torch.testing.assert_close(centred.covariance, expected, rtol=0.2, atol=0.2 * expected.abs().max().item())


def test_without_bias_and_noise_the_estimate_is_exact() -> None:
    """An exact score, centred by very many simulations, gives back the exact posterior."""
    sets = drawn(Line(), STANDARD.sample(3, generator(5)), 40, 100, 300)
    model = of_line(turn=ONE, bias=biased(torch.zeros(2, dtype=torch.float64)))
    found = refined_estimate(model, sets, make_pools(model, Line(), loss=1e-3), None, 20)
    means, precisions = exact_line(sets)
    assert distances(found, means, precisions).max().item() < 5 * math.sqrt(1e-3)
    torch.testing.assert_close(found.precision, precisions, rtol=0.03, atol=0.03 * precisions.max().item())


def test_local_steps_end_at_the_root_of_the_local_score() -> None:
    """Without simulations the posterior is that of the score as it is, bias included."""
    sets = drawn(Location(), STANDARD.sample(4, generator(5)), 300)
    model = of_location(turn=ONE, says=0.7 * ONE)
    found = refined(model, sets)
    assert bool(found.settled.all())
    mean = torch.stack([rows.mean(0) for rows in sets.to_list()]) + BIAS
    torch.testing.assert_close(found.mean, 300 * mean / 301, rtol=0, atol=2e-3)
    assert torch.equal(found.covariance, found.fisher_covariance)
    assert torch.equal(found.information.fiducial.round(decimals=1), found.mean.round(decimals=1))
    assert found.num_passes == len(model.seen)


def test_spread_may_come_from_rows_that_the_simulator_describes_badly() -> None:
    """Data scatter three times as much as simulated ones; only their own covariance says so."""
    theta = STANDARD.sample(400, generator(5))
    rows = drawn(Location(), torch.zeros_like(theta), 500)
    sets = Sets(3 * rows.values + theta[rows.index], rows.offsets)
    model = of_location()
    errors = {}
    for spread in ("simulated", "observed"):
        centrer = make_pools(model, Location(), loss=0.5, spread=spread)
        errors[spread] = whitened(refined_estimate(model, sets, centrer, None, 20), theta)
    check_honest(errors["observed"])
    assert errors["simulated"].std().item() > 2


def test_estimates_that_do_not_settle_are_reported_with_the_last_two() -> None:
    """A model that claims too little makes steps too long, which grow."""
    sets = drawn(Location(), STANDARD.sample(3, generator(5)), 300)
    model = of_location(turn=ONE, says=0.4 * ONE)
    found = refined(model, sets, passes=3)
    assert found.settled.tolist() == [False] * 3
    assert found.num_passes == 4
    one_less = refined(model, sets, passes=2)
    assert torch.equal(found.previous, one_less.mean)
    message = (
        r"The estimates of sets 0, 1, 2 have not settled after 4 passes: those of set 0 were \[.*\] and then \[.*\]\. "
        r"Train longer, or allow more `passes`"
    )
    with pytest.warns(ConvergenceWarning, match=message) as caught:
        found.reported(STANDARD, clamp=False)
    text = str(caught[0].message)
    assert f"were {one_less.mean[0].tolist()} and then {found.mean[0].tolist()}." in text


def curved(theta: Tensor, *sizes: int) -> tuple[Stub, Sets]:
    return Stub(Curved.score, STANDARD, ONE, biased(BIAS), 3 * ONE), drawn(Curved(), theta, *sizes)


def test_a_curved_model_is_centred_at_its_root() -> None:
    theta = torch.tensor([[1.5, -1.2], [0.1, 0.1], [-0.7, 0.9]], dtype=torch.float64)
    model, sets = curved(theta, 2000)
    found = refined(model, sets, Curved())
    assert bool(found.settled.all())
    mean = torch.stack([rows.mean(0) for rows in sets.to_list()])
    exact, width = torch.asinh(2 * mean) / 2, 1 / (torch.cosh(2 * theta) * math.sqrt(2000))
    assert ((found.mean - exact) / width).abs().max().item() < 5 * math.sqrt(0.5)
    torch.testing.assert_close(found.standard_deviation, math.sqrt(1.5) * width, rtol=0.15, atol=0)


def test_centred_steps_that_do_not_settle_are_reported_with_the_last_two(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sets = curved(torch.tensor([[1.5, -1.2]], dtype=torch.float64), 2000)
    assert refined(model, sets, Curved()).settled.tolist() == [True]
    monkeypatch.setattr(scoring, "CENTRED_STEP", 0.0)  # no step is short enough
    found, one_less = (refined(model, sets, Curved(), passes=passes) for passes in (7, 6))
    assert found.settled.tolist() == [False]
    assert torch.equal(found.previous, one_less.mean)
    assert not torch.equal(found.previous, found.mean)
    with pytest.warns(ConvergenceWarning, match=r"The estimates of sets 0 have not settled after \d+ passes"):
        found.reported(STANDARD, clamp=False)


def test_sets_are_simulated_no_more_than_they_need() -> None:
    """A set that has settled is not simulated again for the sake of others."""
    theta = torch.tensor([[0.0, 0.0], [1.5, -1.2]], dtype=torch.float64)
    model, sets = curved(theta, 2000)
    simulator = Counted(Curved())
    found = refined(model, sets, simulator)
    assert bool(found.settled.all())
    assert found.num_simulated[0].item() != found.num_simulated[1].item()
    assert found.num_simulated.sum().item() == simulator.num_data


BOX = Box([0.0, 0.0], [1.0, 1.0])


@pytest.mark.parametrize("pilot", [None, 100])
@pytest.mark.parametrize("edge", [0.999, 0.97])
def test_estimates_near_an_edge_settle_where_they_should(edge: float, pilot: int | None) -> None:
    """The expansion points stay in the box and the estimates do not: they are those of the score alone."""
    theta = torch.tensor([[edge, 0.5]], dtype=torch.float64).repeat(20, 1)
    model, simulator, sets = of_location(BOX), Counted(Location()), drawn(Location(), theta, 2000)
    found = refined(model, sets, simulator, pilot)
    assert bool(found.settled.all())
    points = torch.cat(simulator.theta)
    assert bool(((points >= BOX.low) & (points <= BOX.high)).all())
    mean = torch.stack([rows.mean(0) for rows in sets.to_list()])
    assert ((found.mean - mean) * math.sqrt(2000)).abs().max().item() < 5 * math.sqrt(0.5)
    assert found.inside.tolist() == ((found.mean >= 0) & (found.mean <= 1)).all(-1).tolist()
    assert 0 < int(found.inside.sum()) < 20
    with pytest.warns(ConvergenceWarning, match=r"The estimates of sets [\d, ]+.* lie outside the prior's support; "):
        left = found.reported(BOX, clamp=False)
    assert torch.equal(left.mean, found.mean)
    clamped = found.reported(BOX, clamp=True)
    assert bool(clamped.inside.all())
    torch.testing.assert_close(clamped.mean, found.mean.clamp(0, 1), rtol=0, atol=1e-7)
    assert torch.equal(clamped.precision, found.precision)


def test_local_steps_near_an_edge_settle() -> None:
    theta = torch.tensor([[0.999, 0.5]], dtype=torch.float64).repeat(20, 1)
    model = of_location(BOX, turn=ONE, bias=torch.tensor([0.02, 0.0], dtype=torch.float64), says=0.9 * ONE)
    found = refined(model, drawn(Location(), theta, 2000))
    assert bool(found.settled.all())
    assert 0 < int(found.inside.sum()) < 20
    points = found.information.fiducial
    assert bool(((points >= 0) & (points <= 1)).all())


def test_a_pilot_takes_one_pass_over_all_data() -> None:
    theta = STANDARD.sample(6, generator(5))
    model, sets = of_location(), drawn(Location(), theta, 4000)
    found = refined(model, sets, Location(), pilot=250)
    assert model.seen.count(24_000) == 1
    assert max(model.seen[:-1]) == 6 * 250, "everything else is done on the pilot"
    assert found.num_passes == 1
    model.seen.clear()
    local = refined(model, sets, pilot=250, passes=100)
    assert model.seen.count(24_000) == 1
    assert local.num_passes == 1


def test_a_pilot_ends_where_all_data_would() -> None:
    """The two differ by the simulations' noise and what one centred step leaves."""
    theta = STANDARD.sample(8, generator(5))
    for simulator, model in ((Line(), of_line()), (Location(), of_location())):
        sets = drawn(simulator, theta, 4000)
        whole, pilot = (
            refined_estimate(model, sets, make_pools(model, simulator, loss=0.02), number, 20) for number in (None, 400)
        )
        assert bool(pilot.settled.all())
        assert distances(pilot, whole.mean, whole.precision).max().item() < 4 * math.sqrt(2 * 0.02)
        torch.testing.assert_close(pilot.precision, whole.precision, rtol=0.1, atol=0.1 * whole.precision.max().item())


def test_a_pilot_larger_than_the_sets_changes_nothing_of_the_estimate() -> None:
    theta = STANDARD.sample(3, generator(5))
    model, sets = of_line(), drawn(Line(), theta, 0, 30, 200)
    whole, pilot = refined(model, sets, Line()), refined(model, sets, Line(), pilot=10**6)
    assert distances(pilot, whole.mean, whole.precision).max().item() < 4


@pytest.mark.parametrize("loss", [0.5, 0.2, 0.05])
def test_no_more_information_is_lost_than_asked(loss: float) -> None:
    theta = STANDARD.sample(3, generator(5))
    model, sets = of_line(), drawn(Line(), theta, 60, 1000, 5000)
    found = refined_estimate(model, sets, make_pools(model, Line(), loss=loss), None, 20)
    assert bool((found.added_noise <= loss + 1e-12).all())
    assert bool((found.added_noise[1:] > loss / 3).all()), "nor much less, which would cost"
    without = (found.precision - ONE) * (1 + found.added_noise).view(-1, 1, 1)
    for given_, rows in zip(without, sets.to_list(), strict=True):
        expected = len(rows) * Line.fisher(rows[:, 1])
        torch.testing.assert_close(given_, expected, rtol=0.25, atol=0.25 * expected.max().item())


@pytest.mark.parametrize("pilot", [None, 100])
def test_simulated_data_are_counted(pilot: int | None) -> None:
    theta = STANDARD.sample(1, generator(5))
    for model, plain in ((of_location(), Location()), (of_line(), Line())):
        simulator = Counted(plain)
        found = refined(model, drawn(plain, theta, 800), simulator, pilot)
        assert found.num_simulated.tolist() == [simulator.num_data]
        assert found.num_simulated.dtype == torch.int64
    uncentred = refined(of_location(), drawn(Location(), theta, 800), passes=200)
    assert uncentred.num_simulated.tolist() == [0]
    assert uncentred.added_noise.tolist() == [0.0]


def test_passes_are_counted() -> None:
    model, sets = of_location(), drawn(Location(), STANDARD.sample(1, generator(5)), 800)
    assert refined(model, sets, Location()).num_passes == len(model.seen)


@pytest.mark.parametrize("pilot", [None, 50])
@pytest.mark.parametrize("kind", ["line", "location"])
def test_empty_sets_and_ragged_sizes(kind: str, pilot: int | None) -> None:
    simulator, model = (Line(), of_line()) if kind == "line" else (Location(), of_location())
    sizes = (0, 1, 7, 0, 400, 3000)
    theta = STANDARD.sample(6, generator(5))
    sets = drawn(simulator, theta, *sizes)
    found = refined(model, sets, simulator, pilot)
    assert bool(found.settled.all())
    assert found.information.count.tolist() == list(sizes)
    for empty in (0, 3):
        torch.testing.assert_close(found.mean[empty], STANDARD.mean)
        torch.testing.assert_close(found.covariance[empty], STANDARD.covariance)
        assert found.num_simulated[empty].item() == 0
        assert found.added_noise[empty].item() == 0
    assert bool((found.num_simulated[[1, 2, 4, 5]] > 0).all())
    assert whitened(found, theta).abs().max().item() < 4
    nothing = refined(model, sets[torch.tensor([0, 3])], simulator, pilot)
    torch.testing.assert_close(nothing.mean, STANDARD.mean.expand(2, 2))
    assert refined(model, sets[:0], simulator, pilot).mean.shape == (0, 2)


def test_a_set_alone_is_estimated_as_among_others() -> None:
    theta = STANDARD.sample(3, generator(5))
    for model, simulator in ((of_location(), Location()), (of_line(), Line())):
        sets = drawn(simulator, theta, 100, 700, 1500)
        together = refined(model, sets, simulator)
        for i in range(3):
            alone = refined(model, sets[i], simulator)
            gap = distances(alone, together.mean[i], together.precision[i : i + 1])
            assert gap.item() < 4 * math.sqrt(2 * 0.5), "other random numbers, the same law"


def test_plain_estimates_take_one_pass_and_claim_nothing_more() -> None:
    model, sets = of_location(), drawn(Location(), STANDARD.sample(3, generator(5)), 10, 0, 50)
    found = plain_estimate(model, sets)
    expected = model.compress(sets).posterior(STANDARD)
    assert torch.equal(found.mean, expected.mean)
    assert torch.equal(found.previous, found.mean)
    assert found.num_passes == 1
    assert bool(found.settled.all())
    assert bool(found.inside.all())
    assert found.num_simulated.tolist() == [0, 0, 0]


def test_estimates_follow_the_generator_alone() -> None:
    theta = STANDARD.sample(3, generator(5))
    model, sets = of_line(), drawn(Line(), theta, 500)

    def mean(seed: int) -> Tensor:
        return refined_estimate(model, sets, make_pools(model, Line(), generator=generator(seed)), None, 20).mean

    assert torch.equal(mean(0), mean(0))
    assert not torch.equal(mean(0), mean(1))


def test_a_score_that_tells_nothing_of_a_parameter_is_refused() -> None:
    flat = TURN * torch.tensor([[1.0], [0.0]])
    model = of_location(turn=flat, says=ONE)
    with pytest.raises(NotPositiveDefiniteError, match=r"The slope of the mean score is singular for sets 0; that of"):
        refined(model, drawn(Location(), torch.zeros(1, 2, dtype=torch.float64), 100), Location())


@pytest.mark.parametrize("passes", [0, -1])
def test_passes_below_one_are_refused(passes: int) -> None:
    model, sets = of_location(), drawn(Location(), torch.zeros(1, 2, dtype=torch.float64), 10)
    with pytest.raises(ConfigError, match=rf"`passes` is {passes} but at least 1 was expected"):
        refined(model, sets, passes=passes)


@pytest.mark.parametrize("pilot", [0, -1])
def test_pilots_of_no_rows_are_refused(pilot: int) -> None:
    model, sets = of_location(), drawn(Location(), torch.zeros(1, 2, dtype=torch.float64), 10)
    with pytest.raises(ConfigError, match=rf"`pilot` is {pilot} but at least 1 row of each set was expected"):
        refined(model, sets, Location(), pilot=pilot)
