"""The training loop: it learns, keeps the best, stops and fails as promised."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.sets.helpers import (
    FACTORS,
    PRIOR,
    QUICK,
    SIMULATOR,
    Disc,
    Recorded,
    at_step,
    mean_loss,
    same_history,
    same_weights,
    spoiled,
    stored,
    tiny,
)
from torch import Tensor

from fishnets import History, Sets
from fishnets.errors import (
    ConfigError,
    DataError,
    NonFiniteLossError,
    ShapeError,
    SupportError,
)
from fishnets.networks import MLP, Gated
from fishnets.priors import Box, Normal
from fishnets.sets.objective import Objective, build_objective
from fishnets.sets.sources import Batch, NoisySource
from fishnets.sets.training import Settings

LONG = QUICK | {"steps": 60, "validate_every": 7}
FEW = QUICK | {"steps": 1, "validate_every": 1}


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("size", [1, 20, 500, 100_000])
def test_first_loss_is_of_order_one(factor: str, members: int, size: int, device) -> None:
    model = tiny(factor=factor, members=members)
    few = 2 if size > 1000 else 16
    history = model.fit(SIMULATOR, **(FEW | {"size": size, "num_validation": few}), device=device)
    assert len(history.validation_loss[0]) == members
    assert all(abs(loss) < 20 for loss in history.validation_loss[0])


@pytest.mark.parametrize("network", [MLP(256, 3, "elu"), MLP(50, 3, "swish"), Gated(), Gated(32, 6)], ids=repr)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("factor", ["full", "rank-2"])
def test_first_loss_is_of_order_one_whatever_the_network(network: Any, shared: bool, factor: str) -> None:
    model = tiny(network=network, shared=shared, factor=factor, members=2)
    history = model.fit(SIMULATOR, **(FEW | {"size": (1, 200)}))
    assert all(abs(loss) < 20 for loss in history.validation_loss[0])


@pytest.mark.parametrize("prior", [Box([-3.0, 0.0], [3.0, 50.0]), Disc(), PRIOR], ids=["box", "disc", "normal"])
def test_first_loss_is_of_order_one_whatever_the_prior(prior: Any) -> None:
    for fiducial in (None, prior.mean + 0.5):
        history = tiny(prior, fiducial=fiducial).fit(SIMULATOR, **FEW)
        assert abs(history.validation_loss[0][0]) < 20


@pytest.mark.parametrize("factor", FACTORS)
def test_first_loss_is_of_order_one_on_ragged_sets(factor: str) -> None:
    history = tiny(factor=factor, members=2).fit(*stored(largest=300), steps=1)
    assert all(abs(loss) < 20 for loss in history.validation_loss[0])


def test_training_on_a_simulator_beats_the_prior() -> None:
    model, simulator = tiny(members=2), Recorded()
    history = model.fit(simulator, size=(20, 100), steps=300, batch_data=400, num_validation=64, learning_rate=1e-2)
    prior_loss = 0.5 * simulator.theta.square().sum(1).mean().item()
    exact = SIMULATOR.posterior(simulator.sets)
    exact_loss = -exact.log_prob(simulator.theta).mean().item() - math.log(2 * math.pi)
    assert all(loss < history.validation_loss[0][0] for loss in history.best_loss)
    assert all(exact_loss - 0.1 < loss < prior_loss - 1 for loss in history.best_loss)


def test_training_on_stored_ragged_sets_lowers_the_loss() -> None:
    sets, theta = stored(300, largest=60)
    history = tiny().fit(sets, theta, steps=200, batch_data=500, learning_rate=1e-2)
    assert history.best_loss[0] < history.validation_loss[0][0] - 0.3
    assert history.train_loss[-1][0] < history.train_loss[1][0]


@pytest.mark.parametrize("smallest", [0, 1])
def test_sets_of_no_rows_and_of_one_are_fine(smallest: int) -> None:
    history = tiny().fit(*stored(40, smallest=smallest, largest=1), steps=5)
    assert all(math.isfinite(loss) for (loss,) in history.validation_loss)


def test_history_of_a_fit() -> None:
    history = tiny(members=2).fit(SIMULATOR, **(QUICK | {"size": 10, "steps": 22}))
    assert history.steps == [0, 5, 10, 15, 20, 22]
    for losses in (history.train_loss, history.validation_loss):
        assert [len(loss) for loss in losses] == [2] * 6
    assert len(history.learning_rate) == 6
    for k in range(2):
        column = [loss[k] for loss in history.validation_loss]
        assert history.best_loss[k] == min(column)
        assert history.best_step[k] == history.steps[column.index(min(column))]
    assert len(history.clipped) == 2
    assert history.num_steps == 22
    assert history.num_data == 22 * 60
    assert history.seconds > 0
    assert history.stopped == "finished"
    assert History(**history.to_dict()) == history


def test_early_stopping_by_patience() -> None:
    history = tiny().fit(SIMULATOR, **(LONG | {"learning_rate": 0.0, "validate_every": 5, "patience": 3}))
    assert history.stopped == "patience"
    assert history.num_steps == 15


def test_a_first_loss_that_is_not_finite_is_no_lowest_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """An untrained network may give no finite loss on some set; what it learns later is kept all the same."""

    def make(*given: Any) -> Callable[[Batch], Tensor]:
        objective, looks = Objective(*given), iter([torch.nan])
        return lambda batch: objective(batch) + (0.0 if torch.is_grad_enabled() else next(looks, 0.0))

    monkeypatch.setattr("fishnets.sets.objective.Objective", make)
    history = tiny(members=2).fit(SIMULATOR, **QUICK)
    assert all(math.isnan(loss) for loss in history.validation_loss[0])
    assert min(history.best_step) > 0
    assert all(math.isfinite(loss) for loss in history.best_loss)


def test_no_patience_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="`patience` is 0 but at least 1, or None, was expected"):
        tiny().fit(SIMULATOR, **(QUICK | {"patience": 0}))


def test_no_patience_never_stops_early() -> None:
    history = tiny().fit(SIMULATOR, **(QUICK | {"learning_rate": 0.0, "validate_every": 1}))
    assert (history.stopped, history.num_steps) == ("finished", 20)


def test_of_weights_that_validation_cannot_tell_apart_the_newest_are_kept() -> None:
    """A run whose loss only wanders ends with its last weights, not with the luckiest."""
    history = tiny().fit(SIMULATOR, **(QUICK | {"steps": 40, "learning_rate": [(40, 1e-7)], "validate_every": 1}))
    assert history.best_step == [40]
    assert history.best_loss == history.validation_loss[-1]


DESTRUCTIVE = [(20, 1e-2), (20, 0.3)]  # rates that first learn, then ruin


@pytest.mark.parametrize("members", [1, 3])
def test_best_weights_of_each_member_are_kept(members: int) -> None:
    model, simulator = tiny(members=members), Recorded()
    history = model.fit(simulator, **(QUICK | {"steps": 40, "learning_rate": DESTRUCTIVE}))
    assert all(best < last for best, last in zip(history.best_loss, history.validation_loss[-1], strict=True))
    for k, best in enumerate(history.best_loss):
        model.weights.copy_(torch.eye(members)[k])
        assert mean_loss(model, simulator.sets, simulator.theta) == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize(
    "prior", [Normal([1.0, -2.0], [[4.0, 0.5], [0.5, 0.25]]), Box([-3.0, 0.0], [3.0, 5.0])], ids=["normal", "box"]
)
@pytest.mark.parametrize("fiducial", [None, [2.0, 1.0]])
def test_loss_is_minus_the_log_posterior_of_the_truth(prior: Any, fiducial: list[float] | None) -> None:
    model, simulator = tiny(prior, fiducial=fiducial), Recorded()
    history = model.fit(simulator, **QUICK)
    assert mean_loss(model, simulator.sets, simulator.theta) == pytest.approx(history.best_loss[0], abs=1e-4)


def test_last_weights_are_kept_when_asked() -> None:
    model, simulator = tiny(), Recorded()
    history = model.fit(simulator, **(QUICK | {"steps": 40, "learning_rate": DESTRUCTIVE}), keep_best=False)
    assert mean_loss(model, simulator.sets, simulator.theta) == pytest.approx(history.validation_loss[-1][0], rel=1e-3)


def test_members_are_weighed_by_their_validation_loss() -> None:
    model = tiny(members=3)
    history = model.fit(SIMULATOR, **QUICK)
    torch.testing.assert_close(model.weights, torch.softmax(-torch.tensor(history.best_loss, dtype=torch.float64), 0))


def test_training_is_the_same_from_run_to_run() -> None:
    a, b = tiny(members=2), tiny(members=2)
    assert same_history(a.fit(SIMULATOR, **QUICK), b.fit(SIMULATOR, **QUICK))
    assert same_weights(a, b)


def test_training_follows_the_seed() -> None:
    a, b = tiny(seed=1), tiny(seed=2)
    b.networks.load_state_dict(a.networks.state_dict())
    assert a.fit(SIMULATOR, **QUICK).validation_loss[0] != b.fit(SIMULATOR, **QUICK).validation_loss[0]


def test_global_random_states_are_left_alone() -> None:
    def states() -> tuple[bytes, bytes, int]:
        numpy_state = np.random.get_state()[1].tobytes()  # noqa: NPY002
        return torch.get_rng_state().numpy().tobytes(), numpy_state, hash(random.getstate())

    before = states()
    tiny().fit(SIMULATOR, **QUICK)
    tiny().fit(*stored(), steps=3)
    assert states() == before


@pytest.mark.parametrize("clip", [1e9, 0.3])
def test_member_of_an_ensemble_trains_as_it_would_alone(clip: float) -> None:
    ensemble, alone = tiny(members=3), [tiny() for _ in range(3)]
    for k, single in enumerate(alone):
        single.networks.load_state_dict(
            {name: value[k : k + 1] for name, value in ensemble.networks.state_dict().items()}
        )
    together = ensemble.fit(SIMULATOR, **QUICK, clip=clip, learning_rate=1e-3)
    separate = [single.fit(SIMULATOR, **QUICK, clip=clip, learning_rate=1e-3) for single in alone]
    assert together.clipped == [history.clipped[0] for history in separate]
    for k, (single, history) in enumerate(zip(alone, separate, strict=True)):
        assert [loss[k] for loss in together.validation_loss] == pytest.approx(
            [loss for (loss,) in history.validation_loss], abs=1e-4
        )
        for name, value in single.networks.state_dict().items():
            torch.testing.assert_close(ensemble.networks.state_dict()[name][k], value[0], rtol=1e-3, atol=2e-4)


def test_clipped_steps_are_counted() -> None:
    assert tiny(members=2).fit(SIMULATOR, **QUICK, clip=1e-6).clipped == [20, 20]
    assert tiny(members=2).fit(SIMULATOR, **QUICK, clip=1e9).clipped == [0, 0]


def test_stairs_of_learning_rates() -> None:
    stairs = [(5, 1e-2), (10, 1e-3), (2, 1e-4)]
    history = tiny().fit(SIMULATOR, **(QUICK | {"validate_every": 1, "learning_rate": stairs}))
    assert history.learning_rate == [1e-2] * 5 + [1e-3] * 10 + [1e-4] * 6


def test_cosine_of_learning_rates_warms_up_and_ends_at_nothing() -> None:
    settings = Settings(1000, 1e-2, 10, None, 1.0, True, 0, 0)
    rates = [settings.rate_at(step) for step in range(1001)]
    assert rates[0] == pytest.approx(1e-4)
    assert max(rates) == pytest.approx(1e-2, rel=0.03)
    assert rates[500] == pytest.approx(5e-3)
    assert rates[1000] == pytest.approx(0)
    assert sorted(rates[100:], reverse=True) == rates[100:]


def test_second_fit_starts_from_the_first() -> None:
    model, simulator = tiny(), Recorded()
    first = model.fit(SIMULATOR, **QUICK)
    shift = model.feature_shift.clone()
    second = model.fit(simulator, **(QUICK | {"learning_rate": 1e-4}))
    assert second.validation_loss[0][0] < first.validation_loss[0][0] - 0.1
    assert torch.equal(model.feature_shift, shift)


def test_a_second_fit_sees_other_simulations() -> None:
    model, first, second = tiny(), Recorded(), Recorded()
    model.fit(first, **QUICK)
    model.fit(second, **QUICK)
    assert not torch.equal(first.theta, second.theta)


def test_a_fit_that_is_refused_leaves_the_model_unfitted(tmp_path: Path) -> None:
    model = tiny()
    with pytest.raises(ConfigError, match="there is no folder"):
        model.fit(SIMULATOR, **QUICK, checkpoint=tmp_path / "missing" / "run")
    assert not model.fitted


def test_float64_data_are_standardised_before_they_become_float32() -> None:
    """Features on a large offset train as well as without it."""

    def lifted(theta: torch.Tensor, size: torch.Tensor, generator: torch.Generator) -> Sets:
        sets = SIMULATOR(theta, size, generator)
        return Sets(sets.values.double() + 2.0**26, sets.offsets)

    plain, high = (tiny().fit(simulator, **QUICK).best_loss[0] for simulator in (SIMULATOR, lifted))
    assert high == pytest.approx(plain, abs=1e-3)


def test_bfloat16_changes_little() -> None:
    settings = QUICK | {"learning_rate": 1e-3}
    fine, coarse = tiny(network=MLP(32, 2)), tiny(network=MLP(32, 2))
    a, b = fine.fit(SIMULATOR, **settings), coarse.fit(SIMULATOR, **settings, precision="bfloat16")
    assert a.validation_loss[0] == b.validation_loss[0], "looks are float32 throughout"
    assert a.train_loss[1] != b.train_loss[1]
    torch.testing.assert_close(torch.tensor(a.validation_loss), torch.tensor(b.validation_loss), rtol=0, atol=0.05)
    assert all(p.dtype == torch.float32 for p in coarse.parameters())


def test_a_bfloat16_training_ends_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last fiftieth of the updates, two of a hundred, and every look are float32; the other updates are not."""
    updates, looks = recorded_precisions(monkeypatch)
    tiny().fit(SIMULATOR, **(QUICK | {"steps": 100}), precision="bfloat16")
    assert updates == ["half"] * 98 + ["float32"] * 2
    assert looks == ["float32"] * 21


