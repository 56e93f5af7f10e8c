"""Where a prior allows parameters to be, and the way back in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.sets.helpers import Disc, generator

from fishnets.priors import Box, Moments, Normal
from fishnets.sets.support import moved_inside, supported

BOX = Box([0.0, -1.0], [1.0, 3.0])
NORMAL = Normal([0.0, 0.0], [1.0, 4.0])


def test_a_box_supports_itself_and_its_edges() -> None:
    theta = torch.tensor([[0.5, 0.0], [0.0, -1.0], [1.0, 3.0], [1.01, 0.0], [0.5, -1.5]], dtype=torch.float64)
    assert supported(BOX, theta).tolist() == [True, True, True, False, False]


@pytest.mark.parametrize("prior", [NORMAL, Moments([0.0, 0.0], torch.eye(2), "mine")], ids=["normal", "moments"])
def test_normal_priors_and_those_known_by_moments_support_all(prior: Any) -> None:
    assert bool(supported(prior, torch.tensor([[0.0, 0.0], [1e3, -1e3]], dtype=torch.float64)).all())


@pytest.mark.parametrize("prior", [BOX, NORMAL, Disc()], ids=["box", "normal", "disc"])
def test_what_a_prior_draws_it_supports(prior: Any) -> None:
    theta = prior.sample(200, generator())
    assert supported(prior, theta).shape == (200,)
    assert bool(supported(prior, theta).all())
    assert supported(prior, theta.view(2, 100, 2)).shape == (2, 100)
    assert supported(prior, theta[0]).shape == ()


@pytest.mark.parametrize("prior", [BOX, Disc()], ids=["box", "disc"])
def test_points_inside_stay_and_those_outside_come_to_the_edge(prior: Any) -> None:
    anchor, inside = prior.mean, prior.sample(50, generator())
    outside = anchor + 100 * torch.randn((50, 2), generator=generator(1), dtype=torch.float64)
    outside = outside[~supported(prior, outside)]
    moved = moved_inside(prior, torch.cat([inside, outside]), anchor)
    assert bool(supported(prior, moved).all())
    assert torch.equal(moved[:50], inside)
    way = outside - anchor
    share = (moved[50:] - anchor) / way
    assert bool(((share >= 0) & (share <= 1)).all())
    beyond = moved[50:] + 1e-6 * way
    assert not bool(supported(prior, beyond).any()), "no farther from the anchor is allowed"


def test_parameters_that_are_not_at_fault_stay() -> None:
    theta = torch.tensor([[1.0001, 2.9], [-7.0, -0.3], [0.4, 3.5], [9.0, 9.0]], dtype=torch.float64)
    expected = torch.tensor([[1.0, 2.9], [0.0, -0.3], [0.4, 3.0], [1.0, 3.0]], dtype=torch.float64)
    torch.testing.assert_close(moved_inside(BOX, theta, BOX.mean), expected, rtol=0, atol=1e-7)


def test_each_point_may_have_its_own_anchor_and_that_may_lie_on_the_edge() -> None:
    theta = torch.tensor([[0.5, 0.0], [2.0, 0.0], [0.5, -2.0]], dtype=torch.float64)
    anchor = torch.tensor([[0.1, 0.1], [1.0, 2.0], [0.5, -1.0]], dtype=torch.float64)
    expected = torch.tensor([[0.5, 0.0], [1.0, 0.0], [0.5, -1.0]], dtype=torch.float64)
    assert torch.equal(moved_inside(BOX, theta, anchor), expected)


def test_a_support_with_a_hole_is_never_left() -> None:
    class Ring(Disc):
        def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
            hole = (theta - self.mean).square().sum(-1) < 1
            return torch.where(hole, -torch.inf, super().log_prob(theta))

    ring = Ring()
    theta = ring.mean + 5 * torch.randn((200, 2), generator=generator(1), dtype=torch.float64)
    anchor = ring.mean + torch.tensor([1.5, 0.0], dtype=torch.float64)
    assert bool(supported(ring, moved_inside(ring, theta, anchor)).all())


def test_points_are_not_changed_in_place() -> None:
    theta = torch.tensor([[5.0, 5.0]], dtype=torch.float64)
    moved_inside(BOX, theta, BOX.mean)
    assert theta.tolist() == [[5.0, 5.0]]
