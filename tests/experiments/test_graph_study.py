"""Studies of graph networks: rates by validation, runs by their seeds, continued where they were, and compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fishnets.errors import NonFiniteLossError
from fishnets.experiments.graph_study import GraphStudy, Runs, paired_difference, spread
from fishnets.experiments.records import Metric
from fishnets.graphs.selection import Recipe

RECIPE = Recipe(epochs=20, learning_rate=1.0)


class Climb:
    """A weight rises by the learning rate in every epoch, best on validation data at the peak, on test data above.

    The loss of a weight beyond the cliff is not finite.
    """

    def __init__(self, peak: float = 1.0, cliff: float = math.inf) -> None:
        self.peak, self.cliff = peak, cliff

    def losses(self, model: nn.Linear, epoch: int) -> Iterator[Tensor]:
        yield -model.weight.sum() * (1.0 if model.weight.item() < self.cliff else math.nan)

    def evaluate(self, model: nn.Linear) -> dict[str, float]:
        return {"valid": -abs(model.weight.item() - self.peak), "test": model.weight.item()}


class Sums:
    """Adds up three random numbers; may be interrupted before an epoch, and remembers those it went through."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop, self.epochs, self.precisions = stop, [], set()

    def losses(self, model: nn.Module, epoch: int) -> Iterator[Tensor]:
        if epoch == self.stop:
            raise KeyboardInterrupt
        self.epochs.append(epoch)
        self.precisions.add(torch.get_float32_matmul_precision())
        x = torch.randn(16, 3)
        yield (model(x) - x.sum(1, keepdim=True)).square().mean()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        x = torch.linspace(-1, 1, 12).reshape(4, 3)
        errors = (model(x) - x.sum(1, keepdim=True)).square().flatten().tolist()
        return {"valid": -sum(errors[:2]), "test": -sum(errors[2:])}


def flat() -> nn.Module:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 1))


def study(folder: Path | None = None, seed: int = 0, **depends: Any) -> GraphStudy:
    return GraphStudy(depends, folder, seed, "cpu")


def climbed(task: Climb | Callable[[int], Climb], rates: tuple[float, ...], seeds: tuple[int, ...] = (0,)) -> Runs:
    return study().runs("climb", flat, task if callable(task) else lambda _: task, RECIPE, rates, seeds)


def summed(task: Sums, folder: Path | None = None, seed: int = 0, run: int = 0, **depends: Any) -> tuple[object, ...]:
    """What one run of a network with dropout measured."""
    recipe = Recipe(epochs=8, learning_rate=1.0, every=2)
    runs = study(folder, seed, **depends).runs("sum", dropping, lambda _: task, recipe, (0.05,), (run,))
    return {name: value.tolist() for name, value in runs.measures.items()}, runs.curve


@pytest.fixture(scope="module")
def any_runs() -> Runs:
    """Runs whose measures tests replace by their own."""
    return climbed(Climb(), (0.1,))


def test_rate_is_chosen_by_validation_not_by_test() -> None:
    runs = climbed(Climb(peak=0.5), (0.01, 0.1, 0.3))  # best at 0.2, 0.5 and 0.6: the larger, the better in test
    assert runs.rate == 0.1
    assert runs.tried == pytest.approx({0.01: -0.3, 0.1: 0.0, 0.3: -0.1}, abs=1e-4)


def test_rates_may_be_tried_with_several_seeds() -> None:
    peaks = {0: 1.0, 1: 0.05}  # the rate 0.1 meets the first, 0.07 is near both
    chosen = [
        study().runs("climb", flat, lambda seed: Climb(peaks[seed]), RECIPE, (0.1, 0.07), (0, 1), tuning_seeds)
        for tuning_seeds in (1, 2)
    ]
    assert [runs.rate for runs in chosen] == [0.1, 0.07]
    assert chosen[1].tried == pytest.approx({0.1: -0.025, 0.07: -0.02}, abs=1e-4)


