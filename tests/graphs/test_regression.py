"""NodeRegressor: one network with any aggregation in the middle, its start and what it is standardised by.

Six nodes; node 5 receives nothing.
"""

from __future__ import annotations

import copy
import pickle
from typing import NamedTuple

import pytest
import torch
from tests.graphs.layers import finite_gradients, perturbed, seeded  # noqa: F401 seeded is a fixture
from tests.laws import equal
from torch import Tensor
from torch_geometric.nn import aggr

from fishnets.errors import ConfigError, ShapeError
from fishnets.graphs import FishnetsAggregation
from fishnets.graphs.regression import AGGREGATIONS, NodeRegressor, make_aggregation

NODES, EDGES, WIDTH = 6, 17, 8
DEGREES = torch.tensor([0.0, 1.0, 1.0, 2.0, 1.0])
every_aggregation = pytest.mark.parametrize("name", AGGREGATIONS)


class Graph(NamedTuple):
    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor


@pytest.fixture
def graph(dtype: torch.dtype) -> Graph:
    targets = torch.cat([torch.arange(NODES - 1), torch.randint(NODES - 1, (EDGES - NODES + 1,))])
    edge_index = torch.stack([torch.randint(NODES, (EDGES,)), targets])
    return Graph(torch.randn(NODES, 2, dtype=dtype), edge_index, torch.randn(EDGES, 3, dtype=dtype))


@pytest.fixture
def make(dtype: torch.dtype):
    """Makes a network in the dtype under test, at its start."""

    def make(name: str, seed: int = 0) -> NodeRegressor:
        return NodeRegressor(2, 3, 4, make_aggregation(name, WIDTH, DEGREES, 2), WIDTH, depth=1, seed=seed).to(dtype)

    return make


def test_aggregations_are_made_by_name() -> None:
    ours, paper = (make_aggregation(name, WIDTH, DEGREES, 3) for name in ("fishnets", "fishnets-paper"))
    assert repr(ours) == "FishnetsAggregation(8, 8, num_params=3)"
    assert repr(paper) == "FishnetsAggregation(8, 8, num_params=3, form='paper')"
    assert repr(make_aggregation("fishnets", WIDTH, DEGREES)) == "FishnetsAggregation(8, 8, num_params=8)"
    kinds = {"sum": aggr.SumAggregation, "mean": aggr.MeanAggregation, "max": aggr.MaxAggregation}
    for name, kind in kinds.items():
        assert type(make_aggregation(name, WIDTH, DEGREES)) is kind
    assert make_aggregation("softmax", WIDTH, DEGREES).t.shape == (WIDTH,)  # a temperature for each channel


def test_pna_scales_four_aggregations_by_the_degrees_of_training() -> None:
    pna = make_aggregation("pna", WIDTH, DEGREES)
    x, index = torch.randn(7, WIDTH), torch.tensor([0, 0, 0, 1, 1, 1, 1])
    degree = torch.tensor([3.0, 4.0])[:, None]
    parts = [kind()(x, index) for kind in (aggr.MeanAggregation, aggr.MinAggregation, aggr.MaxAggregation)]
    parts = torch.cat([*parts, aggr.StdAggregation()(x, index)], dim=1)
    usual = (torch.arange(5) + 1).log() @ DEGREES / DEGREES.sum()
    scale = (degree + 1).log() / usual
    torch.testing.assert_close(pna(x, index), torch.cat([parts, parts * scale, parts / scale], dim=1))


def test_an_unknown_aggregation_names_those_there_are() -> None:
    with pytest.raises(
        ConfigError,
        match=r'^There is no aggregation "median"; there are fishnets, fishnets-paper, sum, mean, max, softmax, pna\.$',
    ):
        make_aggregation("median", WIDTH, DEGREES)


@every_aggregation
def test_every_aggregation_estimates_and_learns(name: str, make, graph: Graph) -> None:
    model = make(name)
    out = model(*graph)
    assert out.shape == (NODES, 4)
    assert out.isfinite().all()
    out.square().sum().backward()
    finite_gradients(model)