def test_a_float32_training_is_float32_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    updates, looks = recorded_precisions(monkeypatch)
    tiny().fit(SIMULATOR, **QUICK, precision="float32")
    assert (updates, looks) == (["float32"] * 20, ["float32"] * 5)


def recorded_precisions(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    """The precisions in which updates (with gradients) and looks (without) will have been evaluated, in order."""
    updates: list[str] = []
    looks: list[str] = []

    def make(*given: Any) -> Callable[[Batch], Tensor]:
        objective = Objective(*given)

        def losses(batch: Batch) -> Tensor:
            value = objective(batch)
            (updates if value.requires_grad else looks).append("half" if objective.half else "float32")
            return value

        return losses

    monkeypatch.setattr("fishnets.sets.objective.Objective", make)
    return updates, looks


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, r"`steps` is 0 and `validate_every` \d+; both must be at least 1"),
        ({"validate_every": 0}, r"`steps` is 20 and `validate_every` 0; both must be at least 1"),
        ({"clip": 0.0}, r"`clip` is 0.0 but a positive gradient norm was expected"),
        ({"clip": math.nan}, r"`clip` is nan but a positive gradient norm was expected"),
        ({"learning_rate": []}, r"`learning_rate` is \[\] but a rate or stairs \[\(steps, rate\), ...\] were expected"),
        ({"learning_rate": -1.0}, r"`learning_rate` is -1.0 but a rate or stairs"),
        ({"size": (9, 3), "batch_data": None}, r"`size` is \(9, 3\) but a whole number or a range"),
        ({"size": (9, 3)}, r"`size` is \(9, 3\) but a whole number or a range"),
        ({"num_validation": 0}, r"`num_validation` is 0 but at least 1 was expected"),
        ({"precision": "fp16"}, r"`precision` is 'fp16' but one of \('auto', 'float32', 'bfloat16'\) was expected"),
        ({"compile": "yes"}, r"`compile` is 'yes' but one of \('auto', 'on', 'off'\) was expected"),
        ({"checkpoint": "nowhere/at/all"}, r"`checkpoint` is nowhere/at/all but there is no folder nowhere/at"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny().fit(SIMULATOR, **(QUICK | settings))


def test_stored_sets_need_their_parameters() -> None:
    with pytest.raises(DataError, match=r"Stored sets need the parameters they were made with: `model.fit\(sets, the"):
        tiny().fit(stored()[0])


def test_simulators_take_no_parameters() -> None:
    with pytest.raises(DataError, match=r"`theta` goes with stored sets; a simulator is given its parameters by the"):
        tiny().fit(SIMULATOR, torch.zeros(3, 2))


def test_parameters_of_another_number_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"`theta` has shape \(59, 2\) but one row per set, \(60, p\), was expected"):
        tiny().fit(stored()[0], torch.zeros(59, 2))


