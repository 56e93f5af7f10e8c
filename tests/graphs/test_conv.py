"""FishnetsConv: one answer from nodes or edges, lists or matrices; a masked edge is a removed one, exactly."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch_geometric.nn as pyg
from tests.graphs.layers import (
    compare_compiled,
    compiling,
    edges,
    every_form,
    finite_gradients,
    perturbed,
    seeded,  # noqa: F401 a fixture
)
from tests.laws import equal
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks

from fishnets.errors import ConfigError, DataError, ShapeError
from fishnets.graphs import FishnetsConv

NODES, EDGES, WIDTH = 7, 20, 8
pytestmark = [  # each is given once in a process, by whichever test comes first
    pytest.mark.filterwarnings("ignore:Sparse CS[CR] tensor support is in beta:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning"),
]


@pytest.fixture
def make(dtype: torch.dtype):
    """Makes a convolution in the dtype under test, its parameters away from their start."""

    def make(in_channels=WIDTH, out_channels: int = 5, **options) -> FishnetsConv:
        return perturbed(FishnetsConv(in_channels, out_channels, num_params=3, **options).to(dtype))

    return make


@pytest.fixture
def x(dtype: torch.dtype) -> Tensor:
    return torch.randn(NODES, WIDTH, dtype=dtype)


@pytest.fixture
def edge_index() -> Tensor:
    """Twenty edges, none twice; node 6 has no incoming one."""
    chosen = torch.randperm(NODES * (NODES - 1))[:EDGES]
    return torch.stack([chosen // (NODES - 1), chosen % (NODES - 1)])


@pytest.fixture
def weight(dtype: torch.dtype) -> Tensor:
    return 0.1 + torch.rand(EDGES, dtype=dtype)


def adjacency(edge_index: Tensor, weight: Tensor, size: tuple[int, int] = (NODES, NODES)) -> Tensor:
    return torch.sparse_coo_tensor(edge_index.flip(0), weight, size).coalesce()


def ordered(edge_index: Tensor, by: str = "col", size: tuple[int, int] = (NODES, NODES)) -> tuple[EdgeIndex, Tensor]:
    return EdgeIndex(edge_index, sparse_size=size).sort_by(by)


# One answer


@every_form
@pytest.mark.parametrize("weighted", [False, True])
def test_nodes_give_what_edges_give(form, weighted, make, x, edge_index, weight, close) -> None:
    conv, (sources, targets) = make(form=form), edge_index
    weight = weight if weighted else None
    by_edges = conv.information(x[sources], targets, dim_size=NODES, weight=weight)
    out = conv(x, edge_index, edge_weight=weight)
    close(out, by_edges + conv.lin_root(x))
    equal(out[6], conv.lin_root(x)[6])


@every_form
@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.filterwarnings("ignore:Converting sparse tensor to CSR format:UserWarning")
def test_the_values_of_a_sparse_adjacency_are_weights(form, layout, make, x, edge_index, weight, close) -> None:
    conv, matrix = make(form=form), adjacency(edge_index, weight)
    given = {"csr": matrix.to_sparse_csr(), "csc": matrix.to_sparse_csc(), "coo": matrix}[layout]
    close(conv(x, given), conv(x, edge_index, edge_weight=weight))


@every_form
def test_edge_indices_in_any_order_with_weights(form, make, x, edge_index, weight, close) -> None:
    conv = make(form=form)
    expected = conv(x, edge_index, edge_weight=weight)
    for by in ("col", "row"):
        given, order = ordered(edge_index, by)
        close(conv(x, given, edge_weight=weight[order]), expected)
    close(conv(x, EdgeIndex(edge_index, sparse_size=(NODES, NODES)), edge_weight=weight), expected)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_sorted_edge_indices_without_weights(precision: torch.dtype, edge_index) -> None:
    conv, x = FishnetsConv(WIDTH, 5, num_params=3).to(precision), torch.randn(NODES, WIDTH, dtype=precision)
    for by in ("col", "row"):
        torch.testing.assert_close(conv(x, ordered(edge_index, by)[0]), conv(x, edge_index), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["EdgeIndex", "adjacency"])
@pytest.mark.parametrize("other", [torch.float32, torch.float64, torch.int64])
def test_weights_of_another_precision(kind: str, other: torch.dtype, make, x, edge_index, close) -> None:
    conv, weight = make(), torch.randint(4, (EDGES,)).to(other)
    expected = conv(x, edge_index, edge_weight=weight.to(x))
    close(conv(x, edge_index, edge_weight=weight), expected)
    if kind == "EdgeIndex":
        given, order = ordered(edge_index)
        close(conv(x, given, edge_weight=weight[order]), expected)
    else:
        close(conv(x, adjacency(edge_index, weight).to_sparse_csr()), expected)


@pytest.mark.filterwarnings("ignore:Converting sparse tensor to CSR format:UserWarning")  # by torch_geometric
def test_repeated_entries_of_an_adjacency_add(make, x, close) -> None:
    pairs, weight = torch.tensor([[1, 1, 2], [0, 0, 1]]), torch.tensor([1.0, 2.0, 3.0]).to(x)
    conv, matrix = make(), torch.sparse_coo_tensor(pairs.flip(0), weight, (NODES, NODES))
    close(conv(x, matrix), conv(x, pairs, edge_weight=weight))


@pytest.mark.parametrize("undirected", [False, True])
def test_gradients_through_the_sparse_product(undirected: bool) -> None:
    """Weights without a gradient keep the fused path, whose backward is PyTorch Geometric's."""
    pairs = torch.tensor([[0, 1, 1, 2, 2, 3, 0, 3], [1, 0, 2, 1, 3, 2, 3, 0]])
    conv, weight = FishnetsConv(WIDTH, 5, num_params=3), 0.1 + torch.rand(8)
    given, order = EdgeIndex(pairs, sparse_size=(4, 4), is_undirected=undirected).sort_by("col")
    for fused, plain in ((None, None), (weight[order], weight)):
        x = torch.randn(4, WIDTH, requires_grad=True)
        grads = [
            torch.autograd.grad(conv(x, where, edge_weight=weights).square().sum(), x)[0]
            for where, weights in ((given, fused), (pairs, plain))
        ]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["list", "EdgeIndex", "adjacency"])
