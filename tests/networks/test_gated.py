"""The gated body, against a plain formula and against itself member by member."""

from __future__ import annotations

import pytest
import torch
from tests.networks.helpers import generator, member, num_weights, rows
from torch.nn.functional import silu

from fishnets.errors import ConfigError
from fishnets.networks import Gated
from fishnets.networks.gated import GatedBody


def body(members: int, depth: int = 2, seed: int = 0) -> GatedBody:
    return Gated(6, depth).build(4, members, generator(seed)).double()


def test_blocks_add_a_gated_product_to_the_stream(close) -> None:
    network, x = body(1), rows(9, 4)
    expected = x @ network.enter.weight[0]
    for gate, leave in zip(network.gates, network.leaves, strict=True):
        both = expected @ gate.weight[0]  # (n, 2 · inner): the gates, then the values
        expected = expected + (silu(both[:, :12]) * both[:, 12:]) @ leave.weight[0]
    close(network(x[None])[0], expected)


@pytest.mark.parametrize("k", [0, 1, 2])
def test_stacked_members_equal_separate_networks(k: int, close) -> None:
    stacked, x = body(3), rows(1, 9, 4)
    close(stacked(x)[k], member(stacked, body(1, seed=9), k)(x)[0])


@pytest.mark.parametrize(("width", "depth", "expected"), [(16, 2, 3296), (32, 2, 12_736), (8, 0, 32)])
def test_number_of_weights_of_a_body(width: int, depth: int, expected: int) -> None:
    assert num_weights(Gated(width, depth).build(3, 1, generator())) == expected


def test_no_blocks_leave_a_linear_map(close) -> None:
    network, x = body(1, depth=0), rows(1, 9, 4)
    close(network(x), network.enter(x))


def test_rows_are_independent_of_each_other(close) -> None:
    network, x = body(2), rows(1, 9, 4)
    close(network(x)[:, 3:5], network(x[:, 3:5]))


def test_gradients_reach_every_weight() -> None:
    network = body(2)
    network(rows(1, 9, 4)).square().sum().backward()
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in network.parameters())


@pytest.mark.parametrize(("width", "depth"), [(0, 2), (8, -1)])
def test_impossible_sizes_are_refused(width: int, depth: int) -> None:
    with pytest.raises(ConfigError, match=f"`width` {width} must be at least 1 and `depth` {depth} at least 0"):
        Gated(width, depth)


def test_initial_weights_follow_the_generator() -> None:
    assert torch.equal(body(2, seed=3).enter.weight, body(2, seed=3).enter.weight)
    assert not torch.equal(body(2, seed=3).enter.weight, body(2, seed=4).enter.weight)
