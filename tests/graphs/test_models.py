"""DeeperGCN: its equation, every aggregation, the published sizes, and what each wrong argument is told."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks
from torch_geometric.loader import RandomNodeLoader
from torch_geometric.nn.aggr import Aggregation, MultiAggregation, SumAggregation

from fishnets.errors import ConfigError, DataError, ShapeError
from fishnets.graphs import PAPER_MODELS, DeeperGCN, FishnetsAggregation, paper_model

fishnets = partial(FishnetsAggregation, num_params=3)
KINDS: dict[str, dict[str, Any]] = {
    "softmax": {"aggregation": "softmax"},
    "softmax, shared": {"aggregation": "softmax", "share_aggregation": True},
    "softmax, fixed": {"aggregation": "softmax", "learn_temperature": False, "temperature": 0.5},
    "softmax_sg": {"aggregation": "softmax_sg", "temperature": 0.1},
    "powermean": {"aggregation": "powermean"},
    "mean": {"aggregation": "mean"},
    "sum": {"aggregation": "sum"},
    "add": {"aggregation": "add"},
    "max": {"aggregation": "max"},
    "multi": {"aggregation": lambda width: MultiAggregation(["mean", "max"])},
    "fishnets": {"aggregation": fishnets},
    "fishnets, by name": {"aggregation": "fishnets"},
    "fishnets, shared": {"aggregation": fishnets, "share_aggregation": True},
    "fishnets, paper": {"aggregation": partial(fishnets, form="paper")},
}


class Graph(NamedTuple):
    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor
    batch: Tensor
    species: Tensor


@pytest.fixture(autouse=True)
def own_randomness(no_global_state: None) -> Iterator[None]:
    """Modules draw their parameters from torch's own generator: what they draw does not outlive a test."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        yield


@pytest.fixture
def graph(device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Graph:
    """Nine nodes in two graphs with 30 edges; node 8 receives nothing."""
    where: dict[str, Any] = {"generator": generator, "device": device}
    batch = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1], device=device)
    sources = torch.cat([torch.randint(0, 5, (15,), **where), torch.randint(5, 9, (15,), **where)])
    targets = torch.cat([torch.randint(0, 5, (15,), **where), torch.randint(5, 8, (15,), **where)])
    return Graph(
        torch.randn(9, 4, dtype=dtype, **where),
        torch.stack([sources, targets]),
        torch.randn(30, 3, dtype=dtype, **where),
        batch,
        torch.randint(0, 5, (9,), **where),
    )


def made(graph: Graph, edge_dim: int | None = 3, num_outputs: int = 2, **settings: Any) -> DeeperGCN:
    small: dict[str, Any] = {"hidden": 8, "num_layers": 4, "dropout": 0.0}
    return DeeperGCN(4, edge_dim, num_outputs, **(small | settings)).to(graph.x)