def test_gradients_of_first_and_second_order(kind: str) -> None:
    pairs = torch.tensor([[0, 1, 1, 2, 3], [1, 0, 3, 1, 0]])
    conv = perturbed(FishnetsConv(3, 2, num_params=2).double())
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    weight = (0.5 + torch.rand(5, dtype=torch.float64)).requires_grad_()
    given, order = EdgeIndex(pairs, sparse_size=(4, 4)).sort_by("col")
    matrix = adjacency(pairs, weight.detach(), (4, 4)).to_sparse_csr()
    calls = {
        "list": (lambda x, weight: conv(x, pairs, edge_weight=weight), (x, weight)),
        "EdgeIndex": (lambda x, weight: conv(x, given, edge_weight=weight[order]), (x, weight)),
        "adjacency": (lambda x: conv(x, matrix), (x,)),
    }
    assert torch.autograd.gradcheck(*calls[kind])
    assert torch.autograd.gradgradcheck(*calls[kind])


def test_gradients_of_weights_are_the_same_by_either_path(make, x, edge_index, weight, close) -> None:
    conv, (given, order) = make(), ordered(edge_index)
    weight.requires_grad_()
    by_list, = torch.autograd.grad(conv(x, edge_index, edge_weight=weight).square().sum(), weight)
    by_product, = torch.autograd.grad(conv(x, given, edge_weight=weight[order]).square().sum(), weight)
    close(by_product, by_list)
    assert (by_list[edge_index[1] < 6] != 0).all()


@every_form
def test_weight_zero_removes_and_weight_two_doubles(form, make, x, edge_index, close) -> None:
    conv, weight = make(form=form), torch.ones(EDGES, dtype=x.dtype)
    weight[3], weight[8] = 0, 2
    kept = [k for k in range(EDGES) if k != 3] + [8]
    close(conv(x, edge_index, edge_weight=weight), conv(x, edge_index[:, kept]))