def test_every_run_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    shown, hidden = (GraphStudy({}, None, 0, "cpu", progress) for progress in (True, False))
    for one in (shown, hidden):
        one.runs("climb", flat, lambda _: Climb(0.5, cliff=5.0), RECIPE, (0.1, 1.0), (0, 1))
    found = capsys.readouterr()
    assert not found.out
    assert found.err.splitlines() == [
        "climb, rate 0.1, seed 0: validation -0.0000, test 0.5000, best after 5 of 20 epochs",
        "climb, rate 1, seed 0: diverged",
        "climb, rate 0.1, seed 1: validation -0.0000, test 0.5000, best after 5 of 20 epochs",
    ]


def test_a_rate_that_diverges_is_left_out() -> None:
    runs = climbed(Climb(peak=30.0, cliff=5.0), (1.0, 0.1, 0.2))  # at 1, the nearest to the peak, beyond the cliff
    assert runs.rate == 0.2
    assert list(runs.tried) == [0.1, 0.2]
    assert runs.diverged == (1.0,)
    assert runs.metrics("climb")["diverged/climb/1"].value == 1
    with pytest.raises(NonFiniteLossError, match=r"^climb diverges at every rate of \[1\.0, 2\.0\]\.$"):
        climbed(Climb(cliff=5.0), (1.0, 2.0))


def test_a_seed_with_which_the_best_rate_diverges_is_an_error() -> None:
    with pytest.raises(NonFiniteLossError, match=r"^climb diverges at the rate 0\.1 with seed 1; try smaller"):
        climbed(lambda seed: Climb(cliff=0.5 if seed else math.inf), (0.01, 0.1), (0, 1))


def test_a_run_that_diverged_is_not_trained_again(tmp_path: Path) -> None:
    made = []

    def make() -> nn.Module:
        made.append(None)
        return flat()

    for _ in range(2):
        with pytest.raises(NonFiniteLossError, match="every rate"):
            study(tmp_path).runs("climb", make, lambda _: Climb(cliff=5.0), RECIPE, (1.0, 2.0), (0,))
    assert len(made) == 2
    assert not list(tmp_path.glob("*.pt"))


def test_a_single_rate_is_used_untried() -> None:
    made = []
    runs = study().runs("climb", lambda: made.append(1) or flat(), lambda _: Climb(), RECIPE, (0.7,), (0, 1))
    assert runs.rate == 0.7
    assert runs.tried == {}
    assert len(made) == 3  # two runs and one that is timed


def test_a_run_is_scored_where_it_is_best_on_validation_data() -> None:
    runs = climbed(Climb(peak=0.6), (0.1,))
    last = spread(0.1 * torch.arange(11, 21))  # of the last ten evaluations
    expected = {"test": 0.6, "valid": 0.0, "epochs_to_best": 6, "last": last.value, "last_spread": last.error}
    assert {name: float(runs.measures[name]) for name in expected} == pytest.approx(expected, abs=1e-4)
    assert runs.measures["weights"].tolist() == [1]
    assert runs.measures["epochs_trained"].tolist() == [20]
    assert runs.curve.epochs == list(range(1, 21))
    assert runs.curve.test == pytest.approx([0.1 * epoch for epoch in range(1, 21)], abs=1e-4)
    assert runs.curve.valid == pytest.approx([-abs(0.1 * epoch - 0.6) for epoch in range(1, 21)], abs=1e-4)
    assert runs.curve.loss == pytest.approx([-0.1 * epoch for epoch in range(20)], abs=1e-4)  # before the update


def test_each_seed_has_its_task_and_the_first_tries_the_rates() -> None:
    peaks = {7: 1.0, 3: 0.4}
    runs = climbed(lambda seed: Climb(peaks[seed]), (0.04, 0.1), seeds=(7, 3))
    assert runs.seeds == (7, 3)
    assert runs.rate == 0.1
    assert runs.measures["test"].tolist() == pytest.approx([1.0, 0.4], abs=1e-4)
    assert runs.curve.valid[9] == pytest.approx(0.0, abs=1e-4)  # that of the first


