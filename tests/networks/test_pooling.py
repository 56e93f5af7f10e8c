"""Pooling over sets: reshaped or segment by segment, the numbers are the same."""

from __future__ import annotations

import pytest
import torch
from tests.networks.helpers import generator, rows

from fishnets.networks import StackedLinear
from fishnets.networks.pooling import BLOCK, apply_to_rows, set_mean, set_softmax, set_sum, with_values
from fishnets.ragged import Sets

POOLINGS = {"sum": set_sum, "mean": set_mean, "softmax": lambda x, sets: set_sum(set_softmax(x, sets) * x, sets)}
every = pytest.mark.parametrize("pool", POOLINGS.values(), ids=POOLINGS)


@every
@pytest.mark.parametrize("sizes", [(3, 3, 3), (4, 0, 1, 9), (0, 0), (1,)], ids=str)
def test_pooling_is_that_of_each_set_alone(pool, sizes: tuple[int, ...], close) -> None:
    parts = [rows(2, n, 4, seed=n) for n in sizes]
    sets = Sets.from_list([torch.zeros(n, 1) for n in sizes])
    direct = {"sum": lambda x: x.sum(1), "mean": lambda x: x.sum(1) / max(1, x.shape[1])}
    direct["softmax"] = lambda x: (torch.softmax(x, 1) * x).sum(1)
    name = next(name for name, function in POOLINGS.items() if function is pool)
    close(pool(torch.cat(parts, dim=1), sets), torch.stack([direct[name](part) for part in parts], dim=1))


def test_softmax_weights_sum_to_one_whatever_the_logits(close) -> None:
    sets = Sets.from_list([torch.zeros(n, 1) for n in (5, 0, 2)])
    weights = set_softmax(1e4 * rows(2, 7, 3), sets)
    close(set_sum(weights, sets), torch.tensor([1.0, 0.0, 1.0]).view(1, 3, 1).expand(2, 3, 3).double())


def test_other_rows_keep_what_is_known_of_the_sets() -> None:
    sets = Sets.from_block(torch.zeros(4, 3, 2))
    other = with_values(sets, torch.ones(12, 5))
    assert other.__dict__["common_size"] == 3
    assert other.num_features == 5


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("num_rows", [5, BLOCK, 2 * BLOCK + 7])
def test_linear_maps_of_rows(members: int, num_rows: int, device: torch.device) -> None:
    """On a GPU (``--device cuda``) this compares blocks of rows with all of them at once."""
    layer = StackedLinear(members, 3, 4, generator()).double().to(device)
    x = rows(1, num_rows, 3).to(device)
    torch.testing.assert_close(apply_to_rows(layer, x).expand(members, -1, -1), x @ layer.weight + layer.bias)