def test_sources_and_targets_of_their_own(make, x, edge_index, weight, close) -> None:
    conv, few = make((WIDTH, 6)), torch.randn(6, 6, dtype=x.dtype)
    aggregated = conv.information(x[edge_index[0]], edge_index[1], dim_size=6)
    expected = aggregated + conv.lin_root(few)
    close(conv((x, few), edge_index), expected)
    size = (NODES, 6)
    ones = torch.ones_like(weight)
    given, _ = ordered(edge_index, size=size)
    close(conv((x, few), given, edge_weight=ones), expected)
    matrix = adjacency(edge_index, ones, size[::-1]).to_sparse_csr()
    close(conv((x, few), matrix), expected)
    close(conv((x, None), edge_index, size=size), aggregated)
    many = torch.randn(11, 6, dtype=x.dtype)  # five targets more, all without neighbours
    equal(conv((x, many), edge_index)[6:], conv.lin_root(many)[6:])


@every_form
def test_no_edges(form, make, x, edge_index) -> None:
    conv, none = make(form=form), edge_index[:, :0]
    expected = conv.lin_root(x)
    equal(conv(x, none), expected)
    equal(conv(x, none, edge_weight=x.new_zeros(0)), expected)
    equal(conv(x, adjacency(none, x.new_zeros(0)).to_sparse_csr()), expected)
    conv(x, none).sum().backward()
    finite_gradients(conv)


def test_a_batch_of_features_on_one_graph(make, x, edge_index, close) -> None:
    conv, many = make(), torch.stack([x, -x])
    close(conv(many, edge_index), torch.stack([conv(one, edge_index) for one in many]))


@every_form
def test_edge_features_enter_the_message(form, make, x, edge_index, weight, close) -> None:
    conv, (sources, targets) = make(edge_dim=2, form=form), edge_index
    edge_attr = torch.randn(EDGES, 2, dtype=x.dtype)
    messages = (x[sources] + conv.lin_edge(edge_attr)).relu()
    expected = conv.information(messages, targets, dim_size=NODES, weight=weight) + conv.lin_root(x)
    close(conv(x, edge_index, edge_attr, weight), expected)
    given, order = ordered(edge_index)
    close(conv(x, given, edge_attr[order], weight[order]), expected)
    conv(x, edge_index, edge_attr).sum().backward()
    finite_gradients(conv)


def test_edge_features_beside_a_sparse_adjacency_are_in_its_order(make, x, edge_index, weight, close) -> None:
    conv, edge_attr = make(edge_dim=2), torch.randn(EDGES, 2, dtype=x.dtype)
    by_target, by_source = (torch.argsort(edge_index[i] * NODES + edge_index[1 - i]) for i in (1, 0))
    expected, matrix = conv(x, edge_index, edge_attr, weight), adjacency(edge_index, weight)
    close(conv(x, matrix.to_sparse_csr(), edge_attr[by_target]), expected)
    close(conv(x, matrix.to_sparse_csc(), edge_attr[by_source]), expected)


# Explanations


@every_form
@pytest.mark.parametrize("edge_dim", [None, 2])
def test_a_masked_edge_is_a_removed_edge_exactly(form, edge_dim, make, x, edge_index) -> None:
    conv = make(edge_dim=edge_dim, form=form)
    edge_attr = None if edge_dim is None else torch.randn(EDGES, 2, dtype=x.dtype)
    masked = torch.ones(EDGES, dtype=x.dtype)
    masked[[2, 5, 11]] = 0
    masked[edge_index[1] == edge_index[1, 2]] = 0  # all of one node's
    kept = masked > 0
    set_masks(conv, masked, edge_index, apply_sigmoid=False)
    out = conv(x, edge_index, edge_attr)
    clear_masks(conv)
    equal(out, conv(x, edge_index[:, kept], None if edge_attr is None else edge_attr[kept]))
    equal(out[edge_index[1, 2]], conv.lin_root(x)[edge_index[1, 2]])
    assert not torch.equal(out, conv(x, edge_index, edge_attr))


