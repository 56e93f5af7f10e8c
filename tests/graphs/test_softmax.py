"""The softmax aggregation is PyTorch Geometric's, with the same parameter."""

from __future__ import annotations

import pytest
import torch
from tests.graphs.layers import compare_compiled, seeded  # noqa: F401 a fixture
from torch_geometric.nn import GATv2Conv, SAGEConv, aggr

from fishnets.graphs import DeeperGCN, SoftmaxAggregation


def messages() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(7, (40,), generator=generator)


@pytest.mark.parametrize("learn", [True, False])
def test_it_computes_what_pyg_computes(learn: bool) -> None:
    x, index = messages()
    found = []
    for kind in (SoftmaxAggregation, aggr.SoftmaxAggregation):
        aggregation, rows = kind(0.5, learn=learn).double(), x.clone().requires_grad_()
        out = aggregation(rows, index, dim_size=9)
        out.square().sum().backward()
        found.append((out.detach(), rows.grad, aggregation.t.grad if learn else None))
    assert bool((found[0][0][7:] == 0).all())  # nodes without messages
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-9)  # PyG adds 1e-16 to what it divides by


def test_weights_of_pyg_fit() -> None:
    ours = SoftmaxAggregation()
    ours.load_state_dict(aggr.SoftmaxAggregation(0.3, learn=True).state_dict())
    assert ours.t.item() == pytest.approx(0.3)
    ours.reset_parameters()
    assert ours.t.item() == 1.0
    assert not SoftmaxAggregation(learn=False).state_dict()
    assert repr(SoftmaxAggregation(0.5, learn=False)) == "SoftmaxAggregation(temperature=0.5, learn=False)"


def test_bounds_dimensions_and_convolutions_are_taken(seeded: None) -> None:  # noqa: F811
    x, index = messages()
    aggregation = SoftmaxAggregation().double()
    ordered, order = index.sort(stable=True)
    ptr = torch.searchsorted(ordered, torch.arange(8))
    torch.testing.assert_close(aggregation(x[order], ptr=ptr), aggregation(x, index))
    wide = torch.stack([x, 2 * x])  # (2, E, 6)
    torch.testing.assert_close(aggregation(wide, index)[1], aggregation(2 * x, index))
    torch.testing.assert_close(aggregation(wide.mT, index, dim=-1), aggregation(wide, index).mT)
    flat = x[:, 0].clone()
    torch.testing.assert_close(aggregation(flat, index, dim=0), aggregation(x[:, :1], index)[:, 0])
    assert aggregation(flat[:0], index[:0], dim=0, dim_size=2).tolist() == [0.0, 0.0]
    edge_index = torch.tensor([[0, 1, 2], [1, 0, 0]])
    nodes = torch.randn(3, 4)
    assert SAGEConv(4, 5, aggr=SoftmaxAggregation())(nodes, edge_index).shape == (3, 5)
    assert GATv2Conv(4, 5, heads=2, aggr=SoftmaxAggregation())(nodes, edge_index).shape == (3, 10)


def test_it_compiles_without_a_break(seeded: None) -> None:  # noqa: F811
    x, index = messages()
    calls: list[dict[str, torch.Tensor | int]] = [
        {"x": x.float(), "index": index, "dim_size": 9},
        {"x": x[:31].float(), "index": index[:31], "dim_size": 7},
    ]
    compare_compiled(SoftmaxAggregation(0.5), "aot_eager", *calls)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_single(dtype: torch.dtype, seeded: None) -> None:  # noqa: F811
    x, index = torch.full((4_000, 1), 0.1, dtype=dtype), torch.zeros(4_000, dtype=torch.int64)
    ours = SoftmaxAggregation()
    assert ours(x, index).dtype == torch.float32  # with weights in single precision, as of PyG
    assert ours.to(dtype)(x, index).dtype == dtype
    torch.testing.assert_close(ours(x, index), x[:1])
    model = DeeperGCN(6, None, 2, hidden=8, num_layers=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(messages()[0].float(), torch.randint(40, (2, 90)))
    out.float().sum().backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in model.parameters() if weight.grad is not None)
