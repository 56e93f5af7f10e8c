"""The training loop for graph networks: its schedule, its looks, its clipping, and how it fails."""

from __future__ import annotations

import math

import pytest
import torch
from tests.graphs.layers import seeded  # noqa: F401 a fixture
from torch import Tensor, nn

from fishnets.errors import ConfigError, NonFiniteLossError
from fishnets.graphs.training import train


class Point(nn.Module):
    """Two numbers, and whether the module was in training mode when it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.tensor([3.0, -2.0], dtype=torch.float64))
        self.modes: list[bool] = []

    def forward(self) -> Tensor:
        self.modes.append(self.training)
        return self.place


def test_the_loss_falls_and_every_step_is_returned() -> None:
    point = Point()
    losses = train(point, lambda step: point().square().sum(), steps=300, learning_rate=0.1)
    assert len(losses) == 300
    assert losses[0] == 13.0
    assert losses[-1] < 1e-4
    assert all(isinstance(one, float) for one in losses)


def test_the_loss_is_given_the_number_of_the_step() -> None:
    point, steps = Point(), []
    train(point, lambda step: steps.append(step) or point().square().sum(), steps=4, learning_rate=0.1)
    assert steps == [0, 1, 2, 3]


@pytest.mark.parametrize(("steps", "warm"), [(200, 4), (20, 1)])
def test_the_rate_rises_linearly_and_falls_as_a_cosine(steps: int, warm: int) -> None:
    """Under a constant gradient a step of Adam is as long as the learning rate."""
    point, places = Point(), []

    def loss(step: int) -> Tensor:
        places.append(point.place.detach().clone())
        return point().sum()

    train(point, loss, steps, learning_rate=0.5)
    places.append(point.place.detach().clone())
    moved = -torch.stack(places).diff(dim=0)
    expected = [0.5 * min(1, (k + 1) / warm) * (1 + math.cos(math.pi * k / steps)) / 2 for k in range(steps)]
    torch.testing.assert_close(moved, torch.tensor(expected).double()[:, None].expand(-1, 2), rtol=1e-4, atol=1e-8)
    assert int(moved[:, 0].argmax()) == warm - 1
    assert moved[-1, 0] < 0.01 * moved.max()


def looked(steps: int, looks: int) -> list[int]:
    point, seen = Point(), []
    train(point, lambda step: point().square().sum(), steps, 0.1, look=seen.append, looks=looks)
    return seen


@pytest.mark.parametrize(
    ("steps", "looks", "seen"),
    [
        (12, 0, [12]),
        (12, 1, [12]),
        (12, 4, [3, 6, 9, 12]),
        (10, 3, [4, 8, 10]),
        (3, 3, [1, 2, 3]),
        (3, 9, [1, 2, 3]),
        (1, 0, [1]),
    ],
)
def test_looks_are_spread_over_the_run_and_one_is_at_its_end(steps: int, looks: int, seen: list[int]) -> None:
    assert looked(steps, looks) == seen


@pytest.mark.parametrize(("steps", "looks"), [(11, 4), (19, 10), (199, 100)])
def test_looks_are_no_more_than_asked_for_and_the_end(steps: int, looks: int) -> None:
    assert len(looked(steps, looks)) <= looks + 1


def test_looks_are_in_evaluation_mode_and_training_goes_on_in_its_own() -> None:
    point, looks = Point(), []

    def look(done: int) -> None:
        looks.append((done, point.training, float(point.place.detach().square().sum())))

    losses = train(point.eval(), lambda step: point().square().sum(), steps=6, learning_rate=0.1, look=look, looks=3)
    assert [(done, mode) for done, mode, _ in looks] == [(2, False), (4, False), (6, False)]
    assert [value for _, _, value in looks[:2]] == [losses[2], losses[4]]  # what is seen is what goes on
    assert point.modes == [True] * 6
    assert not point.training


def test_looking_changes_nothing() -> None:
    def losses(**options) -> list[float]:
        point = Point()
        return train(point, lambda step: (point() - step).square().sum(), steps=9, learning_rate=0.1, **options)

    assert losses() == losses(look=lambda done: None, looks=9)


@pytest.mark.parametrize("clip", [0.25, 1.0, 1e6])
def test_gradients_are_clipped_together(clip: float) -> None:
    point = Point()
    train(point, lambda step: (point() * torch.tensor([300.0, 400.0])).sum(), steps=3, learning_rate=1e-3, clip=clip)
    expected = torch.tensor([0.6, 0.8]).double() * min(clip, 500.0)
    torch.testing.assert_close(point.place.grad, expected, rtol=1e-5, atol=0)


def test_parameters_that_a_step_does_not_use_stay() -> None:
    pair = nn.ModuleList([Point(), Point()])
    train(pair, lambda step: pair[0]().square().sum(), steps=3, learning_rate=0.1)
    assert torch.equal(pair[1].place, Point().place)
    assert not torch.equal(pair[0].place, Point().place)


@pytest.mark.parametrize(
    ("name", "value"),
    [("steps", 0), ("steps", -3), ("learning_rate", 0.0), ("learning_rate", math.nan), ("clip", -1.0), ("clip", 0)],
)
def test_steps_rate_and_clip_are_positive(name: str, value: float) -> None:
    point, settings = Point(), {"steps": 5, "learning_rate": 0.1, name: value}
    with pytest.raises(ConfigError, match=rf"^`{name}` is {value} but a positive number was expected\.$"):
        train(point, lambda step: point().square().sum(), **settings)
    assert torch.equal(point.place, Point().place)


@pytest.mark.parametrize(("wrong", "text"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_a_loss_that_is_not_finite_is_told_with_its_step(wrong: float, text: str) -> None:
    point = Point()
    with pytest.raises(
        NonFiniteLossError, match=rf"^The loss became {text} at step 3; use a smaller `learning_rate`\.$"
    ):
        train(point, lambda step: point().square().sum() * (wrong if step == 3 else 1.0), steps=6, learning_rate=0.1)
