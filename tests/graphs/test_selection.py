"""Training with selection: schedules, curves, patience, the best weights, and continuing where it was."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.graphs.layers import seeded  # noqa: F401 a fixture
from torch import Tensor, nn

from fishnets.errors import (
    CheckpointError,
    CheckpointWarning,
    ConfigError,
    FileFormatError,
    NonFiniteError,
    NonFiniteLossError,
)
from fishnets.graphs.selection import Curves, Recipe, fit


def line() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1))


class Sums:
    """Adds up three numbers, from batches that depend on the epoch."""

    def losses(self, model: nn.Module, epoch: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(epoch)
        for _ in range(2):
            x = torch.randn(16, 3, generator=generator)
            yield (model(x) - x.sum(1, keepdim=True)).square().mean()

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        x = torch.randn(64, 3, generator=torch.Generator().manual_seed(99))
        error = float((model(x) - x.sum(1, keepdim=True)).square().mean())
        return {"valid": -error, "test": 1 - error}


def trained(recipe: Recipe, checkpoint: Path | None = None, task: Sums | None = None) -> tuple[nn.Module, Curves]:
    model = line()
    return model, fit(model, task or Sums(), recipe, checkpoint)


def test_curves_have_an_entry_for_every_evaluation_and_the_last_epoch() -> None:
    _, curves = trained(Recipe(epochs=7, learning_rate=0.01, every=3))
    assert curves.epochs == [3, 6, 7]
    assert len(curves.loss) == len(curves.seconds) == len(curves.scores["test"]) == 3
    assert curves.seconds == sorted(curves.seconds)
    assert curves.seconds_per_epoch == curves.seconds[-1] / 7
    assert curves.seconds_per_later_epoch == (curves.seconds[2] - curves.seconds[0]) / 4


def test_a_rate_may_be_a_whole_number() -> None:
    _, curves = trained(Recipe(epochs=2, learning_rate=1))
    assert len(curves.loss) == 2


def test_the_network_ends_with_its_best_weights() -> None:
    model, curves = trained(Recipe(epochs=40, learning_rate=0.3))  # too large a step: scores go up and down
    assert curves.best < len(curves.epochs) - 1
    assert Sums().evaluate(model)["valid"] == curves.at_best("valid") == max(curves.scores["valid"])
    assert curves.at_best("test") == curves.scores["test"][curves.best]
    assert not model.training


def test_training_ends_when_nothing_improves_for_the_patience() -> None:
    falling = iter(range(100, 0, -1))

    class Falling(Sums):
        def evaluate(self, model: nn.Module) -> dict[str, float]:
            return {"valid": float(next(falling))}

    _, curves = trained(Recipe(epochs=50, learning_rate=0.01, patience=4, every=2), task=Falling())
    assert curves.epochs == [2, 4, 6]
    assert curves.epochs_to_best == 2
    _, curves = trained(Recipe(epochs=90, learning_rate=0.01, patience=20, every=7), task=Falling())
    assert curves.epochs == [7, 14, 21, 28]  # 21 epochs after the best, and no epoch that is not evaluated


def test_a_training_continues_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    class Stops(Sums):
        def losses(self, model: nn.Module, epoch: int) -> Iterator[Tensor]:
            if epoch == 5:
                raise KeyboardInterrupt
            return super().losses(model, epoch)

    recipe = Recipe(epochs=8, learning_rate=0.02, every=2, warm_up=2, decay=True)
    path = tmp_path / "run" / "training.pt"
    whole, wanted = trained(recipe)
    with pytest.raises(KeyboardInterrupt):
        trained(recipe, path, Stops())
    again, curves = trained(recipe, path)
    assert (curves.epochs, curves.loss, curves.scores) == (wanted.epochs, wanted.loss, wanted.scores)
    for one, other in zip(again.parameters(), whole.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(CheckpointError, match="is of another recipe: it has epochs=8 where epochs=9 was asked for"):
        trained(Recipe(epochs=9, learning_rate=0.02), path)


def test_a_training_begun_on_a_gpu_continues_without_one(tmp_path: Path) -> None:
    recipe, path = Recipe(epochs=4, learning_rate=0.02), tmp_path / "training.pt"
    _, wanted = trained(recipe, path)
    torch.save(torch.load(path) | {"random_cuda": torch.zeros(16, dtype=torch.uint8)}, path)
    _, curves = trained(recipe, path)
    assert curves == wanted


def test_checkpoints_of_other_runs_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    class Named(Sums):
        def __init__(self, name: str) -> None:
            self.name = name

        def identity(self) -> str:
            return self.name

    path, recipe = tmp_path / "one.pt", Recipe(epochs=2, learning_rate=0.01)
    trained(recipe, path, Named("seed 0"))
    with pytest.raises(CheckpointError, match="is of another task: it has seed 0 where seed 1 was asked for"):
        trained(recipe, path, Named("seed 1"))
    networks = {
        r"it has the network: Sequential\(\) where the network: Linear\(in_features=3": nn.Linear(3, 1),
        r"it has 1: Dropout\(p=0.2, inplace=False\) where 1: Dropout\(p=0.5": nn.Sequential(
            nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)
        ),
    }
    for message, network in networks.items():
        with pytest.raises(CheckpointError, match=f"is of another network: {message}"):
            fit(network, Named("seed 0"), recipe, str(path))
    torch.save(torch.ones(2), tmp_path / "tensor.pt")
    with pytest.raises(FileFormatError, match=r"tensor\.pt is no checkpoint of `fit`"):
        trained(recipe, tmp_path / "tensor.pt", Named("seed 0"))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FileFormatError, match=r"one\.pt is no checkpoint of `fit`, or damaged"):
        trained(recipe, path, Named("seed 0"))


def test_the_step_size_rises_and_falls() -> None:
    recipe = Recipe(epochs=100, learning_rate=0.1, warm_up=10, decay=True)
    assert recipe.rate(0) == pytest.approx(0.01)
    assert recipe.rate(50) == pytest.approx(0.05)
    assert recipe.rate(99) < 1e-4
    assert Recipe(epochs=100, learning_rate=0.1).rate(99) == 0.1


def test_a_loss_that_is_not_finite_is_named() -> None:
    class Broken(Sums):
        def losses(self, model: nn.Module, epoch: int) -> Iterator[Tensor]:
            return (loss * math.nan for loss in super().losses(model, epoch))

    with pytest.raises(NonFiniteLossError, match=r"The loss became nan in epoch 1; use a smaller `learning_rate`"):
        trained(Recipe(3, 0.1), task=Broken())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0, "learning_rate": 0.1}, "epochs"),
        ({"epochs": 1, "learning_rate": -0.1}, "`learning_rate` is -0.1"),
        ({"epochs": 1, "learning_rate": 0.1, "patience": 0}, "`patience` is 0"),
        ({"epochs": 9, "learning_rate": 0.1, "patience": 4, "every": 5}, "`patience` is 4 epochs, but scores are"),
        ({"epochs": 1, "learning_rate": 0.1, "warm_up": 2}, "`warm_up` is 2 but 0 to 1"),
        ({"epochs": 1, "learning_rate": "0.1"}, "`learning_rate` is 0.1 but a positive number was expected"),
        ({"epochs": 1, "learning_rate": None}, "`learning_rate` is None but a positive number was expected"),
    ],
)
def test_recipes_that_make_no_sense_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recipe(**options)


def test_scores_need_one_of_validation() -> None:
    class Blind(Sums):
        def evaluate(self, model: nn.Module) -> dict[str, float]:
            return {"test": 1.0}

    with pytest.raises(ConfigError, match=r"`evaluate` returned the scores \['test'\]"):
        trained(Recipe(1, 0.1), task=Blind())


@pytest.mark.gpu
def test_a_training_on_a_gpu_continues_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    class Moved(Sums):
        def __init__(self, stop: int | None = None) -> None:
            self.stop = stop

        def losses(self, model: nn.Module, epoch: int) -> Iterator[Tensor]:
            if epoch == self.stop:
                raise KeyboardInterrupt
            x = torch.randn(16, 3, generator=torch.Generator().manual_seed(epoch)).cuda()
            yield (model(x) - x.sum(1, keepdim=True)).square().mean()

        def evaluate(self, model: nn.Module) -> dict[str, float]:
            return super().evaluate(lambda x: model(x.cuda()).cpu())  # type: ignore[arg-type]

    recipe = Recipe(epochs=8, learning_rate=0.05, every=2)
    whole = fit(line().cuda(), Moved(), recipe)
    with pytest.raises(KeyboardInterrupt):
        fit(line().cuda(), Moved(stop=5), recipe, tmp_path / "left.pt")
    model = line().cuda()
    again = fit(model, Moved(), recipe, tmp_path / "left.pt")  # dropout draws on as if it had not stopped
    assert again.scores == whole.scores
    assert again.loss == whole.loss


def test_what_cannot_be_trained_or_chosen_is_refused() -> None:
    class Unknown(Sums):
        def evaluate(self, model: nn.Module) -> dict[str, float]:
            return {"valid": math.nan, "test": 0.0}

    with pytest.raises(NonFiniteError, match="The validation score is NaN in epoch 1: nothing can be chosen by it"):
        trained(Recipe(2, 0.1), task=Unknown())
    with pytest.raises(ConfigError, match="`task` is a Linear and `recipe` a Recipe, but a task, such as `NodeTask"):
        fit(line(), nn.Linear(1, 1), Recipe(2, 0.1))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="`task` is a Sums and `recipe` a dict, but"):
        fit(line(), Sums(), {"epochs": 2})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="No parameter of the Sequential requires a gradient: there is nothing to"):
        fit(line().requires_grad_(False), Sums(), Recipe(2, 0.1))
    with pytest.raises(ConfigError, match="There are 0 evaluations, but two or more were expected"):
        _ = Curves().seconds_per_later_epoch


@pytest.mark.parametrize("damage", ["half", "folder", "no best"])
def test_damaged_checkpoints_are_named(tmp_path: Path, damage: str) -> None:
    path, recipe = tmp_path / "one.pt", Recipe(2, 0.01)
    trained(recipe, path)
    if damage == "half":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        state = torch.load(path)
        del state["best"]
        torch.save(state, path)
    with pytest.raises(FileFormatError, match=r"one\.pt is no checkpoint of `fit`, or damaged\. Remove it to begin"):
        trained(recipe, path)


def test_a_checkpoint_of_another_seed_is_told_apart(tmp_path: Path) -> None:
    class Stopped(Sums):
        def losses(self, model: nn.Module, epoch: int) -> Iterator[Tensor]:
            if epoch == 1:
                raise KeyboardInterrupt
            yield from super().losses(model, epoch)

    path, recipe = tmp_path / "one.pt", Recipe(2, 0.01)
    with pytest.raises(KeyboardInterrupt):
        trained(recipe, path, Stopped())
    torch.manual_seed(1)
    other = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1))
    with pytest.warns(CheckpointWarning, match=r"one\.pt was begun with other initial weights, and continues"):
        assert fit(other, Sums(), recipe, path).loss == trained(recipe)[1].loss
    assert trained(recipe, path)[1].loss == trained(recipe)[1].loss
    with pytest.raises(CheckpointError, match=r"one\.pt is of a finished run with other initial weights than those"):
        fit(other, Sums(), recipe, path)


def test_scores_that_are_not_finite_are_said_with_their_epoch() -> None:
    class Diverged(Sums):
        def evaluate(self, model: nn.Module) -> dict[str, float]:
            raise NonFiniteError("`score` is NaN in rows 0.")

    with pytest.raises(NonFiniteLossError, match=r"Nothing can be scored in epoch 1; use a smaller `learning_rate`\."):
        trained(Recipe(2, 0.1), task=Diverged())