def test_parameters_outside_the_prior_are_refused_naming_the_rows() -> None:
    theta = torch.full((60, 2), 0.5)
    theta[[4, 17]] = 2.0
    with pytest.raises(SupportError, match=r"2 of 60 rows of `theta` lie outside .*: rows 4, 17; row 4 is \[2.0, 2"):
        tiny(Box([0.0, 0.0], [1.0, 1.0])).fit(stored()[0], theta)


def test_stored_sets_of_another_width_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"The sets have 4 features but the model was made for 3"):
        tiny().fit(Sets.from_list([torch.zeros(3, 4)] * 5), torch.zeros(5, 2))


def test_data_that_are_neither_sets_nor_a_simulator_are_refused() -> None:
    with pytest.raises(DataError, match=r"`fit` was given a Tensor but a simulator"):
        tiny().fit(torch.zeros(3, 3))  # type: ignore[arg-type]


def test_loss_that_is_not_finite_stops_training_and_names_the_rows() -> None:
    message = r"The loss is nan at step 17 \(member 0, 2 of 2\).*keeps its best weights .*set 1 row 2"
    with pytest.raises(NonFiniteLossError, match=message):
        tiny(members=2).fit(at_step(17, spoiled), **QUICK)


def test_weights_after_a_loss_that_is_not_finite_are_the_last_good_ones(tmp_path: Path) -> None:
    good, bad, simulator = tiny(), tiny(), Recorded(at_step(17, spoiled))
    expected = good.fit(SIMULATOR, **QUICK)
    with pytest.raises(NonFiniteLossError):
        bad.fit(simulator, **QUICK, checkpoint=tmp_path / "run")
    assert mean_loss(bad, simulator.sets, simulator.theta) == pytest.approx(
        min(loss for step, (loss,) in zip(expected.steps, expected.validation_loss, strict=True) if step < 17), abs=1e-4
    )
    assert not (tmp_path / "run").exists(), "a failed run is not resumed"


