"""Estimates: what they say of themselves, and what trained models make of data, with no help from exact answers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.laws import check_printing
from tests.sets.helpers import generator, some_sets, tiny
from torch import Tensor

from fishnets import Estimate, Fishnet, Gaussian, Information, Sets
from fishnets.errors import ConfigError, ConvergenceWarning, DataError, ShapeError
from fishnets.networks import Gated
from fishnets.priors import Box, Normal
from fishnets.sets import pools
from fishnets.simulators import GammaPopulation, LinearRegression, NormalSample
from fishnets.simulators.gamma_quadrature import GammaQuadrature

BOX = Box([0.0, 0.0], [1.0, 2.0])
SIMULATOR = LinearRegression("log")
BRIEF: dict[str, Any] = {"size": (5, 50), "batch_data": 600, "num_validation": 32, "validate_every": 50}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks this small are quick to train, and their slopes need not be known to a per cent."""
    monkeypatch.setattr(pools, "SMALLEST_POOL", 2_000)
    monkeypatch.setattr(pools, "SLOPE_POOL", (4_000, 10_000))


def state(settled: list[bool], mean: list[list[float]]) -> Estimate:
    """An estimate made by hand."""
    number, means = len(mean), torch.tensor(mean, dtype=torch.float64)
    precision = 100 * torch.eye(2, dtype=torch.float64).expand(number, 2, 2)
    information = Information(0 * means, precision, means, torch.full((number,), 9))
    inside = ((means >= BOX.low) & (means <= BOX.high)).all(-1)
    none = torch.zeros(number, dtype=torch.int64)
    return Estimate(
        Gaussian(means, precision), information, torch.linalg.inv(precision), means + 0.25, torch.tensor(settled),
        inside, 3, none.double(), none,
    )  # fmt: skip


def test_an_estimate_is_its_posterior() -> None:
    estimate = state([True], [[0.5, 1.0]])
    assert estimate.mean is estimate.posterior.mean
    assert torch.equal(estimate.precision, estimate.posterior.precision)
    torch.testing.assert_close(estimate.covariance, 0.01 * torch.eye(2, dtype=torch.float64).unsqueeze(0))
    torch.testing.assert_close(estimate.standard_deviation, torch.full((1, 2), 0.1, dtype=torch.float64))
    theta = torch.tensor([[0.4, 1.1]], dtype=torch.float64)
    assert torch.equal(estimate.log_prob(theta), estimate.posterior.log_prob(theta))
    assert torch.equal(estimate.sample(5, generator(1)), estimate.posterior.sample(5, generator(1)))
    assert estimate.sample(5, generator(1)).shape == (5, 1, 2)


def test_printing() -> None:
    estimate = state([True, False, True], [[0.5, 1.0], [0.5, 1.0], [2.0, 1.0]])
    check_printing(estimate, "sets=3", "num_params=2", "passes=3", "settled=2", "inside=2")


def test_nothing_is_warned_of_where_nothing_is_wrong() -> None:
    estimate = state([True, True], [[0.5, 1.0], [0.1, 1.0]])
    assert estimate.warnings == ()
    assert estimate.reported(BOX, clamp=False) is estimate


def test_sets_that_did_not_settle_are_named_with_their_last_two_estimates() -> None:
    estimate = state([True, False, False], [[0.5, 1.0], [0.5, 1.5], [0.25, 1.0]])
    expected = (
        "The estimates of sets 1, 2 have not settled after 3 passes: those of set 1 were [0.75, 1.75] and then [0.5, "
        "1.5]. Train longer, or allow more `passes`."
    )
    assert estimate.warnings == (expected,)
    with pytest.warns(ConvergenceWarning, match="have not settled") as caught:
        estimate.reported(BOX, clamp=False)
    assert [str(warning.message) for warning in caught] == [expected]


