"""Pools on models whose score is known: what they measure, at which data, with how many, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.sets.helpers import generator
from tests.sets.stubs import BIAS, TURN, Counted, Line, Location, Stub, biased, of_line, of_location, pools
from torch import Tensor

from fishnets import Sets
from fishnets.errors import ConfigError, DataError
from fishnets.priors import Box
from fishnets.sets import pools as module
from fishnets.sets.centring import Centring

AT = torch.tensor([[0.2, -0.4]], dtype=torch.float64)
AROUND = torch.tensor([[0.3, 0.1]], dtype=torch.float64)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slopes of common random numbers are exact here, so they need few data."""
    monkeypatch.setattr(module, "SLOPE_POOL", (2_000, 4_000))


def location_sets(*sizes: int) -> Sets:
    return Location()(torch.zeros(len(sizes), 2, dtype=torch.float64), torch.tensor(sizes), generator(1))


def line_sets(*sizes: int, simulator: Line = Line()) -> Sets:  # noqa: B008 frozen
    return simulator(torch.zeros(len(sizes), 2, dtype=torch.float64), torch.tensor(sizes), generator(1))


def within(found: Tensor, expected: Tensor, variance: Tensor, number: float, widths: float = 5.0) -> None:
    """A mean of so many draws of this variance is what it should be."""
    assert bool(((found - expected).abs() <= widths * (variance / number).sqrt()).all()), (found, expected)


def test_mean_slope_and_covariance_of_a_turned_and_biased_score() -> None:
    found = pools(of_location(), Location()).measure(location_sets(100), AT, AROUND)
    spread = TURN @ TURN.mT
    within(found.intercept[0], BIAS + TURN @ (AROUND - AT)[0], spread.diagonal(), float(found.num_simulated))
    torch.testing.assert_close(found.slope[0], TURN)
    torch.testing.assert_close(found.spread[0], spread, rtol=0, atol=0.06 * spread.abs().max().item())
    assert torch.equal(found.noise, found.spread)
    assert torch.equal(found.around, AROUND)


def test_slope_of_common_random_numbers_is_exact_to_rounding() -> None:
    """What both sides share cancels: the slope of a location has no noise, however few data it comes from."""
    found = pools(of_location(), Location()).measure(location_sets(10), AT, AROUND)
    torch.testing.assert_close(found.slope[0], TURN, rtol=1e-11, atol=1e-11)


def test_covariates_are_kept_and_each_row_is_drawn_equally_often() -> None:
    sets, simulator = line_sets(7, 300), Counted(Line())
    pools(of_line(), simulator, chunk=999).measure(sets, AT.repeat(2, 1), AROUND.repeat(2, 1))
    drawn = torch.cat([drawn.values[:, 1] for drawn in simulator.drawn])
    for own in sets.to_list():
        times = torch.tensor([int((drawn == x).sum()) for x in own[:, 1]])
        assert times.min() == times.max() > 0
    assert bool(torch.isin(drawn, sets.values[:, 1]).all())


@pytest.mark.parametrize("chunk", [90, 333, 2**16])
def test_mean_and_covariance_are_those_at_the_observed_covariates(chunk: int) -> None:
    """A bias that depends on the covariates shifts the mean by its own mean over the rows, in whatever order."""
    sets = line_sets(250)
    x = sets.values[:, 1].sort().values
    sets = Sets(torch.stack([sets.values[:, 0], x], dim=1), sets.offsets)
    bias = 5 * torch.stack([x.square(), -x], dim=1)
    model = of_line(bias=lambda values: 5 * torch.stack([values[:, 1].square(), -values[:, 1]], dim=1))
    found = pools(model, Line(), chunk=chunk, loss=0.05).measure(sets, AT, AROUND)
    fisher = Line.fisher(x)
    spread = TURN @ fisher @ TURN.mT
    expected = bias.mean(0) + TURN @ fisher @ (AROUND - AT)[0]
    within(found.intercept[0], expected, spread.diagonal(), float(found.num_simulated))
    torch.testing.assert_close(found.slope[0], TURN @ fisher)
    torch.testing.assert_close(found.spread[0], spread, rtol=0, atol=0.08 * spread.abs().max().item())