def test_loss_that_explodes_on_finite_data_says_so() -> None:
    message = r"The loss is .* at step \d+ .*The data of that step are finite; try a smaller `learning_rate`"
    with pytest.raises(NonFiniteLossError, match=message):
        tiny().fit(SIMULATOR, **QUICK, learning_rate=[(20, 1e18)])


def test_a_failed_fit_is_not_rescaled_by_the_next() -> None:
    model = tiny()
    with pytest.raises(NonFiniteLossError):
        model.fit(at_step(17, spoiled), **(QUICK | {"learning_rate": 1e-2}))
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    model.fit(SIMULATOR, **(QUICK | {"learning_rate": 0.0}))
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items() if name != "weights")


BOUNDED = Box([-3.0, -3.0], [3.0, 3.0])


@pytest.mark.parametrize("prior", [PRIOR, Normal([0.0, 0.0], [[1.0, 0.3], [0.3, 1.0]]), BOUNDED, Disc()])
def test_refining_trains_both_networks(prior: Any) -> None:
    model, untrained = tiny(prior, members=2, refine=True), tiny(prior, members=2, refine=True)
    history = model.fit(SIMULATOR, **LONG)
    assert history.best_loss[0] < history.validation_loss[0][0]
    assert all(math.isfinite(loss) for losses in history.validation_loss for loss in losses)
    assert model.local is not None
    assert untrained.local is not None
    for networks, before in ((model.networks, untrained.networks), (model.local, untrained.local)):
        pairs = list(zip(networks.parameters(), before.parameters(), strict=True))
        assert all(not torch.equal(after, start) for after, start in pairs)


