"""FishnetsAggregation as a drop-in: compilers, convolutions, pooling, heterogeneous and parallel models of others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed
import torch_geometric.nn as pyg
from tests.graphs.layers import (
    compare_compiled,
    compiling,
    edges,
    every_form,
    finite_gradients,
    seeded,  # noqa: F401 a fixture
    small,
)
from tests.laws import equal
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.nn import aggr as pyg_aggr

from fishnets.errors import ShapeError
from fishnets.graphs import FishnetsAggregation, register_with_pyg

PLAIN = [pyg.SAGEConv, pyg.GraphConv, pyg.GENConv]


def call(num_nodes: int, num_messages: int, **more: Tensor) -> dict[str, Tensor | int]:
    x, index = torch.randn(num_messages, 8), torch.randint(num_nodes, (num_messages,))
    return {"x": x, "index": index, "dim_size": num_nodes, **more}


def conv_call(num_nodes: int, num_edges: int) -> dict[str, Tensor]:
    return {"x": torch.randn(num_nodes, 8), "edge_index": edges(num_nodes, num_nodes, num_edges)}


@compiling
def test_it_is_traced_as_one_graph() -> None:
    compare_compiled(small(), "aot_eager", call(5, 20), call(7, 31, weight=torch.rand(31)))
    assert torch._dynamo.explain(small())(**call(5, 20)).graph_break_count == 0
    torch._dynamo.reset()


@compiling
@pytest.mark.slow
@every_form
def test_it_compiles(form) -> None:
    compare_compiled(small(form=form), "inductor", call(5, 20), call(7, 31))
    bounds = {"x": torch.randn(9, 8), "ptr": torch.tensor([0, 3, 3, 9])}
    compare_compiled(small(form=form), "aot_eager", bounds)


@compiling
@pytest.mark.slow
def test_it_compiles_inside_a_convolution() -> None:
    compare_compiled(pyg.GENConv(8, 8, aggr=small()), "inductor", conv_call(5, 20), conv_call(7, 31))


@pytest.mark.parametrize("conv", PLAIN)
def test_convolutions_of_one_width(conv) -> None:
    layer, x, edge_index = conv(8, 8, aggr=small()), torch.randn(7, 8), edges(7, 7)
    out = layer(x, edge_index)
    out.sum().backward()
    finite_gradients(layer)
    order = torch.randperm(edge_index.shape[1])
    torch.testing.assert_close(layer(x, edge_index[:, order]), out, rtol=1e-4, atol=1e-5)
    ordered, _ = EdgeIndex(edge_index, sparse_size=(7, 7)).sort_by("col")
    assert ordered.is_sorted_by_col  # its ptr reaches the aggregation beside the index
    torch.testing.assert_close(layer(x, ordered), out, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("conv", PLAIN)
def test_convolutions_reset_it(conv) -> None:
    fresh, used = conv(8, 8, aggr=small()), conv(8, 8, aggr=small())
    with torch.no_grad():
        for parameter in used.aggr_module.parameters():
            parameter.fill_(100.0)
    for layer in (fresh, used):
        torch.manual_seed(7)
        layer.reset_parameters()
    for name, value in fresh.aggr_module.state_dict().items():
        equal(used.aggr_module.state_dict()[name], value)


def test_a_convolution_passes_on_what_the_aggregation_says() -> None:
    aggregation, x, edge_index = small(), torch.randn(7, 8), edges(7, 7)
    layer = pyg.SAGEConv(8, 5, aggr=aggregation, root_weight=False)
    sources, targets = edge_index
    torch.testing.assert_close(layer(x, edge_index), layer.lin_l(aggregation(x[sources], targets, dim_size=7)))
    assert layer.aggr == "FishnetsAggregation(8, 8, num_params=2)"


def test_targets_without_neighbours() -> None:
    layer = pyg.SAGEConv((8, 6), 5, aggr=small(), root_weight=False)
    sources, targets = torch.randn(7, 8, requires_grad=True), torch.randn(9, 6)
    out = layer((sources, targets), edges(7, 4))
    equal(out[4:], layer.lin_l.bias.expand(5, -1))
    out.sum().backward()
    finite_gradients(layer)
    assert sources.grad.isfinite().all()


def test_towers_and_heads_have_three_dimensions() -> None:
    x, edge_index = torch.randn(7, 8), edges(7, 7)
    scalers = {"scalers": ["identity", "amplification"], "deg": torch.tensor([0, 2, 3, 2])}
    layers = [
        pyg.PNAConv(8, 6, aggregators=["mean", small()], towers=2, **scalers),
        pyg.PNAConv(8, 6, aggregators=["max", small(4)], towers=2, divide_input=True, **scalers),
        pyg.GATConv(8, 5, heads=2, aggr=small(5)),
    ]
    for layer, width in zip(layers, (6, 6, 10), strict=True):
        out = layer(x, edge_index)
        assert out.shape == (7, width)
        out.sum().backward()
        finite_gradients(layer)


@pytest.mark.parametrize("mode", ["cat", "sum", "mean", "max", "min", "std", "var", "logsumexp", "proj", "attn"])
def test_beside_other_aggregations(mode: str) -> None:
    widths = {"in_channels": 8, "out_channels": 8}
    options = {"proj": widths, "attn": {**widths, "num_heads": 2}}
    ours, x, index = small(), torch.randn(20, 8), torch.randint(5, (20,))
    many = pyg_aggr.MultiAggregation(["mean", "max", ours], mode=mode, mode_kwargs=options.get(mode))
    out = many(x, index, dim_size=6)
    assert out.shape == (6, many.get_out_channels(8))
    out.sum().backward()
    finite_gradients(ours)
    if mode == "cat":
        equal(out[:, 16:], ours(x, index, dim_size=6))


@pytest.mark.parametrize("conv", [pyg.SAGEConv, pyg.GENConv])
def test_lists_of_aggregations_in_convolutions(conv) -> None:
    layer = conv(8, 8, aggr=["mean", small()])
    layer(torch.randn(7, 8), edges(7, 7)).sum().backward()
    finite_gradients(layer)


def test_degree_scalers() -> None:
    ours, x, index = small(), torch.randn(20, 8), torch.randint(5, (20,))
    scaled = pyg_aggr.DegreeScalerAggregation([ours], ["identity", "linear"], torch.tensor([0, 1, 3, 2]))
    out = scaled(x, index, dim_size=6)
    equal(out[:, :8], ours(x, index, dim_size=6))
    degree = torch.bincount(index, minlength=6)[:, None]
    torch.testing.assert_close(out[:, 8:], ours(x, index, dim_size=6) * degree / scaled.avg_deg_lin)


def test_global_pooling() -> None:
    pool, x, batch = small(), torch.randn(11, 8), torch.tensor([0, 0, 0, 1, 1, 2, 4, 4, 4, 4, 4])
    out = pool(x, batch)
    equal(pool(x, ptr=torch.tensor([0, 3, 5, 6, 6, 11])), out)
    for graph in (0, 1, 2, 4):
        alone = pool(x[batch == graph])
        assert alone.shape == (1, 8)
        torch.testing.assert_close(alone[0], out[graph], rtol=1e-4, atol=1e-5)


def test_one_instance_shared_by_all_layers() -> None:
    model = pyg.GraphSAGE(8, 8, 3, 8, aggr=small())
    assert len({id(conv.aggr_module) for conv in model.convs}) == 1
    model(torch.randn(7, 8), edges(7, 7)).sum().backward()
    finite_gradients(model)
    other_widths = pyg.GraphSAGE(8, 16, 2, 8, aggr=small())
    with pytest.raises(ShapeError, match=r"expects 8 channels .* One instance serves one width: give layers of other"):
        other_widths(torch.randn(7, 8), edges(7, 7))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_checkpoints_recompute_the_same_gradients(dropout: float) -> None:
    x, edge_index, grads = torch.randn(7, 8), edges(7, 7), []
    conv, norm = pyg.GENConv(8, 8, aggr=small(), norm="layer"), nn.LayerNorm(8)
    for ckpt_grad in (False, True):
        layer = pyg.DeepGCNLayer(conv, norm, nn.ReLU(), block="res+", dropout=dropout, ckpt_grad=ckpt_grad).train()
        layer.zero_grad()
        torch.manual_seed(1)
        given = x.clone().requires_grad_()
        layer(given, edge_index).square().sum().backward()
        finite_gradients(layer)
        grads.append([given.grad, *[parameter.grad.clone() for parameter in layer.parameters()]])
    for plain, again in zip(*grads, strict=True):
        torch.testing.assert_close(again, plain)


class Two(nn.Module):
    """Two layers, as an example of to_hetero has them."""

    def __init__(self, conv: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.second = conv((8, 8), 8, aggr=small()), conv((8, 8), 8, aggr=small())

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


RELATIONS = [("a", "to", "b"), ("b", "to", "a"), ("a", "of", "a")]


def relations() -> tuple[dict[str, Tensor], dict[tuple[str, str, str], Tensor]]:
    sizes = {"a": 7, "b": 5}
    x = {name: torch.randn(size, 8) for name, size in sizes.items()}
    return x, {relation: edges(sizes[relation[0]], sizes[relation[2]]) for relation in RELATIONS}


@pytest.mark.parametrize("conv", [pyg.SAGEConv, pyg.GENConv])
def test_to_hetero_gives_each_relation_its_own(conv) -> None:
    model = pyg.to_hetero(Two(conv), (["a", "b"], RELATIONS))
    ours = [module for module in model.modules() if isinstance(module, FishnetsAggregation)]
    assert len(ours) == 2 * len(RELATIONS)
    assert not any(torch.equal(ours[0].lin_in.weight, other.lin_in.weight) for other in ours[1:])
    out = model(*relations())
    assert {name: features.shape for name, features in out.items()} == {"a": (7, 8), "b": (5, 8)}
    sum(features.sum() for features in out.values()).backward()
    finite_gradients(model)


def test_hetero_conv() -> None:
    x, edge_index = relations()
    layer = pyg.HeteroConv({relation: pyg.SAGEConv((8, 8), 6, aggr=small()) for relation in RELATIONS})
    out = layer(x, edge_index)
    assert {name: features.shape for name, features in out.items()} == {"a": (7, 6), "b": (5, 6)}
    sum(features.sum() for features in out.values()).backward()
    finite_gradients(layer)


@every_form
def test_every_parameter_learns_in_parallel(form, tmp_path: Path) -> None:
    """Distributed data parallel refuses a second step where a parameter of the first had no gradient."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        _two_steps_in_parallel(form)
    finally:
        torch.distributed.destroy_process_group()
    assert not torch.distributed.is_initialized()