def test_seeds_reproduce_whatever_was_drawn_before() -> None:
    first = summed(Sums())
    with torch.random.fork_rng():
        torch.manual_seed(5)
        again = summed(Sums())
    assert again == first
    assert summed(Sums(), run=1) != first
    assert summed(Sums(), seed=1) != first


@pytest.mark.parametrize("stop", [None, 5])
def test_generators_and_precision_are_as_before(stop: int | None) -> None:
    before, precision, task = torch.get_rng_state(), torch.get_float32_matmul_precision(), Sums(stop)
    torch.set_float32_matmul_precision("medium")
    try:
        if stop is None:
            study().runs("sum", dropping, lambda _: task, RECIPE, (0.1, 0.2), (0, 1))
        else:
            with pytest.raises(KeyboardInterrupt):
                summed(task)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(precision)
    assert task.precisions == {"high"}
    assert torch.equal(torch.get_rng_state(), before)


def test_an_interrupted_run_continues_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    stopped, later = Sums(stop=5), Sums()
    with pytest.raises(KeyboardInterrupt):
        summed(stopped, tmp_path)
    (left,) = tmp_path.iterdir()
    assert left.suffix == ".pt"
    assert summed(later, tmp_path) == summed(Sums())
    assert (stopped.epochs, later.epochs[:4]) == ([0, 1, 2, 3, 4], [4, 5, 6, 7])  # from the last evaluation
    assert {path.suffix for path in tmp_path.iterdir()} == {".json"}


@pytest.mark.parametrize("other", [{"run": 1}, {"width": 8}])
def test_an_interrupted_run_is_not_continued_by_another(tmp_path: Path, other: dict[str, int]) -> None:
    with pytest.raises(KeyboardInterrupt):
        summed(Sums(stop=5), tmp_path)
    task = Sums()
    assert summed(task, tmp_path, **other) == summed(Sums(), **other)
    assert task.epochs[:8] == list(range(8))


def test_finished_runs_are_not_trained_again(tmp_path: Path) -> None:
    made = []

    def make() -> nn.Module:
        made.append(None)
        return dropping()

    def runs(seeds: tuple[int, ...], **depends: Any) -> Runs:
        made.clear()
        return study(tmp_path, **depends).runs("sum/noisy", make, lambda _: Sums(), RECIPE, (0.1, 0.2), seeds)

    first = runs((0, 1))
    assert len(made) == 4  # two rates, another seed and one that is timed
    again = runs((0, 1))
    assert len(made) == 0
    assert again.metrics("sum") == first.metrics("sum")
    assert again.curve == first.curve
    assert runs((0, 1, 2)).measures["test"][:2].tolist() == first.measures["test"].tolist()
    assert len(made) == 1
    runs((0, 1), width=8)
    assert len(made) == 4
    assert all(path.is_file() and path.suffix == ".json" for path in tmp_path.iterdir())


def test_epochs_are_timed_without_evaluation_and_what_is_loaded_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    class Slow(Climb):
        def losses(self, model: nn.Linear, epoch: int) -> Iterator[Tensor]:
            clock[0] += 2.0 if hasattr(model, "loaded") else 50.0
            model.loaded = True
            return super().losses(model, epoch)

        def evaluate(self, model: nn.Linear) -> dict[str, float]:
            clock[0] += 100.0
            return super().evaluate(model)

    monkeypatch.setattr("fishnets.graphs.selection.time", SimpleNamespace(monotonic=lambda: clock[0]))
    assert climbed(Slow(), (0.1,)).seconds_per_epoch == 2.0


