"""Twin networks: sizes, members, the scale of fresh heads, descriptions."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from tests.networks.helpers import generator, member, num_weights, rows
from torch import nn

from fishnets.errors import ConfigError
from fishnets.networks import MLP, Gated, NetworkRecipe, TwinNetwork, network_from_dict, network_to_dict
from fishnets.ops.segment_information import segment_information

FACTORS = ("full", "diagonal", "rank-1", "rank-2")


def twin(
    recipe: NetworkRecipe, *, features: int = 3, params: int = 2, factor="full", shared=False, members=1, seed=0
) -> TwinNetwork:
    return TwinNetwork(recipe, features, params, factor, shared, members, generator(seed))


@pytest.mark.parametrize(
    ("recipe", "features", "shared", "expected"),
    [
        (MLP(50, 3, "swish"), 3, False, 10_855),  # the paper's robustness study
        (MLP(256, 3, "elu"), 3, False, 266_501),  # the paper's linear regression
        (MLP(256, 3, "elu"), 5, False, 267_525),  # with the five features of the authors' code
        (Gated(16, 2), 3, True, 3_381),
        (Gated(32, 2), 3, False, 25_637),
    ],
)
def test_number_of_weights(recipe: NetworkRecipe, features: int, shared: bool, expected: int) -> None:
    assert num_weights(twin(recipe, features=features, shared=shared)) == expected
    assert num_weights(twin(recipe, features=features, shared=shared, members=3)) == 3 * expected


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("shared", [True, False])
def test_outputs_have_one_score_and_one_factor_per_row_and_member(factor: str, shared: bool) -> None:
    width = {"full": 6, "diagonal": 3, "rank-1": 3, "rank-2": 6}[factor]
    score, raw = twin(Gated(8, 1), params=3, factor=factor, shared=shared, members=4)(torch.zeros(7, 3))
    assert score.shape == (4, 7, 3)
    assert raw.shape == (4, 7, width)


@pytest.mark.parametrize("recipe", [MLP(8, 2, "elu"), Gated(8, 2)])
@pytest.mark.parametrize("shared", [True, False])
def test_stacked_members_equal_separate_twins(recipe: NetworkRecipe, shared: bool, close) -> None:
    x = rows(9, 3)
    stacked = twin(recipe, shared=shared, members=3).double()
    for k in range(3):
        single = member(stacked, twin(recipe, shared=shared, seed=9).double(), k)
        for together, alone in zip(stacked(x), single(x), strict=True):
            close(together[k], alone[0])


def test_twin_bodies_are_separate_and_a_shared_trunk_is_not() -> None:
    def moved(network: TwinNetwork) -> bool:
        x = rows(9, 3, dtype=torch.float32)
        before = network(x)[1]
        nn.init.zeros_(network.score_body.enter.weight)
        return not torch.equal(before, network(x)[1])

    assert not moved(twin(Gated(8, 1), shared=False))
    assert moved(twin(Gated(8, 1), shared=True))


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("size", [1, 20, 500, 20_000])
def test_scaled_heads_sum_to_order_one_at_any_size(factor: str, size: int) -> None:
    network = twin(Gated(8, 2), factor=factor, members=3)
    network.scale_to(float(size))
    with torch.no_grad():
        score, raw = network(rows(size, 3, dtype=torch.float32))
        score, fisher = segment_information(torch.cat([score, raw], -1).double(), 2, torch.tensor([0, size]), factor)
    assert score.abs().max().item() < 20
    trace = fisher[..., [0, 2]].sum(-1)  # (K, 1)
    assert trace.max().item() < 100
    if factor in ("full", "diagonal"):
        assert trace.min().item() > 0.2


@pytest.mark.parametrize("factor", FACTORS)
def test_scaling_twice_is_scaling_to_the_last(factor: str) -> None:
    once, twice = twin(Gated(8, 1), factor=factor), twin(Gated(8, 1), factor=factor)
    once.scale_to(500.0)
    twice.scale_to(7.0)
    twice.scale_to(500.0)
    for (name, a), b in zip(once.named_parameters(), twice.parameters(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


def test_kind_of_factor_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'`factor` is "lower" but "full", "diagonal" or "rank-r" with 1 <= r <= 2'):
        twin(Gated(8, 1), factor="lower")


@pytest.mark.parametrize("recipe", [MLP(7, 2, "swish"), Gated(5, 3)])
def test_descriptions_rebuild_their_recipe(recipe: NetworkRecipe) -> None:
    assert network_from_dict(network_to_dict(recipe)) == recipe


def test_descriptions_are_plain_values() -> None:
    assert network_to_dict(MLP(7, 2, "swish")) == {"kind": "MLP", "width": 7, "depth": 2, "activation": "swish"}


def test_unknown_kind_of_network_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Unknown network kind 'Transformer'; expected one of \['Gated', 'MLP'\]"):
        network_from_dict({"kind": "Transformer"})


def test_recipe_of_a_foreign_class_is_not_described() -> None:
    @dataclass(frozen=True)
    class Mine:
        width: int = 4

    with pytest.raises(ConfigError, match=r"`network` is a Mine, which a file cannot describe; use one of"):
        network_to_dict(Mine())  # type: ignore[arg-type]


def test_recipe_that_only_borrows_a_name_is_not_described() -> None:
    @dataclass(frozen=True)
    class Gated:
        width: int = 4

    with pytest.raises(ConfigError, match=r"`network` is a Gated, which a file cannot describe"):
        network_to_dict(Gated())  # type: ignore[arg-type]