def test_a_soft_mask_is_a_weight(make, x, edge_index, weight, close) -> None:
    conv, (given, order) = make(), ordered(edge_index)
    expected = conv(x, edge_index, edge_weight=weight)
    set_masks(conv, weight, edge_index, apply_sigmoid=False)
    close(conv(x, edge_index), expected)
    clear_masks(conv)
    set_masks(conv, weight[order], given, apply_sigmoid=False)
    close(conv(x, given), expected)  # the fused path makes way for the mask
    clear_masks(conv)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = FishnetsConv(WIDTH, 8, num_params=2), FishnetsConv(8, 3, num_params=2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def test_an_explainer_finds_no_use_in_edges_that_do_not_reach_the_node() -> None:
    chain = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]])
    explainer = Explainer(
        Two(),
        GNNExplainer(epochs=20),
        explanation_type="model",
        node_mask_type="attributes",
        edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )
    explained = explainer(torch.randn(NODES, WIDTH), chain, index=4)
    assert explained.edge_mask.isfinite().all()
    assert (explained.edge_mask[[2, 3]] > 0).all()  # 2 -> 3 -> 4
    assert (explained.edge_mask[[0, 1, 4, 5]] == 0).all()
    assert all(module.explain is None for module in explainer.model.modules() if isinstance(module, FishnetsConv))


# Precision, compilation, parameters


@every_form
@pytest.mark.parametrize("edge_dim", [None, 2])
def test_half_precision_in_half_precision_out(form, edge_dim, edge_index) -> None:
    conv, x = FishnetsConv(WIDTH, 5, num_params=3, edge_dim=edge_dim, form=form), torch.randn(NODES, WIDTH)
    edge_attr = None if edge_dim is None else torch.randn(EDGES, 2)
    expected = conv(x, edge_index, edge_attr)
    out = conv.bfloat16()(x.bfloat16(), edge_index, None if edge_attr is None else edge_attr.bfloat16())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, rtol=0.1, atol=0.1)


@every_form
@pytest.mark.parametrize("edge_dim", [None, 2])
def test_autocast_gives_its_own_dtype(form, edge_dim, edge_index) -> None:
    conv, x = FishnetsConv(WIDTH, 5, num_params=3, edge_dim=edge_dim, form=form), torch.randn(NODES, WIDTH)
    edge_attr = None if edge_dim is None else torch.randn(EDGES, 2)
    expected = conv(x, edge_index, edge_attr)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = conv(x, edge_index, edge_attr)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, rtol=0.1, atol=0.1)
    out.float().square().sum().backward()
    finite_gradients(conv)


@pytest.mark.parametrize("kind", ["EdgeIndex", "adjacency"])
def test_autocast_leaves_the_sparse_product_in_float32(kind: str, edge_index) -> None:
    conv, x, weight = FishnetsConv(WIDTH, 5, num_params=3), torch.randn(NODES, WIDTH), torch.rand(EDGES)
    given, order = ordered(edge_index)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = conv(x, edge_index, edge_weight=weight)
        if kind == "EdgeIndex":
            out = conv(x, given, edge_weight=weight[order])
        else:
            out = conv(x, adjacency(edge_index, weight).to_sparse_csr())
    torch.testing.assert_close(out, expected, rtol=0.02, atol=0.02)


@compiling
def test_it_is_traced_as_one_graph() -> None:
    first = {"x": torch.randn(5, WIDTH), "edge_index": edges(5, 5)}
    second = {"x": torch.randn(9, WIDTH), "edge_index": edges(9, 9, 31), "edge_weight": torch.rand(31)}
    compare_compiled(FishnetsConv(WIDTH, 5, num_params=2), "aot_eager", first, second)
    assert torch._dynamo.explain(FishnetsConv(WIDTH, 5, num_params=2))(**first).graph_break_count == 0
    torch._dynamo.reset()


@compiling
@pytest.mark.slow
@every_form
def test_it_compiles(form) -> None:
    calls = [{"x": torch.randn(n, WIDTH), "edge_index": edges(n, n, m)} for n, m in ((5, 20), (9, 31))]
    compare_compiled(FishnetsConv(WIDTH, 5, num_params=2, form=form), "inductor", *calls)
    calls = [{**call, "edge_attr": torch.randn(call["edge_index"].shape[1], 2)} for call in calls]
    compare_compiled(FishnetsConv(WIDTH, 5, num_params=2, form=form, edge_dim=2), "inductor", *calls)