@pytest.mark.parametrize("prior", [PRIOR, BOUNDED], ids=["normal", "box"])
def test_refining_on_stored_ragged_sets_lowers_the_loss(prior: Any) -> None:
    sets, theta = stored(200)
    theta = theta.clamp(-2.9, 2.9)
    model = tiny(prior, refine=True)
    history = model.fit(sets, theta, steps=150, batch_data=300, validate_every=30)
    assert history.best_loss[0] < history.validation_loss[0][0] - 0.1
    local = model.compress(sets, at=theta)
    assert bool(torch.isfinite(local.score).all())


def test_refined_training_is_the_same_from_run_to_run_and_follows_the_seed() -> None:
    models = [tiny(refine=True), tiny(refine=True), tiny(refine=True, seed=1)]
    histories = [model.fit(SIMULATOR, **LONG) for model in models]
    assert same_history(histories[0], histories[1])
    assert same_weights(models[0], models[1])
    assert not same_weights(models[0], models[2])


def test_the_refined_loss_is_that_of_both_networks() -> None:
    """The first look is at the untrained model, whose losses the objective gives on the validation sets."""
    model, simulator = tiny(refine=True), Recorded()
    history = model.fit(simulator, **(FEW | {"learning_rate": 0.0, "keep_best": False}))
    losses = build_objective(model, half=False, compiled=False)
    noise = NoisySource.make(_Held(Batch(simulator.sets, simulator.theta)), seed=0).validation.noise
    expected = losses(Batch(simulator.sets, simulator.theta, noise)).mean().item()
    assert history.validation_loss[0][0] == pytest.approx(expected, abs=1e-4)


class _Held:
    """A source of nothing but validation sets."""

    def __init__(self, validation: Batch) -> None:
        self.validation = validation


def test_local_networks_are_scaled_to_the_largest_set() -> None:
    model = tiny(refine=True)
    model.fit(SIMULATOR, **(FEW | {"size": (5, 400), "learning_rate": 0.0}))
    assert model.local is not None
    assert model.networks.set_size == model.local.set_size == 400
    sets = Recorded()
    theta = torch.zeros(6, 2)
    information = model.compress(sets(theta, torch.full((6,), 400), torch.Generator().manual_seed(0)), at=theta[0])
    assert 0.1 < information.fisher.diagonal(dim1=-2, dim2=-1).mean().item() < 10


def test_steps_of_local_networks_are_clipped_later() -> None:
    """Their loss is steeper, so that a norm of one would cut every step."""
    plain, refined = tiny().fit(SIMULATOR, **LONG), tiny(refine=True).fit(SIMULATOR, **LONG)
    asked = tiny(refine=True).fit(SIMULATOR, **LONG, clip=1.0)
    assert refined.clipped[0] < asked.clipped[0]
    assert plain.clipped[0] >= 0