@every_aggregation
def test_forward_is_the_equation(name: str, make, graph: Graph, close) -> None:
    model = make(name)
    model.standardise(*graph)
    messages = []
    for (source, _), own in zip(graph.edge_index.T, graph.edge_attr, strict=True):
        row = (torch.cat([graph.x[source], own]) - model.shift) / model.scale
        messages.append(model.body(row[None, None])[0, 0])
    nodes = model.aggregation(torch.stack(messages), graph.edge_index[1], dim_size=NODES)
    expected = torch.cat([model.out(model.head(node[None, None])[0]) for node in nodes])
    close(model(*graph), expected)


@every_aggregation
def test_the_order_of_edges_does_not_matter(name: str, make, graph: Graph, close) -> None:
    model, order = perturbed(make(name)), torch.randperm(EDGES)
    moved = model(graph.x, graph.edge_index[:, order], graph.edge_attr[order])
    close(moved, model(*graph))


@every_aggregation
def test_nodes_without_messages_get_what_an_empty_neighbourhood_says(name: str, make, graph: Graph, close) -> None:
    model = perturbed(make(name))
    none = torch.zeros(2, 0, dtype=torch.int64)
    alone = model(torch.randn(3, 2).to(graph.x), none, graph.edge_attr[:0])
    assert alone.shape == (3, 4)
    assert alone.isfinite().all()
    equal(alone[1:], alone[:1].expand(2, -1))
    out = model(*graph)
    close(out[5], alone[0])
    assert not torch.allclose(out[:5], alone[0].expand(5, -1))
    out[5].sum().backward()
    assert all(weight.grad is None or bool(weight.grad.isfinite().all()) for weight in model.parameters())


def test_standardised_messages_have_zero_mean_and_unit_spread(make, graph: Graph, close) -> None:
    model, seen = make("mean"), []
    wide = Graph(5 + 3 * graph.x, graph.edge_index, graph.edge_attr * graph.x.new_tensor([0.01, 1, 100]))
    equal(model.shift, graph.x.new_zeros(5))
    equal(model.scale, graph.x.new_ones(5))
    model.standardise(*wide)
    model.body.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    model(*wide)
    rows = seen[0][0]
    assert rows.shape == (EDGES, 5)
    close(rows.mean(0), rows.new_zeros(5))
    close(rows.std(0), rows.new_ones(5))
    assert not model.shift.requires_grad


def test_standards_are_kept_with_the_weights(make, graph: Graph) -> None:
    model, other = make("fishnets"), make("fishnets", seed=1)
    model.standardise(*graph)
    other.load_state_dict(model.state_dict())
    for same in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        equal(same.scale, model.scale)
        equal(same(*graph), model(*graph))


def test_a_constant_feature_does_not_divide_by_zero(make, graph: Graph) -> None:
    model = make("fishnets")
    constant = Graph(torch.full_like(graph.x, 7.0), *graph[1:])
    model.standardise(*constant)
    assert (model.scale >= 1e-6).all()
    assert model(*constant).isfinite().all()


def test_the_seed_decides_body_and_head(make) -> None:
    first, same, other = (make("fishnets", seed=seed) for seed in (4, 4, 5))
    for part in ("body", "head"):
        for weight, again, another in zip(
            *(getattr(model, part).parameters() for model in (first, same, other)), strict=True
        ):
            equal(weight.detach(), again.detach())
            assert torch.equal(weight, another) == bool((weight == 0).all())


def test_with_torchs_seed_the_whole_start_repeats(make, graph: Graph) -> None:
    outputs = []
    for _ in range(2):
        torch.manual_seed(9)
        outputs.append(make("fishnets")(*graph))
    equal(*outputs)


def test_the_head_is_as_wide_as_the_aggregation_says(make) -> None:
    assert make("pna").head.enter.weight.shape != make("mean").head.enter.weight.shape
    model = NodeRegressor(2, 3, 1, FishnetsAggregation(WIDTH, 3, num_params=2), WIDTH)
    assert model(torch.randn(4, 2), torch.tensor([[0], [1]]), torch.randn(1, 3)).shape == (4, 1)


def test_an_aggregation_of_another_width_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"^Messages of shape \(2, 8\) were given to .* expects 16 channels"):
        NodeRegressor(2, 3, 2, FishnetsAggregation(16), width=8)
