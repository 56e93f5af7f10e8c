"""Regressors: the baselines learn by the same loop as a Fishnet, resume as it does and do not depend on company."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.sets.helpers import (
    PRIOR,
    QUICK,
    SIMULATOR,
    Disc,
    Recorded,
    at_step,
    generator,
    same_history,
    same_weights,
    some_sets,
    spoiled,
    stored,
    tiny,
)

from fishnets import Sets
from fishnets.errors import CheckpointError, ConfigError, DataError, NonFiniteError, NonFiniteLossError, ShapeError
from fishnets.networks import DeepSet, Gated, SetTransformer
from fishnets.priors import Box, Normal
from fishnets.sets import Regressor, training
from fishnets.sets.regression import whole_sets
from fishnets.sets.sources import Batch

NETWORKS = {
    "mean": DeepSet("mean", embedding=16, hidden=16),
    "softmax": DeepSet("softmax", embedding=16, hidden=16),
    "transformer": SetTransformer(width=16, heads=2, inducing=4),
}
every = pytest.mark.parametrize("name", NETWORKS)
LONG = QUICK | {"steps": 60, "validate_every": 7}


def small(name: str = "mean", prior: Any = PRIOR, **settings: Any) -> Regressor:
    return Regressor(3, prior, NETWORKS[name], **settings)


@every
def test_training_lowers_the_loss(name: str) -> None:
    settings = {"size": 30, "steps": 150, "batch_data": 960, "num_validation": 64, "validate_every": 25}
    history = small(name, members=2).fit(SIMULATOR, **settings)
    assert all(best < 0.6 * first for best, first in zip(history.best_loss, history.validation_loss[0], strict=True))
    assert all(best < 0.5 for best in history.best_loss), "the prior's loss is one"


@every
def test_training_on_stored_ragged_sets(name: str) -> None:
    history = small(name).fit(*stored(200, largest=40), steps=100, batch_data=600, validate_every=20)
    assert history.best_loss[0] < 0.7 * history.validation_loss[0][0]


@every
def test_training_is_the_same_from_run_to_run(name: str) -> None:
    a, b = small(name, members=2), small(name, members=2)
    assert same_history(a.fit(SIMULATOR, **QUICK), b.fit(SIMULATOR, **QUICK))
    assert same_weights(a, b)  # type: ignore[arg-type]


@every
def test_resuming_an_interrupted_run_gives_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    whole, second = small(name, members=2), small(name, members=2)
    expected = whole.fit(SIMULATOR, **LONG)
    interrupted = at_step(25, lambda sets: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        small(name, members=2).fit(interrupted, **LONG, checkpoint=tmp_path / "run")
    history = second.fit(SIMULATOR, **LONG, checkpoint=str(tmp_path / "run"))
    assert same_history(history, expected)
    assert same_weights(second, whole)  # type: ignore[arg-type]


@every
def test_member_of_an_ensemble_trains_as_it_would_alone(name: str) -> None:
    ensemble = small(name, members=2)
    alone = [small(name) for _ in range(2)]
    for k, single in enumerate(alone):
        single.networks.load_state_dict(
            {key: value[k : k + 1] for key, value in ensemble.networks.state_dict().items()}
        )
    together = ensemble.fit(SIMULATOR, **QUICK, learning_rate=1e-3)
    for k, single in enumerate(alone):
        losses = [loss for (loss,) in single.fit(SIMULATOR, **QUICK, learning_rate=1e-3).validation_loss]
        assert [loss[k] for loss in together.validation_loss] == pytest.approx(losses, abs=1e-4)


def test_fishnets_and_regressors_see_the_same_data() -> None:
    seen: dict[str, list[Sets]] = {"fishnet": [], "regressor": []}
    for name, model in (("fishnet", tiny()), ("regressor", small())):

        def simulate(theta: Any, size: Any, source: Any, kept: list[Sets] = seen[name]) -> Sets:
            kept.append(SIMULATOR(theta, size, source))
            return kept[-1]

        model.fit(simulate, **QUICK)
    assert len(seen["fishnet"]) == 21
    assert all(torch.equal(a.values, b.values) for a, b in zip(*seen.values(), strict=True))


@pytest.mark.parametrize(
    "prior",
    [Normal([1.0, -2.0], [[4.0, 0.5], [0.5, 0.25]]), Box([-3.0, 0.0], [3.0, 50.0]), Disc()],
    ids=["normal", "box", "disc"],
)
def test_loss_is_the_squared_error_in_standard_deviations_of_the_prior(prior: Any) -> None:
    model, simulator = small(prior=prior), Recorded()
    history = model.fit(simulator, **QUICK)
    scale = prior.covariance.diagonal().sqrt()
    error = (model.estimate(simulator.sets) - simulator.theta) / scale
    assert error.square().mean().item() == pytest.approx(history.best_loss[0], rel=1e-4)


@every
def test_estimates_do_not_depend_on_order_company_or_chunks(name: str, close) -> None:
    model, sets = small(name, members=2), some_sets()
    whole = model.estimate(sets)
    assert whole.shape == (5, 2)
    assert whole.dtype == torch.float64
    close(model.estimate(Sets.from_list([part.flip(0) for part in sets.to_list()])), whole)
    close(torch.cat([model.estimate(sets[i]) for i in range(5)]), whole)
    for chunk in (1, 14, 1000):
        close(model.estimate(sets, chunk=chunk), whole)


@every
def test_estimates_of_an_ensemble(name: str, close) -> None:
    model, sets = small(name, members=3), some_sets()
    separate = model.estimate(sets, members="separate")
    assert separate.shape == (3, 5, 2)
    close(separate.mean(0), model.estimate(sets))
    single = small(name)
    single.networks.load_state_dict({key: value[1:2] for key, value in model.networks.state_dict().items()})
    close(single.estimate(sets), separate[1])


def test_no_more_rows_than_asked_are_evaluated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = small(), []
    monkeypatch.setattr(model, "_evaluate", lambda sets: sizes.append(sets.num_data) or torch.zeros(1, len(sets), 2))
    theta = PRIOR.sample(50, generator())
    sets = SIMULATOR(theta, torch.full((50,), 85), generator())
    assert model.estimate(sets, chunk=1000).shape == (50, 2)
    assert max(sizes) == 11 * 85
    assert sum(sizes) == 50 * 85


def test_whole_sets_are_never_cut() -> None:
    sets = Sets.from_offsets(torch.arange(12.0).unsqueeze(1), [0, 0, 3, 9, 9, 12])
    pieces = list(whole_sets(sets, 4))
    assert [piece.sizes.tolist() for piece in pieces] == [[0, 3], [6], [0, 3]]
    assert torch.equal(torch.cat([piece.values for piece in pieces]), sets.values)


def test_features_are_standardised_once() -> None:
    model, simulator = small(), Recorded()
    model.fit(simulator, **QUICK)
    values = simulator.sets.values.double()
    torch.testing.assert_close(model.feature_shift, values.mean(0))
    torch.testing.assert_close(model.feature_scale, values.std(0))
    shift = model.feature_shift.clone()
    model.fit(SIMULATOR, **QUICK)
    assert torch.equal(model.feature_shift, shift)
    assert model.num_fits == 2
    raw = small(standardise=False)
    raw.fit(SIMULATOR, **QUICK)
    assert torch.equal(raw.feature_shift, torch.zeros(3, dtype=torch.float64))


def test_number_of_weights_is_that_of_one_member() -> None:
    assert Regressor(3, PRIOR, members=3).num_weights == 87_810
    assert Regressor(3, PRIOR, DeepSet("softmax")).num_weights == 87_811


@every
def test_updates_on_sets_of_one_size_read_nothing_back(name: str) -> None:
    """A captured update cannot wait for the device; on the meta device, which has no numbers, reading any raises."""
    model = small(name, members=2).to("meta")
    sets = Sets(torch.empty(24, 3, device="meta"), torch.empty(5, dtype=torch.int64, device="meta"))
    sets.__dict__["common_size"] = 6
    losses, _ = model._losses(None)  # type: ignore[arg-type]
    loss = losses(Batch(sets, torch.empty(4, 2, device="meta")))
    assert loss.shape == (2, 4)
    loss.sum().backward()
    assert all(p.grad is not None for p in model.networks.parameters())


def test_loss_that_is_not_finite_stops_training_and_names_the_rows() -> None:
    message = r"The loss is nan at step 17 \(member 0, 2 of 2\).*keeps its best weights .*set 1 row 2"
    with pytest.raises(NonFiniteLossError, match=message):
        small(members=2).fit(at_step(17, spoiled), **QUICK)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    small().fit(SIMULATOR, **QUICK, checkpoint=tmp_path / "run")
    for other in (small("softmax"), small(seed=1), tiny()):
        with pytest.raises(CheckpointError, match=r"belongs to another run"):
            other.fit(SIMULATOR, **QUICK, checkpoint=tmp_path / "run")
        assert not other.fitted


@pytest.mark.parametrize("network", [Gated(8, 1), DeepSet, "deepset", torch.nn.Linear(3, 2)], ids=str)
def test_what_is_no_recipe_of_a_network_on_sets_is_refused(network: Any) -> None:
    with pytest.raises(ConfigError, match=r"(?s)`network` is .* but the recipe of a network on sets, such as `fishnet"):
        Regressor(3, PRIOR, network)


def test_wrong_input_is_refused() -> None:
    model = small()
    with pytest.raises(ShapeError, match=r"The sets have 4 features but the model was made for 3"):
        model.estimate(Sets.from_list([torch.zeros(3, 4)]))
    with pytest.raises(ShapeError, match=r"The sets have 4 features but the model was made for 3"):
        model.fit(Sets.from_list([torch.zeros(3, 4)] * 5), torch.zeros(5, 2))
    with pytest.raises(DataError, match=r"`sets` is a Tensor but `fishnets.Sets` was expected"):
        model.estimate(torch.zeros(3, 3))  # type: ignore[arg-type]
    with pytest.raises(NonFiniteError, match=r"set 1 row 2"):
        model.estimate(spoiled(stored(smallest=5)[0]))
    with pytest.raises(ConfigError, match=r"`members` is 'all' but one of \('mean', 'separate'\) was expected"):
        model.estimate(some_sets(), members="all")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r"`chunk` is 0 but at least 1 was expected"):
        model.estimate(some_sets(), chunk=0)
    with pytest.raises(ConfigError, match=r"`num_features` is 0 and `members` 1; both must be at least 1"):
        Regressor(0, PRIOR)
    with pytest.raises(ConfigError, match=r"The prior .* lacks sample, log_prob"):
        Regressor(3, object())  # type: ignore[arg-type]


@pytest.mark.gpu
@every
def test_updates_replayed_on_a_gpu_equal_plain_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"size": (20, 80), "steps": 40, "batch_data": 4000, "num_validation": 50, "learning_rate": 1e-3}
    replayed, plain = (small(name, members=2).to("cuda") for _ in range(2))
    history = replayed.fit(SIMULATOR, **settings)
    assert max(history.best_loss) < min(history.validation_loss[0])
    monkeypatch.setattr(training, "Replayed", lambda update: update)
    expected = plain.fit(SIMULATOR, **settings)
    assert history.validation_loss[-1] == pytest.approx(expected.validation_loss[-1], abs=1e-3)
    sets = some_sets(torch.float32)
    torch.testing.assert_close(replayed.estimate(sets.to("cuda")).cpu(), replayed.estimate(sets), rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("network", [DeepSet(), DeepSet("softmax"), SetTransformer()], ids=str)
def test_networks_of_full_size_train_on_a_gpu(network: Any) -> None:
    model = Regressor(3, PRIOR, network, members=2).to("cuda")
    history = model.fit(SIMULATOR, size=500, steps=20, batch_data=16_000, num_validation=50, learning_rate=1e-3)
    assert max(history.best_loss) < min(history.validation_loss[0])