def count(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def aggregations(model: DeeperGCN) -> list[Aggregation]:
    return [layer.conv.aggr_module for layer in model.layers]


def gradients(model: DeeperGCN, *inputs: Tensor | None) -> dict[str, Tensor]:
    """Gradients of all weights, each of which must have one."""
    model.zero_grad()
    model(*inputs).square().sum().backward()
    missing = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert not missing, f"no gradient reached {missing}"
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize(
    ("name", "num_weights"),
    [
        ("gcn-112", 1_887_144),
        ("fishnets-8", 146_596),
        ("fishnets-16", 280_740),
        ("fishnets-20", 442_372),
        ("fishnets-16-focus", 355_584),
        ("fishnets-small", 30_360),
        ("gcn-28", 477_964),
        ("gcn-small", 33_580),
        ("noisy-fishnets-20", 442_500),
        ("noisy-gcn-28", 478_092),
        ("dyresgen-112", 2_374_568),
    ],
)
def test_the_published_networks_have_the_published_number_of_weights(name: str, num_weights: int) -> None:
    assert count(paper_model(name)) == PAPER_MODELS[name].num_weights == num_weights


def test_every_published_network_is_counted() -> None:
    assert len(PAPER_MODELS) == 11


@pytest.mark.parametrize(("name", "num_weights"), [("fishnets-8", 170_648), ("fishnets-16", 332_280)])
def test_published_networks_can_have_an_aggregation_per_layer(name: str, num_weights: int) -> None:
    assert count(paper_model(name, share_aggregation=False)) == num_weights


def test_a_published_network_runs(device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> None:
    where: dict[str, Any] = {"generator": generator, "device": device}
    edges = torch.randint(0, 6, (2, 20), **where)
    x, edge_attr = torch.rand(6, 8, dtype=dtype, **where), torch.rand(20, 8, dtype=dtype, **where)
    plain, known = paper_model("fishnets-small").to(x), paper_model("fishnets-8").to(x)
    assert plain(x, edges, edge_attr).shape == (6, 112)
    assert known(x, edges, edge_attr, species=torch.arange(6, device=device)).shape == (6, 112)


def test_a_published_network_takes_changes() -> None:
    model = paper_model("fishnets-20", aggregation=partial(FishnetsAggregation, num_params=10, form="legacy"))
    assert count(model) == 442_372
    assert {aggregation.form for aggregation in aggregations(model)} == {"legacy"}
    with pytest.raises(TypeError, match="layers"):
        paper_model("fishnets-20", layers=3)


def test_an_unknown_network_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no model 'fishnets-9'.*gcn-112, fishnets-8.*dyresgen-112"):
        paper_model("fishnets-9")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edge_dim", [None, 3])
def test_every_aggregation_passes_gradients_to_every_weight(kind: str, edge_dim: int | None, graph: Graph) -> None:
    model = made(graph, edge_dim, **KINDS[kind])
    inputs = (graph.x, graph.edge_index, None if edge_dim is None else graph.edge_attr)
    assert model(*inputs).shape == (9, 2)
    assert all(bool(gradient.isfinite().all()) for gradient in gradients(model, *inputs).values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_permuting_nodes_permutes_outputs(
    kind: str, norm: str, graph: Graph, generator: torch.Generator, close
) -> None:
    model = made(graph, norm=norm, one_hot=5, **KINDS[kind])
    order = torch.randperm(9, generator=generator, device=graph.x.device)
    new_number = order.argsort()
    edges = torch.randperm(30, generator=generator, device=graph.x.device)
    moved = model(graph.x[order], new_number[graph.edge_index[:, edges]], graph.edge_attr[edges],
                  species=graph.species[order])  # fmt: skip
    close(moved, model(graph.x, graph.edge_index, graph.edge_attr, species=graph.species)[order])


@pytest.mark.parametrize("encode_edges", ["once", "each layer"])
def test_forward_is_the_equation(encode_edges: str, graph: Graph, close) -> None:
    model = made(graph, num_layers=3, aggregation="mean", one_hot=5, encode_edges=encode_edges, bias=True)
    nodes = torch.cat([graph.x, model.species_encoder(torch.eye(5).to(graph.x)[graph.species])], dim=1)
    x, edge = model.node_encoder(nodes), model.edge_encoder(graph.edge_attr)

    def convolve(x: Tensor, layer: Any) -> Tensor:
        twofold = encode_edges == "each layer"
        encoder, conv = (layer.conv.encoder, layer.conv.conv) if twofold else (nn.Identity(), layer.conv)
        rows = []
        for v in range(9):
            incoming = graph.edge_index[1] == v
            messages = (x[graph.edge_index[0, incoming]] + encoder(edge[incoming])).relu() + 1e-7
            rows.append(x[v] + (messages.mean(0) if incoming.any() else 0))
        return conv.mlp(torch.stack(rows))

    first, *others = model.layers
    x = convolve(x, first)
    for layer in others:
        x = x + convolve(layer.norm(x).relu(), layer)
    expected = model.output(first.norm(x).relu())
    close(model(graph.x, graph.edge_index, graph.edge_attr, species=graph.species), expected)


def test_temperatures_are_learned_by_softmax_and_fixed_by_softmax_sg(graph: Graph) -> None:
    learned, fixed = made(graph), made(graph, aggregation="softmax_sg", temperature=0.1)
    assert [aggregation.t.item() for aggregation in aggregations(learned)] == [1.0] * 4
    assert all(isinstance(aggregation.t, nn.Parameter) for aggregation in aggregations(learned))
    assert [(aggregation.t, aggregation.semi_grad) for aggregation in aggregations(fixed)] == [(0.1, True)] * 4
    assert count(made(graph, learn_temperature=False)) == count(fixed) == count(learned) - 4


@pytest.mark.parametrize("aggregation", ["softmax", "mean", fishnets])
def test_a_shared_aggregation_is_one_and_others_are_distinct(aggregation: Any, graph: Graph) -> None:
    shared = made(graph, aggregation=aggregation, share_aggregation=True)
    own = made(graph, aggregation=aggregation)
    assert len(set(aggregations(shared))) == 1
    assert len(set(aggregations(own))) == 4
    assert count(own) - count(shared) == 3 * count(aggregations(own)[0])


def test_a_factory_is_called_with_the_width_once_for_each_layer_or_once(graph: Graph) -> None:
    for shared, calls in [(False, 4), (True, 1)]:
        widths: list[int] = []
        made(
            graph, aggregation=lambda w, seen=widths: seen.append(w) or FishnetsAggregation(w), share_aggregation=shared
        )
        assert widths == [8] * calls


@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("encode_edges", ["once", "each layer"])
@pytest.mark.parametrize("kind", ["softmax", "fishnets", "fishnets, shared"])
def test_checkpointing_gives_the_same_gradients(norm: str, encode_edges: str, kind: str, graph: Graph, close) -> None:
    plain = made(graph, norm=norm, encode_edges=encode_edges, **KINDS[kind])
    recomputed = made(graph, norm=norm, encode_edges=encode_edges, checkpointing=True, **KINDS[kind])
    recomputed.load_state_dict(plain.state_dict())
    calls = [0] * 4
    for i, layer in enumerate(recomputed.layers):
        layer.conv.register_forward_hook(lambda *_, i=i: calls.__setitem__(i, calls[i] + 1))
    expected, found = (gradients(model, *graph[:3]) for model in (plain, recomputed))
    assert calls == [1, 2, 2, 1]
    for name, gradient in expected.items():
        close(found[name], gradient)


def test_dropout_acts_in_training_alone(graph: Graph, close) -> None:
    model = made(graph, dropout=0.5)
    assert not torch.equal(model(*graph[:3]), model(*graph[:3]))
    model.eval()
    close(model(*graph[:3]), model(*graph[:3]))


@pytest.mark.parametrize("aggregation", ["softmax", "mean", fishnets])
def test_training_compiles_without_a_break(aggregation: Any, graph: Graph) -> None:
    torch._dynamo.reset()
    model = made(graph, aggregation=aggregation, dropout=0.5).train()
    out = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")(*graph[:3])
    out.square().sum().backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in model.parameters() if weight.grad is not None)
    torch._dynamo.reset()


def test_shapes_are_known_without_data(graph: Graph) -> None:
    out = made(graph, aggregation="mean").to("meta")(*(given.to("meta") for given in graph[:3]))
    assert out.shape == (9, 2)


@pytest.mark.parametrize("pool", ["mean", "sum", "max", "softmax", fishnets])
def test_pooling_predicts_for_each_graph_as_if_it_were_alone(pool: Any, graph: Graph, close) -> None:
    model = made(graph, aggregation=fishnets, pool=pool)
    both = model(*graph[:4])
    assert both.shape == (2, 2)
    gradients(model, *graph[:4])
    for i in range(2):
        nodes, edges = graph.batch == i, graph.batch[graph.edge_index[1]] == i
        alone = graph.edge_index[:, edges] - int(nodes.nonzero()[0])
        close(model(graph.x[nodes], alone, graph.edge_attr[edges]), both[i : i + 1])


def test_mean_pooling_is_the_mean_of_the_nodes_outputs(graph: Graph, close) -> None:
    nodes, graphs = made(graph), made(graph, pool="mean")
    graphs.load_state_dict(nodes.state_dict())
    out = nodes(*graph[:3])
    close(graphs(*graph[:4]), torch.stack([out[:5].mean(0), out[5:].mean(0)]))


def test_species_change_the_output(graph: Graph) -> None:
    model = made(graph, one_hot=5)
    one = model(*graph[:3], species=graph.species)
    other = model(*graph[:3], species=(graph.species + 1) % 5)
    assert bool((one != other).any(1).all())
    assert "species_encoder.weight" in gradients(model, *graph)


def test_parameters_are_drawn_anew(graph: Graph) -> None:
    settings: dict[str, Any] = {"one_hot": 5, "encode_edges": "each layer", "pool": fishnets, "bias": True}
    model, other = made(graph, **settings), made(graph, **settings)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(7.0)
    model.reset_parameters()
    first = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    model.reset_parameters()
    constant = {name for name, weight in model.named_parameters() if torch.equal(weight, first[name])}
    assert all("norm" in name or "aggr_module.t" in name or "mlp.1" in name or "pool" in name for name in constant)
    for name in constant:
        torch.testing.assert_close(first[name], other.get_parameter(name).detach(), rtol=1e-6, atol=1e-6)


def test_resetting_starts_running_statistics_anew(graph: Graph) -> None:
    model = made(graph, norm="batch")
    fresh = {name: value.clone() for name, value in model.named_buffers()}
    model(*graph[:3])
    assert any(not torch.equal(value, fresh[name]) for name, value in model.named_buffers())
    model.reset_parameters()
    assert all(torch.equal(value, fresh[name]) for name, value in model.named_buffers())


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["softmax", "fishnets"])
def test_outputs_have_the_precision_of_the_inputs(precision: torch.dtype, kind: str, graph: Graph) -> None:
    model = made(graph, one_hot=5, pool="mean", **KINDS[kind]).to(precision)
    out = model(graph.x.to(precision), graph.edge_index, graph.edge_attr.to(precision), graph.batch, graph.species)
    assert out.dtype == precision


def test_copies_give_the_same_outputs(graph: Graph, close) -> None:
    model = made(graph, aggregation=fishnets, share_aggregation=True, encode_edges="each layer", pool="mean")
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        close(twin(*graph[:4]), model(*graph[:4]))


@pytest.mark.parametrize("mlp_layers", [1, 2, 3])
def test_convolutions_have_the_asked_for_number_of_linear_layers(mlp_layers: int, graph: Graph) -> None:
    widths = {1: 8 * 8, 2: 2 * 8 * 16, 3: 2 * 8 * 16 + 16 * 16}[mlp_layers]
    norms = 2 * 16 * (mlp_layers - 1)
    fewer, more = (made(graph, mlp_layers=mlp_layers, num_layers=n) for n in (1, 2))
    assert count(more) - count(fewer) == widths + norms + 2 * 8 + 1
    assert fewer(*graph[:3]).shape == (9, 2)


def test_it_trains_on_random_parts_of_a_graph(graph: Graph, generator: torch.Generator) -> None:
    x, edge_index, edge_attr, _, species = (tensor.cpu() for tensor in graph)
    data = Data(x=x, edge_index=edge_index, edge_attr=edge_attr, species=species)
    model = made(graph, one_hot=5, aggregation=fishnets).cpu()
    draws = torch.Generator().manual_seed(0)
    parts = list(RandomNodeLoader(data, num_parts=3, shuffle=True, generator=draws))
    assert sum(part.num_nodes for part in parts) == 9
    for part in parts:
        out = model(part.x, part.edge_index, part.edge_attr, species=part.species)
        assert out.shape == (part.num_nodes, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_without_edges_is_predicted(kind: str, graph: Graph) -> None:
    model = made(graph, **KINDS[kind])
    out = model(graph.x, graph.edge_index[:, :0], graph.edge_attr[:0])
    assert out.shape == (9, 2)
    assert bool(out.isfinite().all())


@pytest.mark.parametrize("kind", ["softmax", "mean", "fishnets"])
def test_sorted_edges_give_the_same_outputs(kind: str, graph: Graph, close) -> None:
    model = made(graph, **KINDS[kind])
    edges, order = EdgeIndex(graph.edge_index, sparse_size=(9, 9)).sort_by("col")
    close(model(graph.x, edges, graph.edge_attr[order]), model(*graph[:3]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm": "instance"}, r"`norm` is 'instance' but \"layer\" or \"batch\" was expected"),
        ({"hidden": 0}, "`hidden` is 0 but a positive whole number was expected"),
        ({"num_layers": 2.0}, "`num_layers` is 2.0 but a positive whole number"),
        ({"mlp_layers": True}, "`mlp_layers` is True but a positive whole number"),
        ({"num_outputs": -1}, "`num_outputs` is -1 but a positive whole number"),
        ({"edge_dim": 0}, "`edge_dim` is 0 but a positive whole number"),
        ({"one_hot": 0}, "`one_hot` is 0 but a positive whole number"),
        ({"dropout": 1.0}, r"`dropout` is 1.0 but a share in \[0, 1\) was expected"),
        ({"encode_edges": "twice"}, "`encode_edges` is 'twice' and `edge_dim` 3, but \"once\" or"),
        ({"encode_edges": "each layer", "edge_dim": None}, "`encode_edges` is 'each layer' and `edge_dim` None, but"),
        ({"aggregation": "median_of_means"}, "`aggregation` is 'median_of_means', which PyTorch Geometric cannot make"),
        ({"aggregation": "attentional"}, "cannot make by name alone: .*Give a callable where an aggregation needs"),
        ({"aggregation": 3}, "`aggregation` is 3 but a name, or a callable that makes an aggregation for a width"),
        ({"aggregation": ["mean", "max"]}, r"`aggregation` is \['mean', 'max'\] but a name, or a callable"),
        ({"aggregation": SumAggregation()}, r"`aggregation` is SumAggregation\(\) but a name, or a callable"),
        ({"aggregation": lambda width: nn.Linear(width, 8)}, "a callable that makes an aggregation for a width"),
        ({"aggregation": "softmax_sg", "learn_temperature": True}, 'no gradient to its temperature.*take "softmax"'),
        ({"aggregation": "mean", "temperature": 0.1}, "A temperature was given but `aggregation` is 'mean'"),
        ({"aggregation": "mean", "learn_temperature": True}, "A temperature was given but `aggregation` is 'mean'"),
        ({"pool": "nothing"}, "`pool` is 'nothing', which PyTorch Geometric cannot make"),
        ({"pool": SumAggregation()}, r"`pool` is SumAggregation\(\) but a name, or a callable"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str, graph: Graph) -> None:
    with pytest.raises(ConfigError, match=message):
        made(graph, **settings)


def test_one_instance_for_all_layers_must_be_asked_for(graph: Graph) -> None:
    one = FishnetsAggregation(8)
    with pytest.raises(ConfigError, match=r"returned one instance twice.*share_aggregation=True"):
        made(graph, aggregation=lambda width: one)
    assert set(aggregations(made(graph, aggregation=lambda width: one, share_aggregation=True))) == {one}


def test_a_factory_raises_its_own_errors(graph: Graph) -> None:
    with pytest.raises(ConfigError, match="`num_params` is 0"):
        made(graph, aggregation=partial(FishnetsAggregation, num_params=0))


def test_wrong_inputs_are_named(graph: Graph) -> None:
    x, _, edge_attr, batch, species = graph
    plain, full = made(graph, None), made(graph, one_hot=5, pool="mean")
    wrong: list[tuple[DeeperGCN, dict[str, Any], type[Exception], str]] = [
        (full, {"edge_attr": None}, ConfigError, "made with edge_dim=3 but `edge_attr` was not given"),
        (plain, {"species": None}, ConfigError, "made with edge_dim=None but `edge_attr` was given"),
        (full, {"species": None}, ConfigError, "made with one_hot=5 but `species` was not given"),
        (plain, {"edge_attr": None}, ConfigError, "made with one_hot=None but `species` was given"),
        (full, {"x": x[:, :3]}, ShapeError, r"`x` has shape \(9, 3\) but \(..., 4\) was expected"),
        (full, {"edge_attr": edge_attr[:, :2]}, ShapeError, r"`edge_attr` has shape \(30, 2\) but \(30, 3\) was"),
        (full, {"edge_attr": edge_attr[:1]}, ShapeError, r"`edge_attr` has shape \(1, 3\) but \(30, 3\) was"),
        (full, {"batch": batch[:1]}, ShapeError, r"`batch` has shape \(1,\) but \(9,\) was expected"),
        (full, {"species": species[:, None]}, ShapeError, r"`species` has shape \(9, 1\) but \(9,\) was expected"),
        (full, {"species": species + 3702}, DataError, r"others than the numbers 0 to 4.*torch\.unique\(species"),
        (full, {"species": species - 5}, DataError, "others than the numbers 0 to 4"),
        (full, {"species": species + 0.5}, DataError, "others than the numbers 0 to 4"),
        (full, {"x": x.half()}, DataError, r"`x` is torch\.float16 but the network is .*: give `x\.to\("),
        (full, {"edge_attr": edge_attr.half()}, DataError, r"`edge_attr` is torch\.float16 but the network is"),
    ]
    for model, changes, error, message in wrong:
        with pytest.raises(error, match=message):
            model(**{**graph._asdict(), **changes})


def test_categories_are_looked_up_and_added(graph: Graph) -> None:
    kinds, bonds = (graph.x[:, :2] > 0).long(), (graph.edge_attr[:, :1] > 0.5).long() * 2
    model = DeeperGCN((2, 3), (3,), 2, hidden=8, num_layers=1, dropout=0.0).eval()
    table = model.node_encoder.table.weight
    torch.testing.assert_close(model.node_encoder(kinds), table[kinds[:, 0]] + table[2 + kinds[:, 1]])
    assert model(kinds, graph.edge_index, bonds).shape == (len(kinds), 2)
    by_layer = DeeperGCN((2, 3), (3,), 2, hidden=8, num_layers=2, encode_edges="each layer").eval()
    assert by_layer.edge_encoder is None  # every layer has a table of its own
    assert sum(name.endswith("encoder.table.weight") for name, _ in by_layer.named_parameters()) == 3
    assert by_layer(kinds, graph.edge_index, bonds).shape == (len(kinds), 2)
    with pytest.raises(DataError, match=r"Category 1 runs from 0 to 3 but 0 to 2 was expected"):
        model(torch.tensor([[0, 3], [1, 0]]), graph.edge_index[:, :0], bonds[:0])
    with pytest.raises(DataError, match=r"Categories are torch\.float32 but whole numbers were expected"):
        model(kinds.float(), graph.edge_index, bonds)


def test_the_last_activation_may_be_left_out(graph: Graph) -> None:
    torch.manual_seed(0)
    with_it, without = (
        DeeperGCN(graph.x.shape[1], None, 2, num_layers=1, last_activation=last).to(graph.x).eval()
        for last in (True, False)
    )
    without.load_state_dict(with_it.state_dict())
    assert not torch.equal(with_it(graph.x, graph.edge_index), without(graph.x, graph.edge_index))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((), "`node_dim` has no categories"), ((3, 0), r"node_dim\[1\]"), (0, "node_dim")],
)
def test_wrong_categories_are_named(sizes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DeeperGCN(sizes, None, 2)


def test_species_join_numbers_alone() -> None:
    with pytest.raises(ConfigError, match="`one_hot` joins features that are numbers"):
        DeeperGCN((2, 3), None, 2, one_hot=4)


def test_messages_are_shown_to_hooks_and_explainers(graph: Graph) -> None:
    model = made(graph, aggregation="sum").eval()
    inputs, seen = (graph.x, graph.edge_index, graph.edge_attr), []
    expected = model(*inputs)
    conv = model.layers[1].conv
    hook = conv.register_message_forward_hook(lambda *given: seen.append(given[2].shape))
    torch.testing.assert_close(model(*inputs), expected)
    assert seen == [(30, 8)]
    hook.remove()
    mask = nn.Parameter(torch.ones(30, device=graph.x.device, dtype=graph.x.dtype))
    set_masks(model, mask, graph.edge_index, apply_sigmoid=False)
    torch.testing.assert_close(model(*inputs), expected)
    with torch.no_grad():
        mask[:5] = 0
    assert not torch.allclose(model(*inputs), expected)
    clear_masks(model)
    torch.testing.assert_close(model(*inputs), expected)


def test_sorted_edges_of_pyg_give_the_same(graph: Graph) -> None:
    model = made(graph).eval()
    edges, order = EdgeIndex(graph.edge_index, sparse_size=(9, 9)).sort_by("col")
    expected = model(graph.x, graph.edge_index, graph.edge_attr)
    torch.testing.assert_close(model(graph.x, edges, graph.edge_attr[order]), expected)


def test_edges_and_devices_of_other_kinds_are_taken(graph: Graph) -> None:
    model = made(graph, aggregation="sum").train()
    expected = model(graph.x, graph.edge_index, graph.edge_attr)
    torch.testing.assert_close(model(graph.x, graph.edge_index.int(), graph.edge_attr), expected)
    with torch.device("meta"):  # where others make their tensors
        torch.testing.assert_close(model(graph.x, graph.edge_index, graph.edge_attr), expected)


def test_a_layer_alone_convolves_between_two_sets_of_nodes(graph: Graph) -> None:
    conv = made(graph).layers[0].conv
    edges, sources = torch.tensor([[0, 4, 8, 2], [0, 1, 2, 2]], device=graph.x.device), torch.rand_like(graph.x[:, :2])
    x = torch.cat([sources] * 4, dim=1)  # of the layers' width
    out = conv((x, x[:3]), edges, torch.cat([x[:4]]))
    whole = conv(x, edges, torch.cat([x[:4]]))
    torch.testing.assert_close(out, whole[:3])