def test_without_given_covariates_their_scatter_is_part_of_the_covariance() -> None:
    def fresh(theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
        return Line()(theta, size, generator)

    def bias(values: Tensor) -> Tensor:
        return torch.stack([values[:, 1], torch.zeros_like(values[:, 1])], dim=1)

    one = torch.eye(2, dtype=torch.float64)
    found = pools(of_line(turn=one, bias=bias), fresh).measure(line_sets(100), AT, AT)
    fisher = torch.tensor([[1.0, 1.0], [1.0, 28 / 12]], dtype=torch.float64)  # x is uniform from -1 to 3
    scatter = torch.tensor([[16 / 12, 0.0], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(found.spread[0], fisher + scatter, rtol=0, atol=0.1)
    within(found.intercept[0], torch.tensor([1.0, 0.0]).double(), (fisher + scatter).diagonal(), 20_000)


@pytest.mark.parametrize("loss", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("simulator", [Location(), Line()], ids=["location", "line"])
def test_number_of_simulations_follows_size_and_loss_from_a_minimum_on(loss: float, simulator: Any) -> None:
    model = of_location() if isinstance(simulator, Location) else of_line()
    sizes = torch.tensor([10, 400, 3000])
    sets = simulator(torch.zeros(3, 2, dtype=torch.float64), sizes, generator(1))
    points = torch.arange(6.0, dtype=torch.float64).view(3, 2)  # too far from one another to be shared
    found = pools(model, simulator, loss=loss).measure(sets, points, points)
    wanted = (sizes / loss).ceil().clamp(min=module.SMALLEST_POOL)
    assert bool((found.num_simulated >= wanted).all())
    assert bool((found.num_simulated <= wanted + 2 * sizes + 2).all()), "whole rounds over the rows, and no more"
    assert bool((found.added_noise(sizes) <= loss * (1 + 1e-9)).all())


def test_everything_simulated_is_counted() -> None:
    simulator = Counted(Location())
    found = pools(of_location(), simulator).measure(location_sets(100), AT, AROUND)
    assert found.total_simulated.tolist() == [simulator.num_data]
    assert found.total_simulated.dtype == torch.int64
    simulator = Counted(Line())
    found = pools(of_line(), simulator).measure(line_sets(100, 3), AT.repeat(2, 1), AROUND.repeat(2, 1))
    assert found.total_simulated.sum().item() == simulator.num_data


def test_a_rough_pool_is_smaller() -> None:
    settings: dict[str, Any] = {"sets": location_sets(30_000), "at": AT, "around": AT}
    fine, rough = (pools(of_location(), Location()).measure(**settings, rough=rough) for rough in (1.0, 10.0))
    assert fine.num_simulated.tolist() == [300_000]
    assert rough.num_simulated.tolist() == [60_000]


def test_no_more_rows_are_simulated_at_once_than_a_chunk() -> None:
    for simulator, sets in ((Counted(Location()), location_sets(50)), (Counted(Line()), line_sets(50))):
        model = of_location() if isinstance(simulator.simulator, Location) else of_line()
        pools(model, simulator, chunk=1000).measure(sets, AT, AROUND)
        assert max(drawn.num_data for drawn in simulator.drawn) <= 1000


def test_sets_at_one_point_share_a_pool_sized_for_the_largest() -> None:
    simulator, sets = Counted(Location()), location_sets(50, 9000, 700)
    at = torch.cat([AT, AT, AT + 2])
    found = pools(of_location(), simulator).measure(sets, at, at)
    assert torch.equal(found.intercept[0], found.intercept[1])
    assert not torch.equal(found.intercept[0], found.intercept[2])
    assert found.num_simulated.tolist() == [90_000, 90_000, 20_000]
    assert simulator.num_data == found.total_simulated[1:].sum().item(), "a shared pool is drawn once"


def test_sets_with_covariates_of_their_own_share_no_pool() -> None:
    found = pools(of_line(), Line()).measure(line_sets(50, 50), AT.repeat(2, 1), AT.repeat(2, 1))
    assert not torch.equal(found.intercept[0], found.intercept[1])
    assert not torch.equal(found.slope[0], found.slope[1])


def test_near_points_are_moved_to_their_mean_where_pools_can_be_shared() -> None:
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.04, -0.04], [1.0, 0.04]], dtype=torch.float64)
    expected = torch.tensor([[0.02, -0.02], [1.0, 0.02], [0.02, -0.02], [1.0, 0.02]], dtype=torch.float64)
    before = points.clone()
    torch.testing.assert_close(pools(of_location(), Location()).shared(points), expected)
    assert torch.equal(points, before)
    assert torch.equal(pools(of_line(), Line()).shared(points), points)


def test_points_share_a_pool_only_within_their_widths_and_expansion_point() -> None:
    points = torch.tensor([[0.0, 0.0], [0.03, 0.0]], dtype=torch.float64)
    wide, narrow = (scale * torch.eye(2, dtype=torch.float64).expand(2, 2, 2) for scale in (1e2, 1e5))
    shared = pools(of_location(), Location()).shared
    assert torch.equal(*shared(points, wide))
    assert torch.equal(shared(points, narrow), points)
    assert torch.equal(*shared(points, wide, AT.repeat(2, 1)))
    assert torch.equal(shared(points, wide, torch.cat([AT, AT + 1])), points)


def test_observed_covariance_is_that_of_the_rows() -> None:
    """The rows scatter twice as much as the simulator says, which only they can tell."""
    sets = Sets(2 * location_sets(4000, 30).values, location_sets(4000, 30).offsets)
    at = AT.repeat(2, 1)
    found = pools(of_location(), Location(), spread="observed", chunk=777).measure(sets, at, at)
    simulated = pools(of_location(), Location(), chunk=777).measure(sets, at, at)
    for i, rows in enumerate(sets.to_list()):
        scores = Location.score(rows, AT) @ TURN.mT + BIAS
        torch.testing.assert_close(found.spread[i], scores.mT.cov())
    for name in ("noise", "intercept", "slope", "num_simulated"):
        assert torch.equal(getattr(found, name), getattr(simulated, name)), name
    spread, noise = found.spread[0], found.noise[0]
    assert (spread.trace() / noise.trace()).item() == pytest.approx(4, rel=0.1)


def test_too_few_rows_for_their_covariance_are_refused() -> None:
    message = r"Sets 1, 2 have too few rows for the covariance of their scores; use `spread=\"simulated\"`"
    at = torch.zeros(3, 2, dtype=torch.float64)
    with pytest.raises(DataError, match=message):
        pools(of_location(), Location(), spread="observed").measure(location_sets(3, 2, 1), at, at)


@pytest.mark.parametrize("distance", [1e-9, 1e-3, 0.1, 0.5])
def test_steps_stay_in_the_support_of_the_prior(distance: float) -> None:
    box, simulator = Box([0.0, 0.0], [1.0, 2.0]), Counted(Location())
    around = torch.tensor([[distance, 2.0 - distance]], dtype=torch.float64)
    found = pools(of_location(box), simulator).measure(location_sets(10), around, around)
    theta = torch.cat(simulator.theta)
    assert bool((theta >= box.low).all())
    assert bool((theta <= box.high).all())
    torch.testing.assert_close(found.slope[0], TURN, rtol=0, atol=1e-14 / distance)


class Decays:
    """Rows k ~ Poisson(θ) in each dimension: no smooth function of the parameters and the same random numbers."""

    def __call__(self, theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
        rates = theta.repeat_interleave(size, dim=0)
        return Sets(torch.poisson(rates, generator=generator), torch.cat([size.new_zeros(1), size.cumsum(0)]))

    @staticmethod
    def score(values: Tensor, points: Tensor) -> Tensor:
        return values / points - 1


@pytest.mark.parametrize("distance", [0.0, 1e-6, 0.01, 0.3])
def test_a_slope_at_an_edge_is_as_good_as_elsewhere(distance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the support ends, one side of the slope comes from a shorter step, or none; the other side does not."""
    monkeypatch.setattr(module, "SLOPE_POOL", (50_000, 50_000))
    box, simulator = Box([1.0, 1.0], [3.0, 3.0]), Counted(Decays())
    model = Stub(Decays.score, box, torch.eye(2, dtype=torch.float64), biased(BIAS), torch.eye(2, dtype=torch.float64))
    around = torch.tensor([[1.0 + distance, 3.0 - distance]], dtype=torch.float64)
    found = pools(model, simulator).measure(location_sets(10), around, around)
    theta = torch.cat(simulator.theta)
    assert bool(((theta >= box.low) & (theta <= box.high)).all())
    torch.testing.assert_close(found.slope[0], torch.diag(1 / around[0]), rtol=0, atol=0.3)


def test_an_empty_set_is_left_without_information() -> None:
    for model, simulator in ((of_location(), Location()), (of_line(), Line())):
        sets = simulator(torch.zeros(3, 2, dtype=torch.float64), torch.tensor([0, 200, 0]), generator(1))
        at = AT.repeat(3, 1)
        found = pools(model, simulator).measure(sets, at, at)
        information = found.apply(model.compress(sets, at))
        assert bool((information.fisher[[0, 2]] == 0).all())
        assert bool((information.score[[0, 2]] == 0).all())
        assert bool((torch.linalg.eigvalsh(information.fisher[1]) > 0).all())
        nothing = pools(model, simulator).measure(sets[0], AT, AT).apply(model.compress(sets[0], AT))
        assert bool((nothing.fisher == 0).all())


def same(a: Centring, b: Centring) -> bool:
    names = ("intercept", "slope", "spread", "noise", "num_simulated", "total_simulated")
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in names)


@pytest.mark.parametrize("simulator", [Location(), Line()], ids=["location", "line"])
def test_measurements_follow_the_generator_alone(simulator: Any) -> None:
    model = of_location() if isinstance(simulator, Location) else of_line()
    sets = simulator(torch.zeros(2, 2, dtype=torch.float64), torch.tensor([60, 20]), generator(1))
    points = torch.cat([AT, AROUND])

    def measured(seed: int) -> Centring:
        return pools(model, simulator, generator=generator(seed)).measure(sets, points, points)

    assert same(measured(0), measured(0))
    assert not same(measured(0), measured(1))
    source = generator(0)
    twice = [pools(model, simulator, generator=source).measure(sets, points, points) for _ in range(2)]
    assert not torch.equal(twice[0].intercept, twice[1].intercept), "draws go on; they are not repeated"


def test_single_precision_rows_are_simulated_in_single_precision() -> None:
    simulator = Counted(Location())
    found = pools(of_location(), simulator).measure(location_sets(100).to(dtype=torch.float32), AT, AROUND)
    assert {sets.values.dtype for sets in simulator.drawn} == {torch.float32}
    assert found.slope.dtype == torch.float64
    torch.testing.assert_close(found.slope[0], TURN, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("loss", [0.0, 1.0, -0.1, 2.0, math.nan])
def test_impossible_losses_are_refused(loss: float) -> None:
    with pytest.raises(ConfigError, match=rf"`loss` is {loss} but a share of the information between 0 and 1 was exp"):
        pools(of_location(), Location(), loss=loss)


def test_misspelt_spread_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'`spread` is \'robust\' but "simulated" or "observed" was expected'):
        pools(of_location(), Location(), spread="robust")


def test_what_is_no_simulator_is_refused() -> None:
    with pytest.raises(DataError, match=r"`simulator` is a Sets but a simulator, called as `simulator\(theta, size, g"):
        pools(of_location(), location_sets(3))


def test_simulator_that_returns_the_wrong_thing_is_refused() -> None:
    def wrong(theta: Tensor, size: Tensor, generator: torch.Generator) -> Any:
        return Location()(theta, size, generator).values

    class Wrong(Line):
        def like(self, sets: Sets, theta: Tensor, generator: torch.Generator) -> Any:
            return super().like(sets, theta, generator).values

    message = r"The simulator returned a Tensor but `fishnets.Sets` was expected"
    with pytest.raises(DataError, match=message):
        pools(of_location(), wrong).measure(location_sets(3), AT, AT)
    with pytest.raises(DataError, match=message):
        pools(of_line(), Wrong()).measure(line_sets(3), AT, AT)


@pytest.mark.parametrize("half_width", [1.0, 10.0, 1000.0])
def test_steps_are_small_beside_what_a_datum_tells_however_wide_the_prior(half_width: float) -> None:
    """The mean score of counts with rate exp(θ) is exp(θ') - exp(θ): over wide steps its slope is too steep."""

    def counts(theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
        rate = theta.exp().repeat_interleave(size, dim=0)
        offsets = torch.cat([size.new_zeros(1), size.cumsum(0)])
        return Sets(torch.poisson(rate, generator=generator), offsets)

    prior = Box([-half_width], [half_width])
    one, none = torch.ones(1, 1, dtype=torch.float64), biased(torch.zeros(1, dtype=torch.float64))
    model = Stub(lambda values, points: values - points.exp(), prior, one, none, one, num_features=1)
    point = torch.zeros(1, 1, dtype=torch.float64)
    sets = counts(point, torch.tensor([50]), generator(2))
    found = pools(model, counts).measured(sets, point, point, [200_000], [200_000])
    assert float(found.slope) == pytest.approx(1.0, abs=0.03)
    assert float(found.spread) == pytest.approx(1.0, abs=0.03)


def test_a_simulator_that_selects_may_return_other_numbers_of_data() -> None:
    """Normals of which those below -1 are lost: mean and covariance are those of what is left."""

    def selected(theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
        rows = Location()(theta, size, generator)
        keep = (rows.values > -1).all(1)
        sizes = torch.zeros_like(size).index_add(0, rows.index, keep.long())
        return Sets(rows.values[keep], torch.cat([size.new_zeros(1), sizes.cumsum(0)]))

    at = torch.zeros(2, 2, dtype=torch.float64)
    sets = location_sets(40, 90)
    found = pools(of_location(), selected, chunk=997).measured(sets, at, at, [30_000, 60_000], [2_000, 2_000])
    kept = 0.8413447460685429**2
    wanted = torch.tensor([30_000.0, 60_000.0], dtype=torch.float64)
    torch.testing.assert_close(found.num_simulated, kept * wanted, rtol=0.02, atol=0)
    mean = 0.24197072451914337 / 0.8413447460685429  # of a normal above -1
    expected = TURN @ torch.full((2,), mean, dtype=torch.float64) + BIAS
    torch.testing.assert_close(found.intercept, expected.expand(2, 2), rtol=0, atol=0.05)


def test_data_of_other_sizes_at_given_covariates_are_refused() -> None:
    class Shuffled(Line):
        def like(self, sets: Sets, theta: Tensor, generator: torch.Generator) -> Sets:
            drawn = super().like(sets, theta, generator)
            return Sets(drawn.values[1:], (drawn.offsets - 1).clamp(min=0))

    with pytest.raises(DataError, match=r"`like` returned sets of other sizes than it was given\.$"):
        pools(of_line(), Shuffled()).measure(line_sets(50), AT, AROUND)


def test_data_that_are_not_finite_and_data_that_do_not_come_are_named() -> None:
    def broken(theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
        rows = Location()(theta, size, generator)
        rows.values[3] = torch.inf
        return rows

    with pytest.raises(DataError, match="NaN or infinite"):
        pools(of_location(), broken).measure(location_sets(50), AT, AROUND)

    def nothing(theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
        return Sets(theta.new_zeros(0, 2), size.new_zeros(len(size) + 1))

    with pytest.raises(DataError, match=r"returned 0 data around the estimate of set 0, of which many more were asked"):
        pools(of_location(), nothing).measure(location_sets(50), AT, AROUND)


def test_a_like_that_cannot_be_called_is_none() -> None:
    class Without(Location):
        like = None

    assert not pools(of_location(), Without()).at_covariates
