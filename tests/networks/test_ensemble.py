"""Stacked layers: K members are K separate layers."""

from __future__ import annotations

import pytest
import torch
from tests.networks.helpers import generator, member, rows

from fishnets.networks import StackedLinear, member_weights


def layer(members: int, inputs: int = 3, outputs: int = 5, seed: int = 0) -> StackedLinear:
    return StackedLinear(members, inputs, outputs, generator(seed)).double()


@pytest.mark.parametrize("members", [1, 2, 7])
def test_every_member_is_its_own_affine_map(members: int, close) -> None:
    stacked, x = layer(members), rows(members, 11, 3)
    stacked.bias.data.copy_(rows(members, 1, 5, seed=2))
    expected = torch.stack([x[k] @ stacked.weight[k] + stacked.bias[k] for k in range(members)])
    close(stacked(x), expected)


@pytest.mark.parametrize("members", [1, 2, 7])
def test_a_leading_one_is_shared_by_all_members(members: int, close) -> None:
    stacked, x = layer(members), rows(1, 11, 3)
    close(stacked(x), stacked(x.repeat(members, 1, 1)))


@pytest.mark.parametrize("k", [0, 1, 2])
def test_stacked_members_equal_separate_layers(k: int, close) -> None:
    stacked, x = layer(3), rows(1, 11, 3)
    close(stacked(x)[k], member(stacked, layer(1, seed=9), k)(x)[0])


def test_members_do_not_see_each_others_gradients(close) -> None:
    stacked = layer(3)
    stacked(rows(1, 11, 3))[1].square().sum().backward()
    assert stacked.weight.grad is not None
    assert bool((stacked.weight.grad[[0, 2]] == 0).all())
    assert bool((stacked.weight.grad[1] != 0).all())


@pytest.mark.parametrize("members", [1, 3])
def test_gradients_of_stacked_layers(members: int) -> None:
    stacked, x = layer(members), rows(1, 4, 3).requires_grad_()
    parameters = (x, stacked.weight, stacked.bias)
    assert torch.autograd.gradcheck(lambda *_: stacked(x), parameters)


@pytest.mark.parametrize("members", [1, 3])
def test_no_rows_give_no_rows(members: int) -> None:
    assert layer(members)(rows(1, 0, 3)).shape == (members, 0, 5)


def test_initial_weights_have_variance_one_over_the_inputs() -> None:
    weight = StackedLinear(4, 400, 100, generator()).weight
    assert weight.var().item() == pytest.approx(1 / 400, rel=0.02)
    assert weight.abs().max().item() <= (3 / 400) ** 0.5
    assert bool((StackedLinear(4, 400, 100, generator()).bias == 0).all())


def test_initial_weights_follow_the_generator_and_differ_between_members() -> None:
    first, again, other = layer(2, seed=5), layer(2, seed=5), layer(2, seed=6)
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight, other.weight)
    assert not torch.equal(first.weight[0], first.weight[1])


def test_member_weights_fall_with_the_loss_and_sum_to_one() -> None:
    weights = member_weights(torch.tensor([-4.0, -3.0, -4.0], dtype=torch.float64))
    assert weights.sum().item() == pytest.approx(1)
    assert (weights[0] / weights[1]).item() == pytest.approx(torch.e)
    assert weights[0] == weights[2]


def test_a_member_far_behind_gets_no_weight() -> None:
    assert member_weights(torch.tensor([-4.0, torch.inf])).tolist() == [1.0, 0.0]
