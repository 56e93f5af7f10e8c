"""Stored centrings: the polynomials, what a fit is worth, the covariates it remembers, and what it refuses."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.sets.helpers import generator
from tests.sets.stubs import BIAS, STANDARD, TURN, Counted, Line, Location, Stub, biased, of_line, of_location
from torch import Tensor

from fishnets import Sets
from fishnets.errors import ConfigError, DataError
from fishnets.priors import Box, Normal
from fishnets.sets.scoring import refined_estimate
from fishnets.sets.stored_centring import StoredCentring, _orders, fit_centring, legendre
from fishnets.simulators import GammaPopulation, LinearRegression

BOX = Box([-1.0, 0.0], [1.0, 3.0])
ONE = torch.eye(2, dtype=torch.float64)


def wobble(points: Tensor) -> Tensor:
    """A bias that depends on where the score is expanded, smoothly but not simply."""
    return 0.3 * torch.stack([torch.sin(2 * points[:, 0] + points[:, 1]), points.square().sum(1) / 5], dim=1)


def wobbling(prior: Any = BOX) -> Stub:
    none = biased(torch.zeros(2, dtype=torch.float64))
    return Stub(lambda values, points: values - points + wobble(points), prior, TURN, none, ONE)


def fitted(model: Stub, simulator: Any, num_data: int = 2_000_000, num_points: int = 256, seed: int = 0) -> Any:
    return fit_centring(model, simulator, num_data, num_points, generator(seed), 2**18)


@pytest.fixture(scope="module")
def stored() -> StoredCentring:
    return fitted(wobbling(), Location())


@pytest.fixture(scope="module")
def of_covariates() -> StoredCentring:
    return fitted(of_line(), Line(), 200_000, 64)


def test_products_of_legendre_polynomials() -> None:
    unit = torch.rand((7, 3), generator=generator(), dtype=torch.float64) * 2 - 1
    orders = _orders(3, 6)
    terms = legendre(unit, orders)
    assert terms.shape == (7, len(orders))
    for k, powers in enumerate(orders.tolist()):
        single = [np.polynomial.legendre.legval(unit[:, j].numpy(), [0] * n + [1]) for j, n in enumerate(powers)]
        np.testing.assert_allclose(terms[:, k].numpy(), np.prod(single, axis=0), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("num_params", "degree"), [(1, 0), (1, 10), (2, 4), (3, 6), (20, 2)])
def test_all_terms_of_a_degree_come_once(num_params: int, degree: int) -> None:
    orders = [tuple(term) for term in _orders(num_params, degree).tolist()]
    assert len(orders) == len(set(orders)) == math.comb(num_params + degree, degree)
    assert all(sum(term) <= degree for term in orders)
    if num_params <= 3:
        every = itertools.product(range(degree + 1), repeat=num_params)
        assert set(orders) == {term for term in every if sum(term) <= degree}


def test_a_fit_knows_mean_slope_and_covariance_everywhere(stored: StoredCentring) -> None:
    points = BOX.sample(500, generator(9))
    found = stored.at(points)
    assert torch.equal(found.around, points)
    turned = TURN @ TURN.mT
    torch.testing.assert_close(found.slope, TURN.expand(500, 2, 2), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.spread, turned.expand(500, 2, 2), rtol=0, atol=0.1 * turned.max().item())
    gap = (found.intercept - wobble(points) @ TURN.mT).unsqueeze(-1)
    error = (gap.mT @ torch.linalg.inv(turned) @ gap).mean().item() / 2
    assert error < 1e-4
    assert 1 / 4 < error * stored.num_simulated.item() < 4, "the noise of the fit is what it says"


def test_a_fit_is_worth_more_than_the_simulations_at_one_point(stored: StoredCentring) -> None:
    at_a_point = 2_000_000 / 2 / 256
    assert 3 * at_a_point < stored.num_simulated.item() < 256 * at_a_point
    assert stored.total_simulated.item() == pytest.approx(2_000_000, rel=0.05)
    assert stored.total_simulated.dtype == torch.int64
    assert stored.at(BOX.mean.unsqueeze(0)).total_simulated.tolist() == [0], "an estimate simulates nothing"


def test_a_simple_score_is_fitted_by_few_terms() -> None:
    stored = fitted(of_location(BOX), Location(), 500_000, 128)
    found = stored.at(BOX.sample(100, generator(9)))
    assert len(stored.orders) == 6, "a quadratic"
    assert stored.num_simulated.item() > 5 * 500_000 / 2 / 128
    torch.testing.assert_close(found.intercept, BIAS.expand(100, 2), rtol=0, atol=0.03)


def test_a_covariance_is_one_everywhere_however_much_it_varies() -> None:
    """Polynomials of the entries themselves would turn negative where the covariance is small."""

    def score(values: Tensor, points: Tensor) -> Tensor:
        return (values - points) * torch.exp(-2 * points[:, :1])

    model = Stub(score, BOX, TURN, biased(torch.zeros(2, dtype=torch.float64)), ONE)
    points = BOX.sample(300, generator(9))
    found = fitted(model, Location(), 1_000_000, 128).at(points)
    expected = torch.exp(-4 * points[:, 0]).view(-1, 1, 1) * (TURN @ TURN.mT)
    assert bool((torch.linalg.eigvalsh(found.spread) > 0).all())
    scale = expected.diagonal(dim1=-2, dim2=-1).rsqrt()
    scaled = (found.spread - expected) * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    assert scaled.abs().max().item() < 0.2


def test_points_beyond_the_fit_are_taken_as_on_its_edge(stored: StoredCentring) -> None:
    far = torch.tensor([[5.0, 1.0], [0.0, -9.0]], dtype=torch.float64)
    near = torch.maximum(torch.minimum(far, stored.high), stored.low)
    found, expected = stored.at(far), stored.at(near)
    assert torch.equal(found.around, far)
    for name in ("intercept", "slope", "spread"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))


def test_a_fit_follows_the_generator_alone(stored: StoredCentring) -> None:
    again, other = fitted(wobbling(), Location()), fitted(wobbling(), Location(), seed=1)
    for name, tensor in stored.tensors().items():
        torch.testing.assert_close(again.tensors()[name], tensor, rtol=1e-8, atol=1e-12)
    assert not torch.equal(stored.at(BOX.mean.unsqueeze(0)).intercept, other.at(BOX.mean.unsqueeze(0)).intercept)


def test_steps_stay_in_the_support_of_the_prior() -> None:
    simulator = Counted(Location())
    fitted(of_location(BOX), simulator, 20_000, 64)
    theta = torch.cat(simulator.theta).double()
    assert bool(((theta >= BOX.low - 1e-6) & (theta <= BOX.high + 1e-6)).all())


def test_estimates_are_centred_without_a_simulator(stored: StoredCentring) -> None:
    """The covariance includes what the fit does not know, so that it stays honest in the largest sets."""
    theta = BOX.sample(100, generator(5))
    theta = BOX.mean + 0.8 * (theta - BOX.mean)  # estimates of parameters at the edge may leave the support
    for size in (100, 2000):
        sets = Location()(theta, torch.full((100,), size), generator(6))
        found = refined_estimate(wobbling(), sets, stored, None, 50)
        assert bool(found.settled.all())
        torch.testing.assert_close(found.added_noise, size / stored.num_simulated.expand(100))
        assert found.num_simulated.tolist() == [0] * 100
        width = torch.sqrt((1 + found.added_noise) / size)
        errors = (found.mean - torch.stack([rows.mean(0) for rows in sets.to_list()])) / width.unsqueeze(-1)
        assert errors.std().item() < 0.6, "what is left of the bias is small beside the width"
        torch.testing.assert_close(found.standard_deviation[:, 0], width, rtol=0.1, atol=0.01)
    uncentred = refined_estimate(wobbling(), sets, None, None, 50)
    assert ((uncentred.mean - theta) * math.sqrt(2000)).abs().mean().item() > 3


@pytest.mark.parametrize("pilot", [None, 60])
def test_a_pilot_passes_once_over_the_data(stored: StoredCentring, pilot: int | None) -> None:
    model, theta = wobbling(), BOX.mean.unsqueeze(0)
    sets = Location()(theta, torch.tensor([2000]), generator(6))
    found = refined_estimate(model, sets, stored, pilot, 50)
    assert found.num_passes == model.seen.count(2000)
    assert (found.num_passes == 1) == (pilot is not None)
    assert ((found.mean - theta) / found.standard_deviation).abs().max().item() < 4


def test_covariates_are_recognised_and_remembered(of_covariates: StoredCentring) -> None:
    assert of_covariates.columns.tolist() == [1]
    law = of_covariates.law[:, 0]
    assert bool((law.diff() >= 0).all())
    assert -1 <= law[0].item() < -0.99
    assert 2.99 < law[-1].item() <= 3


@pytest.mark.parametrize(
    ("simulator", "columns"),
    [
        (LinearRegression("log"), [1, 2]),
        (LinearRegression("paper"), [1, 2]),
        (LinearRegression("authors"), [1, 2, 3]),
        (GammaPopulation(), [0]),
        (GammaPopulation(features="log"), [0]),
        (GammaPopulation(threshold=25), []),
        (Location(), []),
    ],
    ids=["log", "paper", "authors", "gamma", "gamma-log", "censored", "location"],
)
def test_columns_that_are_given_are_recognised(simulator: Any, columns: list[int]) -> None:
    """A column that is computed anew, as σ is from ln σ, may differ by rounding and is given nevertheless."""
    prior = getattr(simulator, "prior", STANDARD)
    num_features = getattr(simulator, "num_features", 2)

    def score(values: Tensor, points: Tensor) -> Tensor:
        return values[:, :2] - points

    model = Stub(score, prior, ONE, biased(torch.zeros(2, dtype=torch.float64)), ONE, num_features=num_features)
    assert fitted(model, simulator, 6400, 32).columns.tolist() == columns


def test_the_same_law_is_accepted(of_covariates: StoredCentring) -> None:
    for seed in range(50):
        sets = Line()(torch.zeros(3, 2), torch.tensor([0, 40, 3000]), generator(seed))
        of_covariates.expect_law(sets)


def test_values_that_repeat_are_the_same_in_every_precision() -> None:
    """A covariate of three values, of which float32 and float64 hold different neighbours."""

    class Steps(Line):
        def __call__(self, theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
            which = torch.randint(3, (int(size.sum()),), generator=generator)
            x = torch.tensor([0.1, 0.2, 0.3], dtype=theta.dtype)[which]
            blank = torch.stack([torch.zeros_like(x), x], dim=1)
            return self.like(Sets(blank, torch.cat([size.new_zeros(1), size.cumsum(0)])), theta, generator)

    centring = fitted(of_line(), Steps(), 64_000, 32)
    assert centring.columns.tolist() == [1]
    for dtype in (torch.float32, torch.float64):
        centring.expect_law(Steps()(torch.zeros(1, 2, dtype=dtype), torch.tensor([2_000]), generator(3)))


@pytest.mark.parametrize("line", [Line(-1.0, 2.0), Line(0.0, 3.0), Line(0.9, 1.1)], ids=repr)
def test_another_law_of_covariates_is_refused(of_covariates: StoredCentring, line: Line) -> None:
    sets = line(torch.zeros(2, 2), torch.tensor([500, 500]), generator(1))
    message = (
        r"Column 1 of the sets follows another law than the covariates that the stored centring was fitted under: "
        r"their distributions differ by 0\.\d+, and up to 0\.\d+ would be chance\. Give `simulator=\.\.\.`, whose "
        r"`like` redraws data at the observed covariates, or `centre=False`"
    )
    with pytest.raises(DataError, match=message):
        of_covariates.expect_law(sets)
    with pytest.raises(DataError, match=message):
        refined_estimate(of_line(), sets, of_covariates, None, 20)


def test_one_set_of_another_law_is_refused_whatever_its_batch_mates(of_covariates: StoredCentring) -> None:
    many = Line()(torch.zeros(60, 2), torch.full((60,), 300), generator(1))
    other = Line(0.0, 3.0)(torch.zeros(1, 2), torch.tensor([300]), generator(1))
    of_covariates.expect_law(many)
    with pytest.raises(DataError, match=r"Column 1 of set 60 follows another law than the covariates"):
        of_covariates.expect_law(Sets.concatenate([many, other]))


def test_covariates_of_a_few_values_have_a_law_too() -> None:
    def groups(share: float) -> Any:
        """A line whose covariate is 1 for a share of the rows and 0 for the rest."""

        def simulate(theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
            sets = Line(0.0, 1.0)(theta, size, generator)
            member = (sets.values[:, 1:] < share).to(theta)
            return Line().like(Sets(member.repeat(1, 2), sets.offsets), theta, generator)

        simulate.like = Line().like  # type: ignore[attr-defined]
        return simulate

    stored = fitted(of_line(), groups(0.5), 200_000, 64)
    sizes = torch.tensor([1, 30, 2000])
    stored.expect_law(groups(0.5)(torch.zeros(3, 2), sizes, generator(1)))
    with pytest.raises(DataError, match=r"Column 1 of the sets follows another law .* differ by 0\.[34]"):
        stored.expect_law(groups(0.9)(torch.zeros(3, 2), sizes, generator(1)))


def test_distance_of_laws_is_that_of_kolmogorov_and_smirnov(of_covariates: StoredCentring) -> None:
    """Seen through the message, against the largest gap of two distribution functions."""
    sets = Line(0.0, 3.0)(torch.zeros(1, 2), torch.tensor([700]), generator(1))
    observed, law = sets.values[:, 1].double().numpy(), of_covariates.law[:, 0].numpy()
    grid = np.concatenate([observed, law])
    gap = max(abs((observed <= x).mean() - (law <= x).mean()) for x in grid)
    with pytest.raises(DataError, match=rf"differ by {gap:.3f}"):
        of_covariates.expect_law(sets)


@pytest.mark.parametrize(
    ("num_params", "num_data", "num_points", "fewest", "each"),
    [(2, 10_000, 31, 32, 100), (2, 3_199, 32, 32, 100), (4, 100_000, 39, 40, 200), (13, 10**6, 256, 280, 650)],
)
def test_too_few_points_or_data_are_refused(
    num_params: int, num_data: int, num_points: int, fewest: int, each: int
) -> None:
    one = torch.eye(num_params, dtype=torch.float64)
    prior = Normal(torch.zeros(num_params), one)
    model = Stub(Location.score, prior, one, biased(one[0]), one, num_features=num_params)
    message = (
        f"`num_points` is {num_points} and `num_data` {num_data} but at least {fewest} points with {each} data each"
    )
    with pytest.raises(ConfigError, match=message):
        fitted(model, Location(), num_data, num_points)


def test_as_many_points_as_asked_are_enough_for_many_parameters() -> None:
    one = torch.eye(13, dtype=torch.float64)
    prior = Normal(torch.zeros(13), one)
    model = Stub(Location.score, prior, one, biased(one[0]), one, num_features=13)
    stored = fitted(model, Location(), 650 * 280, 280)
    found = stored.at(prior.sample(5, generator(1)))
    torch.testing.assert_close(found.slope, one.expand(5, 13, 13), rtol=0, atol=1e-4)


def test_what_is_no_simulator_is_refused() -> None:
    with pytest.raises(DataError, match=r"`simulator` is a int but a simulator, called as `simulator\(theta, size, ge"):
        fitted(of_location(BOX), 3)
