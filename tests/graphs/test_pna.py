"""PNA: four statistics of a node's messages under three scalers of its degree, mapped to their width by one matrix."""

from __future__ import annotations

import math

import pytest
import torch
from tests.graphs.layers import finite_gradients, seeded  # noqa: F401 one is a fixture
from torch import Tensor
from torch_geometric.nn import SAGEConv

from fishnets.errors import ConfigError
from fishnets.graphs.pna import PNAAggregation

WIDTH = 3
DEGREES = torch.tensor([1, 0, 4, 2])  # nodes without messages, with one, two and three
NODES = 5  # of which 1 has no message, 3 has one and 4, the last, none either
INDEX = torch.tensor([2, 0, 3, 2, 0, 2, 2, 0])
NEAR = {"rtol": 1e-5, "atol": 1e-5}  # PyTorch Geometric keeps the usual degree in float32


@pytest.fixture
def pna(device: torch.device, dtype: torch.dtype) -> PNAAggregation:
    return PNAAggregation(WIDTH, DEGREES).to(device, dtype)


@pytest.fixture
def messages(device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.randn(len(INDEX), WIDTH, device=device, dtype=dtype)


def twelve(messages: Tensor) -> Tensor:
    """What is known of the messages of one node, by its definition."""
    if not len(messages):
        return messages.new_zeros(12 * WIDTH)
    counts = DEGREES.tolist()
    usual = sum(count * math.log(degree + 1) for degree, count in enumerate(counts)) / sum(counts)
    scale = math.log(len(messages) + 1) / usual
    middle, apart = messages.mean(0), (messages - messages.mean(0)).square().mean(0).sqrt()
    four = torch.cat([middle, messages.amin(0), messages.amax(0), apart])
    return torch.cat([four, four * scale, four / scale])


def test_aggregate_is_a_linear_map_of_four_statistics_under_three_scalers(pna, messages, device):
    index = INDEX.to(device)
    rows = torch.stack([twelve(messages[index == node]) for node in range(NODES)])
    expected = rows @ pna.linear.weight.mT + pna.linear.bias
    torch.testing.assert_close(pna(messages, index, dim_size=NODES), expected, **NEAR)


def test_order_of_messages_does_not_matter(pna, messages, device, close):
    index, order = INDEX.to(device), torch.randperm(len(INDEX)).to(device)
    close(pna(messages[order], index[order], dim_size=NODES), pna(messages, index, dim_size=NODES))


def test_node_without_messages_has_the_constant_of_the_map(pna, messages, device):
    found = pna(messages, INDEX.to(device), dim_size=NODES)
    assert torch.equal(found[[1, 4]], pna.linear.bias.expand(2, WIDTH))
    nothing = pna(messages[:0], INDEX[:0].to(device), dim_size=NODES)
    assert torch.equal(nothing, pna.linear.bias.expand(NODES, WIDTH))


def test_sets_of_messages_with_the_same_targets_are_aggregated_one_by_one(pna, messages, device, close):
    index, both = INDEX.to(device), torch.stack([messages, messages.flip(0) - 1])
    expected = torch.stack([pna(one, index, dim_size=NODES) for one in both])
    close(pna(both, index, dim_size=NODES), expected)


def test_degrees_count_by_their_shares_alone(pna, messages, device):
    index, same, other = INDEX.to(device), *(PNAAggregation(WIDTH, d).to(messages) for d in (7 * DEGREES, DEGREES + 5))
    for module in (same, other):
        module.linear.load_state_dict(pna.linear.state_dict())
    expected = pna(messages, index)
    torch.testing.assert_close(same(messages, index), expected, **NEAR)
    assert not torch.allclose(other(messages, index), expected, **NEAR)


def test_gradients_are_those_of_finite_differences():
    pna, messages = PNAAggregation(2, DEGREES).double(), torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([0, 2, 0, 2])
    assert torch.autograd.gradcheck(lambda x: pna(x, index, dim_size=3), messages)


def test_gradients_are_finite_where_messages_are_equal_or_alone(pna, device, dtype):
    messages = torch.ones(4, WIDTH, device=device, dtype=dtype, requires_grad=True)
    pna(messages, torch.tensor([0, 0, 0, 2], device=device)).square().sum().backward()
    assert bool(messages.grad.isfinite().all())
    finite_gradients(pna)


def test_reset_draws_the_map_anew_and_keeps_the_usual_degree(pna):
    usual = pna.statistics.avg_deg_log.clone()
    pna.statistics.avg_deg_log.zero_()
    drawn = []
    for seed in (3, 4, 3):
        torch.manual_seed(seed)
        pna.reset_parameters()
        drawn.append({name: value.clone() for name, value in pna.state_dict().items()})
    for name in ("linear.weight", "linear.bias"):
        assert torch.equal(drawn[0][name], drawn[2][name])
        assert not torch.equal(drawn[0][name], drawn[1][name])
    torch.testing.assert_close(drawn[0]["statistics.avg_deg_log"], usual, **NEAR)


def test_saved_weights_hold_the_usual_degree_too(pna, messages, device):
    other = PNAAggregation(WIDTH, torch.tensor([0, 9])).to(messages)
    assert not torch.equal(other(messages, INDEX.to(device)), pna(messages, INDEX.to(device)))
    other.load_state_dict(pna.state_dict())
    assert torch.equal(other(messages, INDEX.to(device)), pna(messages, INDEX.to(device)))


def test_layer_of_torch_geometric_takes_it_and_resets_it(pna, messages, device, close):
    edge_index = torch.stack([torch.arange(len(INDEX)) % NODES, INDEX]).to(device)
    layer, x = SAGEConv(WIDTH, WIDTH, aggr=pna).to(messages), messages[:NODES]
    expected = layer.lin_l(pna(x[edge_index[0]], edge_index[1], dim_size=NODES)) + layer.lin_r(x)
    close(layer(x, edge_index), expected)
    before = pna.linear.weight.clone()
    layer.reset_parameters()
    assert not torch.equal(pna.linear.weight, before)


def test_bounds_say_as_much_as_an_index() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        aggregation, x = PNAAggregation(3, torch.tensor([1, 1, 1])), torch.randn(3, 3)
    by_index = aggregation(x, torch.tensor([0, 0, 2]), dim_size=3)
    torch.testing.assert_close(aggregation(x, ptr=torch.tensor([0, 2, 2, 3])), by_index)


def test_degrees_without_messages_are_refused() -> None:
    with pytest.raises(ConfigError, match="counts no node with messages"):
        PNAAggregation(3, torch.tensor([5, 0]))