def _two_steps_in_parallel(form: str) -> None:
    """A function of its own: a model that outlives its process group can hang when it is freed."""
    model = nn.parallel.DistributedDataParallel(FishnetsAggregation(3, num_params=3, form=form))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        model(torch.randn(11, 3), torch.randint(5, (11,))).square().sum().backward()
        finite_gradients(model)
        optimizer.step()
        assert all((old != new).any() for old, new in zip(before, model.parameters(), strict=True))


def test_it_is_found_by_name_once_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"aggr": "fishnets", "aggr_kwargs": {"in_channels": 8, "num_params": 2}}
    with pytest.raises(ValueError, match="Could not resolve 'fishnets'"):
        pyg.SAGEConv(8, 8, **options)
    monkeypatch.setattr(pyg_aggr, "FishnetsAggregation", None, raising=False)  # so that it is taken out again
    register_with_pyg()
    layer = pyg.SAGEConv(8, 8, **options)
    assert repr(layer.aggr_module) == "FishnetsAggregation(8, 8, num_params=2)"
    model = pyg.GraphSAGE(8, 8, 2, 8, **options)
    assert model.convs[0].aggr_module is not model.convs[1].aggr_module
    monkeypatch.undo()
    assert not hasattr(pyg_aggr, "FishnetsAggregation")


def test_decomposed_layers_are_refused_with_the_reason() -> None:
    layer = pyg.GCNConv(8, 8, aggr=small(), decomposed_layers=2)
    with pytest.raises(ShapeError, match=r"leave `decomposed_layers` at 1, because a Fisher matrix mixes all channels"):
        layer(torch.randn(7, 8), edges(7, 7))
