"""Pre-aggregated training: the embedding is learned on pairs and then left alone, the head learns on means."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.sets.helpers import PRIOR, SIMULATOR, generator, same_history, same_weights

from fishnets import Sets
from fishnets.errors import ConfigError
from fishnets.networks import DeepSet, SetTransformer
from fishnets.sets import Regressor, fit_pairs

SMALL = DeepSet(embedding=16, hidden=16)
QUICK: dict[str, Any] = {"size": 40, "steps": 30, "head_steps": 30, "num_sets": 200, "batch_data": 200}


def small(members: int = 2, network: Any = SMALL) -> Regressor:
    return Regressor(3, PRIOR, network, members=members)


class Watched:
    """A simulator that notes how many sets of each size were asked for."""

    def __init__(self) -> None:
        self.sizes: list[torch.Tensor] = []

    def __call__(self, theta: torch.Tensor, size: torch.Tensor, source: torch.Generator) -> Sets:
        self.sizes.append(size)
        return SIMULATOR(theta, size, source)


def test_the_second_stage_learns_what_pairs_could_not() -> None:
    model = small()
    settings = {"steps": 200, "head_steps": 300, "num_sets": 2000, "batch_data": 1000, "head_learning_rate": 5e-3}
    history = fit_pairs(model, SIMULATOR, size=40, **settings)
    assert all(
        best < 0.9 * first
        for best, first in zip(history.head.best_loss, history.head.validation_loss[0], strict=True)
    )
    theta = PRIOR.sample(300, generator(9)).float()
    error = model.estimate(SIMULATOR(theta, torch.full((300,), 40), generator(10))) - theta
    assert error.square().mean() < 0.55
    assert error.square().mean() < 1.3 * max(history.head.best_loss)


def test_only_the_head_changes_in_the_second_stage() -> None:
    model, first = small(), small()
    fit_pairs(model, SIMULATOR, **QUICK)
    first.fit(SIMULATOR, size=(1, 2), steps=30, batch_data=200)
    for name, value in first.networks.state_dict().items():
        same = torch.equal(value, model.networks.state_dict()[name])
        assert same == name.startswith("embeddings."), name
    assert torch.equal(first.feature_shift, model.feature_shift)
    assert model.num_fits == 2


def test_sets_are_no_larger_than_two_in_the_first_stage_and_as_wanted_in_the_second() -> None:
    simulator = Watched()
    history = fit_pairs(small(), simulator, **QUICK)
    first, second = torch.cat(simulator.sizes[:31]), torch.cat(simulator.sizes[31:])
    assert set(first.tolist()) == {1, 2}
    assert second.tolist() == [40] * 200
    assert history.num_data == 40 * 200
    assert history.pairs.num_steps == history.head.num_steps == 30
    ranged = Watched()
    fit_pairs(small(), ranged, **(QUICK | {"size": (5, 40)}))
    sizes = torch.cat(ranged.sizes[31:])
    assert (int(sizes.min()), int(sizes.max())) == (5, 40)
    assert 10 < float(sizes.double().log().mean().exp()) < 20, "even in their logarithm"


def test_the_head_on_means_is_the_network_on_sets() -> None:
    """Looks of the second stage agree with the public answers: its loss on held-out sets is the model's."""
    model, kept = small(members=1), []

    def simulate(theta: torch.Tensor, size: torch.Tensor, source: torch.Generator) -> Sets:
        sets = SIMULATOR(theta, size, source)
        kept.append((sets, theta))
        return sets

    history = fit_pairs(model, simulate, **QUICK, validation_fraction=0.25)
    sets, theta = kept[-1]
    held = math.ceil(0.25 * len(sets))
    error = model.estimate(sets[:held]) - theta[:held]
    assert error.square().mean().item() == pytest.approx(history.head.best_loss[0], rel=1e-4)


def test_training_is_the_same_from_run_to_run() -> None:
    a, b = small(), small()
    first, second = fit_pairs(a, SIMULATOR, **QUICK), fit_pairs(b, SIMULATOR, **QUICK)
    assert same_history(first.pairs, second.pairs)
    assert same_history(first.head, second.head)
    assert same_weights(a, b)  # type: ignore[arg-type]


@pytest.mark.parametrize("network", [DeepSet("softmax"), SetTransformer()], ids=str)
def test_what_has_no_means_is_refused(network: Any) -> None:
    with pytest.raises(ConfigError, match=r"only means of embeddings can be taken in advance: give `Regressor\("):
        fit_pairs(small(network=network), SIMULATOR, **QUICK)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_sets": 1}, r"`num_sets` is 1 and `batch_sets` 512; at least 2 and 1 were expected"),
        ({"size": 0}, r"`size` is 0 but a whole number or a range"),
        ({"validation_fraction": 1.5}, r"`validation_fraction` is 1.5 but 0 <= fraction < 1 was expected"),
        ({"head_steps": 0}, r"`steps` is 0 and `validate_every` 1; both must be at least 1"),
    ],
)
def test_impossible_settings_are_refused_before_anything_is_trained(settings: dict[str, Any], message: str) -> None:
    model = small()
    with pytest.raises(ConfigError, match=message):
        fit_pairs(model, SIMULATOR, **(QUICK | settings))
    assert not model.fitted


@pytest.mark.gpu
def test_both_stages_run_on_a_gpu() -> None:
    model = small().to("cuda")
    history = fit_pairs(model, SIMULATOR, **QUICK)
    assert max(history.head.best_loss) < min(history.head.validation_loss[0])