def test_on_the_meta_device_it_gives_shapes(edge_index) -> None:
    ghost = FishnetsConv((WIDTH, 6), 5, num_params=3).to("meta")
    x = torch.empty(NODES, WIDTH, device="meta"), torch.empty(9, 6, device="meta")
    out = ghost(x, edge_index.to("meta"))
    assert out.is_meta
    assert out.shape == (9, 5)


@every_form
def test_reset_forgets_what_was_learned(form) -> None:
    fresh, used = (FishnetsConv((WIDTH, 6), 5, 3, edge_dim=2, form=form) for _ in range(2))
    perturbed(used)
    for conv in (fresh, used):
        torch.manual_seed(7)
        conv.reset_parameters()
    for name, value in fresh.state_dict().items():
        equal(used.state_dict()[name], value)


def test_copies_pickles_and_states_give_the_same_features(make, x, edge_index) -> None:
    conv, other = make(), make()
    expected = conv(x, edge_index)
    assert not torch.equal(other(x, edge_index), expected)
    other.load_state_dict(conv.state_dict())
    for same in (other, copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))):
        equal(same(x, edge_index), expected)


@pytest.mark.parametrize("edge_dim", [None, 2])
def test_every_parameter_learns(edge_dim, make, x, edge_index) -> None:
    conv = make(edge_dim=edge_dim)
    conv(x, edge_index, None if edge_dim is None else torch.randn(EDGES, 2, dtype=x.dtype)).square().sum().backward()
    finite_gradients(conv)
    assert all((parameter.grad != 0).any() for parameter in conv.parameters())


def test_it_works_in_heterogeneous_models() -> None:
    relations = [("a", "to", "b"), ("b", "to", "a")]
    x = {"a": torch.randn(7, WIDTH), "b": torch.randn(5, 6)}
    layer = pyg.HeteroConv(
        {relations[0]: FishnetsConv((WIDTH, 6), 4, 2), relations[1]: FishnetsConv((6, WIDTH), 4, 2, form="paper")}
    )
    out = layer(x, {relations[0]: edges(7, 5), relations[1]: edges(5, 7)})
    assert {name: features.shape for name, features in out.items()} == {"a": (7, 4), "b": (5, 4)}
    sum(features.sum() for features in out.values()).backward()
    finite_gradients(layer)


def test_to_hetero() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = FishnetsConv((WIDTH, WIDTH), 8, 2), FishnetsConv((8, 8), 3, 2)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.second(self.first(x, edge_index).relu(), edge_index)

    relations = [("a", "to", "b"), ("b", "to", "a")]
    model = pyg.to_hetero(Pair(), (["a", "b"], relations))
    x = {"a": torch.randn(7, WIDTH), "b": torch.randn(5, WIDTH)}
    out = model(x, {relations[0]: edges(7, 5), relations[1]: edges(5, 7)})
    assert {name: features.shape for name, features in out.items()} == {"a": (7, 3), "b": (5, 3)}
    sum(features.sum() for features in out.values()).backward()
    finite_gradients(model)


def test_printing() -> None:
    assert repr(FishnetsConv(8, 16, num_params=4)) == "FishnetsConv(8, 16, num_params=4)"
    assert repr(FishnetsConv((8, 6), 16)) == "FishnetsConv((8, 6), 16, num_params=8)"


# Refusals


@pytest.mark.parametrize(
    ("edge_dim", "given", "text"),
    [
        (2, None, r"^FishnetsConv\(8, 5, num_params=3\) was made with edge_dim=2 but no edge features were given\.$"),
        (None, 2, r"^FishnetsConv\(8, 5, num_params=3\) was made with edge_dim=None but edge features were given\. "),
    ],
)
def test_edge_features_missing_or_superfluous(edge_dim, given, text, make, x, edge_index) -> None:
    edge_attr = None if given is None else torch.randn(EDGES, given, dtype=x.dtype)
    with pytest.raises(ConfigError, match=text):
        make(edge_dim=edge_dim)(x, edge_index, edge_attr)


