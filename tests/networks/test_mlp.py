"""The paper's perceptron, against a plain formula and against itself member by member."""

from __future__ import annotations

import pytest
import torch
from tests.networks.helpers import generator, member, num_weights, rows
from torch import Tensor
from torch.nn.functional import elu, silu

from fishnets.errors import ConfigError
from fishnets.networks import MLP
from fishnets.networks.mlp import MLPBody


def body(members: int, activation: str = "swish", seed: int = 0) -> MLPBody:
    return MLP(6, 3, activation).build(4, members, generator(seed)).double()  # type: ignore[arg-type]


@pytest.mark.parametrize(("activation", "function"), [("elu", elu), ("swish", silu)])
def test_every_layer_is_followed_by_its_activation(activation: str, function, close) -> None:
    network, x = body(1, activation), rows(9, 4)
    expected: Tensor = x
    for layer in network.layers:
        expected = function(expected @ layer.weight[0] + layer.bias[0])
    close(network(x[None])[0], expected)


@pytest.mark.parametrize("k", [0, 1, 2])
def test_stacked_members_equal_separate_networks(k: int, close) -> None:
    stacked, x = body(3), rows(1, 9, 4)
    close(stacked(x)[k], member(stacked, body(1, seed=9), k)(x)[0])


@pytest.mark.parametrize(("width", "depth", "expected"), [(50, 3, 5300), (256, 3, 132_608), (8, 1, 32)])
def test_number_of_weights_of_a_body(width: int, depth: int, expected: int) -> None:
    assert num_weights(MLP(width, depth).build(3, 1, generator())) == expected


def test_number_of_weights_grows_with_the_members() -> None:
    assert num_weights(body(5)) == 5 * num_weights(body(1))


def test_rows_are_independent_of_each_other(close) -> None:
    network, x = body(2), rows(1, 9, 4)
    close(network(x)[:, 3:5], network(x[:, 3:5]))


def test_activation_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"`activation` is \"relu\" but one of \['elu', 'swish'\] was expected"):
        MLP(activation="relu")  # type: ignore[arg-type]


@pytest.mark.parametrize(("width", "depth"), [(0, 3), (8, 0)])
def test_empty_networks_are_refused(width: int, depth: int) -> None:
    with pytest.raises(ConfigError, match=f"`width` {width} and `depth` {depth} must be at least 1"):
        MLP(width, depth)


def test_initial_weights_follow_the_generator() -> None:
    assert torch.equal(body(2, seed=3).layers[0].weight, body(2, seed=3).layers[0].weight)
    assert not torch.equal(body(2, seed=3).layers[0].weight, body(2, seed=4).layers[0].weight)