def test_estimates_outside_the_support_are_named_and_left() -> None:
    estimate = state([True] * 3, [[0.5, 1.0], [1.5, 1.0], [0.5, -0.1]])
    expected = (
        "The estimates of sets 1, 2 lie outside the prior's support; that of set 1 is [1.5, 1.0]. They are left there; "
        "`clamp=True` brings them in."
    )
    assert estimate.warnings == (expected,)
    with pytest.warns(ConvergenceWarning, match="lie outside the prior's support"):
        assert estimate.reported(BOX, clamp=False) is estimate


def test_clamped_estimates_are_moved_no_farther_than_the_edge() -> None:
    estimate = state([True] * 4, [[0.5, 1.0], [1.001, 0.3], [0.5, -7.0], [3.0, 9.0]])
    clamped = estimate.reported(BOX, clamp=True)
    expected = torch.tensor([[0.5, 1.0], [1.0, 0.3], [0.5, 0.0], [1.0, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(clamped.mean, expected, rtol=0, atol=1e-7)
    assert torch.equal(clamped.mean[0], estimate.mean[0])
    assert bool(clamped.inside.all())
    assert torch.equal(clamped.precision, estimate.precision)
    assert clamped.information is estimate.information
    assert estimate.mean[3].tolist() == [3.0, 9.0], "the state itself is not changed"


def test_both_warnings_may_come_together() -> None:
    with pytest.warns(ConvergenceWarning) as caught:
        state([False], [[1.5, 1.0]]).reported(BOX, clamp=False)
    assert len(caught) == 2
    with pytest.warns(ConvergenceWarning) as caught:
        state([False], [[1.5, 1.0]]).reported(BOX, clamp=True)
    assert len(caught) == 1


@pytest.fixture(scope="module")
def model() -> Fishnet:
    """A small model of linear regression, trained for a moment."""
    trained = Fishnet(3, SIMULATOR.prior, Gated(16, 1), refine=True)
    trained.fit(SIMULATOR, steps=300, **BRIEF)
    return trained


@pytest.fixture(scope="module")
def centred_model(model: Fishnet) -> Fishnet:
    """The same with a stored centring."""
    twin = Fishnet(3, SIMULATOR.prior, Gated(16, 1), refine=True)
    twin.load_state_dict(model.state_dict())
    twin.fitted = True
    twin.fit_centring(SIMULATOR, num_data=1_000_000, num_points=64)
    return twin


def lines(number: int, *sizes: int, simulator: LinearRegression = SIMULATOR) -> tuple[Sets, Tensor]:
    """Sets of linear regression and their parameters."""
    theta = SIMULATOR.prior.sample(number, generator(8))
    size = torch.tensor(sizes if len(sizes) > 1 else sizes * number)
    return simulator(theta.float(), size, generator(9)), theta


def distances(a: Estimate, b: Any) -> Tensor:
    """Distances of estimates in widths of the second, shape (B,)."""
    gap = (a.mean - b.mean).unsqueeze(-1)
    return ((gap.mT @ b.precision @ gap).flatten() / gap.shape[1]).sqrt()


def whitened(estimate: Estimate, theta: Tensor) -> Tensor:
    factor = torch.linalg.cholesky(estimate.precision)
    return (factor.mT @ (theta - estimate.mean).unsqueeze(-1)).squeeze(-1)


@pytest.fixture
def unsettled_is_fine() -> Iterator[None]:
    """For estimates of which it does not matter whether they settled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


@pytest.mark.usefixtures("unsettled_is_fine")
def test_a_trained_model_is_honest_once_centred(model: Fishnet) -> None:
    """However poor the networks, what they say after centring is true; before, it is not."""
    sets, theta = lines(40, 2000)
    centred = model.estimate(sets, simulator=SIMULATOR, loss=0.3)
    errors = whitened(centred, theta)
    assert errors.mean(0).abs().max().item() < 4 / math.sqrt(40)
    assert errors.square().mean().item() == pytest.approx(1, abs=4 * math.sqrt(2 / 80))
    assert whitened(model.estimate(sets, passes=5), theta).square().mean().item() > 5
    assert bool((centred.added_noise <= 0.3).all())


@pytest.mark.usefixtures("unsettled_is_fine")
def test_a_pilot_agrees_with_all_data(model: Fishnet) -> None:
    sets, _ = lines(6, 5000)
    whole, pilot = (model.estimate(sets, simulator=SIMULATOR, loss=0.05, pilot=number) for number in (None, 500))
    assert pilot.num_passes == 1
    assert distances(pilot, whole).mean().item() < 0.7, "a fraction of the width, of which a third is noise"


@pytest.mark.usefixtures("unsettled_is_fine")
def test_a_stored_centring_agrees_with_simulations() -> None:
    simulator = NormalSample()
    model = Fishnet(1, simulator.prior, Gated(16, 1), refine=True)
    model.fit(simulator, steps=300, **BRIEF)
    model.fit_centring(simulator, num_data=1_000_000, num_points=128)
    theta = simulator.prior.mean + 0.7 * (simulator.prior.sample(12, generator(3)) - simulator.prior.mean)
    sets = simulator(theta.float(), torch.full((12,), 1000), generator(4))
    stored, simulated = model.estimate(sets), model.estimate(sets, simulator=simulator, loss=0.02)
    assert stored.num_simulated.tolist() == [0] * 12
    assert bool((stored.added_noise > 0).all())
    assert distances(stored, simulated).mean().item() < 0.5
    torch.testing.assert_close(stored.standard_deviation, simulated.standard_deviation, rtol=0.3, atol=0)


@pytest.mark.usefixtures("unsettled_is_fine")
def test_a_stored_centring_takes_covariates_on_average(centred_model: Fishnet) -> None:
    """Simulations at the observed covariates differ from it by what covariates scatter, which its width includes."""
    sets, theta = lines(20, 1000)
    stored = centred_model.estimate(sets)
    simulated = centred_model.estimate(sets, simulator=SIMULATOR, loss=0.1)
    assert distances(stored, simulated).mean().item() < 1.5
    assert whitened(stored, theta).square().mean().item() == pytest.approx(1, abs=4 * math.sqrt(2 / 40))


def test_a_stored_centring_is_used_unless_told_otherwise(model: Fishnet, centred_model: Fishnet) -> None:
    sets, _ = lines(2, 100)
    stored, asked, plain = (centred_model.estimate(sets, centre=centre) for centre in (None, True, False))
    assert torch.equal(stored.mean, asked.mean)
    assert torch.equal(plain.mean, model.estimate(sets).mean)
    assert not torch.equal(stored.mean, plain.mean)


@pytest.mark.usefixtures("unsettled_is_fine")
@pytest.mark.parametrize(
    ("other", "column"),
    [(LinearRegression("log", x_range=(0.0, 3.0)), 1), (LinearRegression("log", sigma_range=(1.0, 3.0)), 2)],
    ids=["x", "sigma"],
)
def test_a_stored_centring_refuses_other_covariates(centred_model: Fishnet, other: Any, column: int) -> None:
    sets, _ = lines(3, 300, simulator=other)
    message = rf"Column {column} of the sets follows another law than the covariates that the stored centring was fit"
    with pytest.raises(DataError, match=message):
        centred_model.estimate(sets)
    with pytest.raises(DataError, match=message):
        centred_model.estimate(sets, pilot=50)
    centred_model.estimate(sets, centre=False)
    assert centred_model.estimate(sets, simulator=other).num_simulated.min().item() > 0


def test_without_simulator_local_steps_are_taken(model: Fishnet) -> None:
    sets, _ = lines(3, 20, 0, 60)
    found = model.estimate(sets)
    local = model.compress(sets, at=found.information.fiducial)
    assert torch.equal(found.information.score, local.score)
    torch.testing.assert_close(found.mean, local.posterior(model.prior).mean)
    assert found.num_passes > 1
    assert distances(found, Gaussian(found.information.fiducial, found.precision)).max().item() < 0.01
    torch.testing.assert_close(found.mean[1], model.prior.mean)


def test_centring_keeps_what_the_networks_claim(model: Fishnet) -> None:
    sets, _ = lines(2, 400)
    found = model.estimate(sets, simulator=SIMULATOR)
    assert found.fisher_covariance.shape == (2, 2, 2)
    assert not torch.allclose(found.fisher_covariance, found.covariance, rtol=0.01)
    torch.testing.assert_close(found.information.posterior(model.prior).mean, found.mean)
    assert found.information.count.tolist() == [400, 400]


def test_empty_sets_single_rows_and_ragged_sizes(model: Fishnet) -> None:
    sets, _ = lines(5, 0, 1, 2, 30, 700)
    found = model.estimate(sets, simulator=SIMULATOR)
    torch.testing.assert_close(found.mean[0], model.prior.mean)
    torch.testing.assert_close(found.covariance[0], model.prior.covariance)
    assert bool(torch.isfinite(found.mean).all())
    assert bool((found.covariance.diagonal(dim1=-2, dim2=-1) < 1 + 1e-6).all()), "data never widen a posterior"


def test_estimates_are_repeated_exactly_unless_a_generator_says_otherwise(model: Fishnet) -> None:
    sets, _ = lines(2, 300)
    first, again = (model.estimate(sets, simulator=SIMULATOR) for _ in range(2))
    assert torch.equal(first.mean, again.mean)
    assert torch.equal(first.covariance, again.covariance)
    seeded = model.estimate(sets, simulator=SIMULATOR, generator=generator(0))
    assert torch.equal(seeded.mean, first.mean)
    other = model.estimate(sets, simulator=SIMULATOR, generator=generator(1))
    assert not torch.equal(other.mean, first.mean)
    assert distances(other, first).max().item() < 1


def test_chunks_and_precision_hardly_matter(model: Fishnet) -> None:
    sets, _ = lines(3, 40, 300, 200)
    found = model.estimate(sets, simulator=SIMULATOR)
    for changed in (
        model.estimate(sets, simulator=SIMULATOR, chunk=1111),
        model.estimate(sets.to(dtype=torch.float64), simulator=SIMULATOR),
        model.estimate(sets, simulator=SIMULATOR, precision="bfloat16"),
    ):
        assert distances(changed, found).max().item() < 1


def test_observed_spread_is_honest_where_the_simulator_is_not(model: Fishnet) -> None:
    """Errors are half as large again as the simulator thinks; the rows' own scatter shows it."""
    sets, theta = lines(20, 1000)
    y, x, _ = SIMULATOR.columns(sets.values)
    own = theta.float()[sets.index]
    line = own[:, 0] * x + own[:, 1]
    values = sets.values.clone()
    values[:, 0] = line + 1.5 * (y - line)
    wide = Sets(values, sets.offsets)
    simulated, observed = (
        model.estimate(wide, simulator=SIMULATOR, loss=0.2, spread=spread) for spread in ("simulated", "observed")
    )
    ratio = (observed.covariance.det() / simulated.covariance.det()).sqrt()
    assert ratio.mean().item() == pytest.approx(1.5**2, rel=0.45)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": 0.0}, r"`loss` is 0.0 but a share of the information between 0 and 1 was expected"),
        ({"loss": 1.0}, r"`loss` is 1.0 but a share"),
        ({"spread": "robust"}, r'`spread` is \'robust\' but "simulated" or "observed" was expected'),
        ({"passes": 0}, r"`passes` is 0 but at least 1 was expected"),
        ({"pilot": 0}, r"`pilot` is 0 but at least 1 row of each set was expected"),
        ({"chunk": 0}, r"`max_data` is 0 but at least 1 was expected"),
        ({"precision": "half"}, r"`precision` is 'half' but one of \('input', 'bfloat16'\) was expected"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny(refine=True).estimate(some_sets(), simulator=SIMULATOR, **settings)


def test_settings_of_centring_are_looked_at_without_a_simulator_too() -> None:
    for model in (tiny(), tiny(refine=True)):
        with pytest.raises(ConfigError, match="`loss` is 5 but a share"):
            model.estimate(some_sets(), loss=5)
        with pytest.raises(ConfigError, match='`spread="observed"` belongs to centring by simulation: give `simulator'):
            model.estimate(some_sets(), spread="observed")


def test_a_training_that_is_refused_leaves_the_stored_centring(centred_model: Fishnet) -> None:
    stored = centred_model.centring
    assert stored is not None
    with pytest.raises(ConfigError):
        centred_model.fit(SIMULATOR, steps=0)
    assert centred_model.centring is stored


def test_what_is_no_simulator_is_refused() -> None:
    model: Any = tiny(refine=True)
    message = r"`simulator` is a Normal but a simulator, called as `simulator\(theta, size, generator\)`, was expected"
    with pytest.raises(DataError, match=message):
        model.estimate(some_sets(), simulator=SIMULATOR.prior)
    with pytest.raises(DataError, match=message):
        model.fit_centring(SIMULATOR.prior)


def test_centring_needs_simulations() -> None:
    message = r"`centre=True` needs simulations: give `simulator=...`, or store a centring with the model first, `mod"
    with pytest.raises(ConfigError, match=message):
        tiny(refine=True).estimate(some_sets(), centre=True)


@pytest.mark.parametrize("settings", [{"simulator": SIMULATOR}, {"centre": True}, {"pilot": 5}])
def test_refining_needs_local_networks(settings: dict[str, Any]) -> None:
    message = r"`simulator`, `centre` and `pilot` refine an estimate, which takes local networks; make the model with"
    with pytest.raises(ConfigError, match=message):
        tiny().estimate(some_sets(), **settings)
    with pytest.raises(ConfigError, match=r"Centring takes local networks; make the model with `Fishnet\(..., refine="):
        tiny().fit_centring(SIMULATOR)


def test_sets_of_another_width_are_refused() -> None:
    for sets, error in ((Sets.from_list([torch.zeros(2, 4)]), ShapeError), ([torch.zeros(2, 3)], DataError)):
        with pytest.raises(error):
            tiny(refine=True).estimate(sets, simulator=SIMULATOR)  # type: ignore[arg-type]


def test_too_few_rows_for_an_observed_spread_are_refused(model: Fishnet) -> None:
    sets, _ = lines(4, 0, 50, 2, 1)
    with pytest.raises(DataError, match=r"Sets 2, 3 have too few rows for the covariance of their scores; use `sprea"):
        model.estimate(sets, simulator=SIMULATOR, spread="observed")


def test_warnings_point_at_the_caller(model: Fishnet) -> None:
    sets, _ = lines(3, 40)
    with pytest.warns(ConvergenceWarning, match=r"have not settled after 2 passes") as caught:
        found = model.estimate(sets, passes=1)
    assert caught[0].filename == __file__
    assert not bool(found.settled.all())


def test_plain_models_say_which_estimates_are_outside_the_support_without_a_warning() -> None:
    model, sets = tiny(BOX), lines(4, 200)[0]
    with torch.no_grad():
        model.networks.score_head.weight.mul_(100)
    found = model.estimate(sets)
    assert not bool(found.inside.all())
    clamped = model.estimate(sets, clamp=True)
    assert bool(clamped.inside.all())
    torch.testing.assert_close(clamped.mean, found.mean.clamp(BOX.low, BOX.high), rtol=0, atol=1e-6)


ORACLES = [LinearRegression("log"), NormalSample(), GammaPopulation(features="log"), GammaPopulation(threshold=25)]
DRAWING = {"like", "columns"}  # what a simulator is asked for, beside being called


def without_answers(monkeypatch: pytest.MonkeyPatch, kind: type[Any]) -> list[str]:
    """Makes every exact answer of a simulator raise; returns their names."""

    def refuse(*arguments: Any, **settings: Any) -> None:
        raise AssertionError("an exact answer was asked for")

    answers = [name for name, value in vars(kind).items() if callable(value) and not name.startswith("_")]
    answers = [name for name in answers if name not in DRAWING]
    for name in answers:
        monkeypatch.setattr(kind, name, refuse)
    monkeypatch.setattr(GammaQuadrature, "__init__", refuse)
    monkeypatch.setattr("fishnets.simulators.grid.adaptive_grid", refuse)
    return answers


@pytest.mark.usefixtures("unsettled_is_fine")
@pytest.mark.parametrize("simulator", ORACLES, ids=["line", "normal", "gamma", "censored"])
def test_no_exact_answer_is_asked_for(simulator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training and estimating do the same to the last bit where no exact answer can be had.

    A stored centring is fitted by least squares, which a library may round differently from call to call.
    """

    def run() -> tuple[Estimate, ...]:
        model = Fishnet(simulator.num_features, simulator.prior, Gated(8, 1), refine=True)
        model.fit(simulator, steps=60, **BRIEF)
        theta = simulator.prior.sample(3, generator(3))
        sets = simulator(theta.float(), torch.tensor([20, 200, 0]), generator(4))
        first = model.estimate(sets, simulator=simulator), model.estimate(sets, simulator=simulator, pilot=50)
        model.fit_centring(simulator, num_data=20_000, num_points=32)
        return *first, model.estimate(sets)

    expected = run()
    with monkeypatch.context() as patch:
        answers = without_answers(patch, type(simulator))
        assert {"fisher_per_datum", "posterior"} <= set(answers)
        found = run()
    for a, b in zip(found[:2], expected[:2], strict=True):
        for name in ("mean", "precision", "previous", "fisher_covariance", "num_simulated"):
            torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=0, atol=0)
    assert distances(found[2], expected[2]).max().item() < 0.01


class Counts:
    """A simulator of the user's own: counts k ~ Poisson(e exp(a + b x)), exposures e and covariates x given."""

    prior = Normal([0.0, 0.0], [0.25, 0.25])

    def __call__(self, theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
        exposure, x = torch.rand((2, int(size.sum())), generator=generator, dtype=theta.dtype)
        rows = torch.stack([torch.zeros_like(x), (0.5 + 4.5 * exposure).log(), 2 * x - 1], dim=1)
        return self.like(Sets(rows, torch.cat([size.new_zeros(1), size.cumsum(0)])), theta, generator)

    def like(self, sets: Sets, theta: Tensor, generator: torch.Generator) -> Sets:
        _, exposure, x = sets.values.unbind(1)
        own = theta.to(sets.values)[sets.index]
        rate = torch.exp(exposure + own[:, 0] + own[:, 1] * x)
        return Sets(torch.stack([torch.poisson(rate, generator=generator), exposure, x], dim=1), sets.offsets)


def most_probable(sets: Sets, prior: Normal) -> Gaussian:
    """Mode and curvature of the exact posterior of :class:`Counts`, by Newton's method."""
    modes, precisions = [], []
    own = torch.linalg.inv(prior.covariance)
    for rows in sets.to_list():
        count, exposure, x = rows.double().unbind(1)
        design, theta = torch.stack([torch.ones_like(x), x], dim=1), torch.zeros(2, dtype=torch.float64)
        for _ in range(30):
            rate = torch.exp(exposure + design @ theta)
            precision = (design * rate.unsqueeze(1)).mT @ design + own
            theta = theta + torch.linalg.solve(precision, design.mT @ (count - rate) - own @ (theta - prior.mean))
        modes.append(theta)
        precisions.append(precision)
    return Gaussian(torch.stack(modes), torch.stack(precisions))


@pytest.mark.usefixtures("unsettled_is_fine")
def test_counts_with_exposures_are_estimated_as_by_maximum_likelihood() -> None:
    """A simulator of the user's own needs nothing but draws; centring brings a briefly trained model to the mode."""
    simulator = Counts()
    model = Fishnet(3, Counts.prior, Gated(16, 1), refine=True)
    model.fit(simulator, size=(5, 100), steps=400, batch_data=1000, num_validation=32, validate_every=100)
    theta = Counts.prior.sample(6, generator(3))
    sets = simulator(theta.float(), torch.full((6,), 5000), generator(4))
    exact = most_probable(sets, Counts.prior)
    centred = model.estimate(sets, simulator=simulator, loss=0.05)
    assert distances(centred, exact).mean().item() < 0.7
    assert distances(model.estimate(sets), exact).mean().item() > 2
    ratio = (exact.precision.det() / centred.precision.det()).sqrt()
    assert 1 < ratio.mean().item() < 2, "wider than the optimum, and not by much"