@pytest.mark.parametrize(
    "shape",
    [
        (EDGES, 3),
        (EDGES - 1, 2),
        (EDGES + 1, 2),
        (1, 2),
        (EDGES,),
        (EDGES, 1, 2),
        (),
    ],
    ids=str,
)
def test_edge_features_of_another_shape(shape, make, x, edge_index, weight) -> None:
    """One row for each edge, whether edges are listed, sorted or in a matrix."""
    edge_attr = torch.randn(shape, dtype=x.dtype)
    for given in (edge_index, ordered(edge_index)[0], adjacency(edge_index, weight).to_sparse_csr()):
        with pytest.raises(ShapeError, match=r"^`edge_attr` has shape \(.*\) but \(20, 2\) was expected\.$"):
            make(edge_dim=2)(x, given, edge_attr)


def test_negative_weights_are_refused_by_their_place(make, x, edge_index, weight) -> None:
    text = r"^`edge_weight` is negative or not finite at 4, 9; a weight says how much a message counts, and 0 removes"
    weight[[4, 9]] *= -1
    _refused(make(), x, edge_index, weight, text)
    weight[[4, 9]] = torch.nan
    _refused(make(), x, edge_index, weight, text)


def _refused(conv: FishnetsConv, x: Tensor, edge_index: Tensor, weight: Tensor, text: str) -> None:
    for given in (edge_index, EdgeIndex(edge_index, sparse_size=(NODES, NODES))):
        with pytest.raises(DataError, match=text):
            conv(x, given, edge_weight=weight)


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize("wrong", [-1.0, torch.nan])
def test_negative_values_of_an_adjacency_are_refused(layout, wrong, make, x, edge_index, weight) -> None:
    """Places are those among the matrix's values, whatever its layout."""
    weight[3] = wrong
    matrix = adjacency(edge_index, weight)
    given = {"csr": matrix.to_sparse_csr(), "csc": matrix.to_sparse_csc(), "coo": matrix}[layout]
    place = int((~(given.values() >= 0)).nonzero())
    text = rf"^The list of the adjacency's values is negative or not finite at {place}; a weight says"
    with pytest.raises(DataError, match=text):
        make()(x, given)


def test_weights_beside_a_sparse_adjacency_are_refused(make, x, edge_index, weight) -> None:
    with pytest.raises(ConfigError, match=r"^A sparse adjacency carries its own weights; leave `edge_weight` out\.$"):
        make()(x, adjacency(edge_index, weight).to_sparse_csr(), edge_weight=weight)


@pytest.mark.parametrize("shape", [(EDGES, 1), (1,), (3,), ()], ids=str)
@pytest.mark.parametrize("edge_dim", [None, 2])
def test_weights_of_another_shape_are_refused(shape, edge_dim, make, x, edge_index) -> None:
    edge_attr = None if edge_dim is None else torch.randn(EDGES, 2, dtype=x.dtype)
    text = r"^`edge_weight` has shape \(.*\) but one for each message, \(20,\), was expected\.$"
    for given in (edge_index, ordered(edge_index)[0]):
        with pytest.raises(ShapeError, match=text):
            make(edge_dim=edge_dim)(x, given, edge_attr, torch.rand(shape, dtype=x.dtype))


def test_another_width_is_refused(make, x, edge_index) -> None:
    with pytest.raises(ShapeError, match=r"^Messages of shape \(7, 4\) were given to .* expects 8 channels"):
        make()(x[:, :4], edge_index)


def test_another_width_is_refused_beside_edge_features(make, x, edge_index) -> None:
    with pytest.raises(ShapeError, match=r"^Messages of shape \(7, 4\) were given to .* expects 8 channels"):
        make(edge_dim=2)(x[:, :4], edge_index, torch.randn(EDGES, 2, dtype=x.dtype))


def test_edges_to_nodes_that_do_not_exist_are_refused(make, x) -> None:
    conv = make()
    with pytest.raises(IndexError, match=r"^Found indices in 'edge_index' that are larger than 6 \(got 7\)\."):
        conv(x, torch.tensor([[0, 7], [1, 1]]))
    with pytest.raises(ValueError, match=r"^Encountered invalid 'dim_size' \(got '7' but expected >= '8'\)$"):
        conv(x, torch.tensor([[0, 1], [1, 7]]))


def test_sizes_and_forms_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"^`in_channels` is -1 but a positive whole number was expected\.$"):
        FishnetsConv(-1, 5)
    with pytest.raises(ConfigError, match=r"^`form` is 'papr' but "):
        FishnetsConv(8, 5, form="papr")