def test_a_study_depends_on_all_of_a_config_but_the_choice_of_runs_and_the_device(tmp_path: Path) -> None:
    fields = {"seed": 3, "width": 8, "device": "cpu"}
    config = SimpleNamespace(seed=3, device="cpu", to_dict=lambda: {**fields, "seeds": [0], "models": []})
    found = GraphStudy.of(config, tmp_path, ("seeds", "models"))
    assert found.depends == {"seed": 3, "width": 8}
    assert (found.seed, found.device, found.parts.folder) == (3, "cpu", tmp_path)


def test_runs_are_recorded_by_name_with_their_spread(any_runs: Runs) -> None:
    measures = {
        "test": torch.tensor([0.5, 0.7]),
        "valid": torch.tensor([0.6, 0.6]),
        "loss": torch.tensor([0.2, 0.4]),
        "epochs_to_best": torch.tensor([10.0, 20.0]),
        "epochs_trained": torch.tensor([30.0, 30.0]),
        "trained_to_the_end": torch.tensor([0.0, 1.0]),
        "on_a_gpu": torch.tensor([1.0, 1.0]),
        "weights": torch.tensor([1.0, 1.0]),
        "last": torch.tensor([0.4, 0.8]),
        "last_spread": torch.tensor([0.1, 0.3]),
    }
    runs = replace(any_runs, seeds=(0, 1), seconds_per_epoch=2.0, measures=measures)
    found, half = runs.metrics("sum/noisy", "accuracy"), math.sqrt(0.5)
    expected = {
        "accuracy": (0.6, 0.2 * half),
        "valid": (0.6, 0.0),
        "loss": (0.3, 0.2 * half),
        "epochs_to_best": (15.0, 10 * half),
        "epochs_trained": (30.0, 0.0),
        "trained_to_the_end": (0.5, half),
        "on_a_gpu": (1.0, 0.0),
        "seconds_to_best": (30.0, 20 * half),
        "seconds_per_epoch": (2.0, 0.0),
        "last_evaluations": (0.6, 0.2),  # the mean of the spreads of each run
        "learning-rate": (0.1, 0.0),
        "weights": (1.0, 0.0),
    }
    for name, (value, error) in expected.items():
        metric = found[f"{name}/sum/noisy"]
        assert (metric.value, metric.error) == pytest.approx((value, error), abs=1e-6), name
    assert runs.metrics("sum")["rocauc/sum"] == found["accuracy/sum/noisy"]


def scored(runs: Runs, scores: dict[int, float]) -> Runs:
    """Runs with test scores by seed."""
    test = torch.tensor(list(scores.values()), dtype=torch.float64)
    return replace(runs, seeds=tuple(scores), measures={**runs.measures, "test": test})


def test_difference_pairs_runs_of_the_same_seed(any_runs: Runs) -> None:
    one = scored(any_runs, {0: 0.9, 1: 0.8, 2: 0.4, 7: 0.0})
    other = scored(any_runs, {2: 0.1, 5: 1.0, 0: 0.8, 1: 0.6})
    ahead, behind = paired_difference(one, other), paired_difference(other, one)
    assert ahead.value == pytest.approx(0.2)  # of 0.1, 0.2 and 0.3
    assert ahead.error == pytest.approx(0.1 / math.sqrt(3))
    assert (behind.value, behind.error) == pytest.approx((-0.2, ahead.error))


def test_difference_of_a_single_seed_has_no_error(any_runs: Runs) -> None:
    one, other = scored(any_runs, {3: 0.9, 1: 0.2}), scored(any_runs, {0: 0.4, 3: 0.5})
    found = paired_difference(one, other)
    assert (found.value, found.error) == pytest.approx((0.4, 0.0))


def test_spread_is_over_seeds_in_double_precision() -> None:
    assert spread(torch.tensor([0.25])) == Metric(0.25, 0.0)
    values = torch.tensor([2.0**24, 2.0**24 + 2])  # whose mean float32 cannot hold
    assert spread(values) == Metric(2.0**24 + 1, math.sqrt(2))
