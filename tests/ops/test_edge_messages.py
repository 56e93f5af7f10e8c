"""Messages along edges: values, gradients and gradients of gradients, by the kernels and by the definition."""

from __future__ import annotations

import pytest
import torch
from tests.strategies import normals
from torch import Tensor

from fishnets.errors import BackendUnavailableError, DataError, ShapeError
from fishnets.ops.edge_messages import edge_messages, edge_messages_backend, fused_cpu

BACKENDS = ("fused", "reference")
SIZES = [(5, 3, 12), (1, 1, 1), (4, 16, 200), (7, 48, 65), (3, 40, 64), (2, 5, 0)]  # nodes, channels, edges


def graph(nodes: int, channels: int, edges: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features of nodes and edges, some of which add to nothing, and sources."""
    source = torch.randint(nodes, (edges,), generator=torch.Generator().manual_seed(1))
    x, edge = (normals(seed, rows, channels, dtype=torch.float32) for seed, rows in ((2, nodes), (3, edges)))
    if edges:
        edge[0] = -x[source[0]]
    return x.requires_grad_(), edge.requires_grad_(), source


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_kernels_give_the_definition_to_the_last_bit(sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch):
    def nan_like(like: Tensor) -> Tensor:
        return torch.full_like(like, torch.nan)

    monkeypatch.setattr(fused_cpu, "empty_like", nan_like)
    x, edge, source = graph(*sizes)
    upstream, found = normals(4, sizes[2], sizes[1], dtype=torch.float32), []
    for backend in BACKENDS:
        out = edge_messages(x, edge, source, 1e-7, backend=backend)
        found.append([out.detach(), *torch.autograd.grad(out, (x, edge), upstream)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_layouts_and_single_gradients_do_not_matter():
    x, edge, source = graph(6, 4, 30)
    want = edge_messages(x, edge, source)
    assert torch.equal(want, edge_messages(x, edge.mT.contiguous().mT, source.repeat_interleave(2)[::2]))
    for one in (x, edge):
        pulled = torch.autograd.grad(edge_messages(x, edge, source).sum(), one)
        expected = torch.autograd.grad(edge_messages(x, edge, source, backend="reference").sum(), one)
        assert torch.equal(pulled[0], expected[0])
    broadcast = torch.autograd.grad(want.sum(), (x, edge))  # a gradient without memory of its own
    assert all(one.isfinite().all() for one in broadcast)


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch):
    x, edge, source = graph(50, 64, 9_000)
    found = []
    for threads, backend in ((1, "reference"), (1, "fused"), (3, "fused"), (8, "fused")):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        out = edge_messages(x, edge, source, backend=backend)
        found.append([out.detach(), *torch.autograd.grad(out.square().sum(), (x, edge))])
    for more in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], more, strict=True))


def test_what_is_not_a_number_stays_so():
    x, edge = torch.tensor([[0.0, torch.nan, -torch.inf]]), torch.tensor([[torch.nan, 1.0, 1.0]])
    for backend in BACKENDS:
        out = edge_messages(x, edge, torch.tensor([0]), backend=backend)
        assert out.isnan().tolist() == [[True, True, False]]
        assert out[0, 2] == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_gradients_are_passed(backend: str):
    x, edge, source = graph(4, 3, 10)
    out = edge_messages(x, edge, source, backend=backend)
    first = torch.autograd.grad(out.pow(3).sum(), (x, edge), create_graph=True)
    second = torch.autograd.grad(sum(one.square().sum() for one in first), (x, edge))
    active = (x[source] + edge).clamp(min=0)
    plain = torch.autograd.grad(active.pow(3).sum(), (x, edge), create_graph=True)
    expected = torch.autograd.grad(sum(one.square().sum() for one in plain), (x, edge))
    for got, want in zip(second, expected, strict=True):
        torch.testing.assert_close(got, want)


def test_a_backend_is_chosen_with_a_reason():
    x, edge, source = graph(4, 3, 10)
    assert edge_messages_backend(x, edge)[0] == "fused"
    assert edge_messages_backend(x.double(), edge) == (
        "reference",
        "`x` is torch.float64, `edge` torch.float32, and the kernels take float32",
    )
    with pytest.raises(BackendUnavailableError, match="`x` is on meta, `edge` on cpu, and there are kernels for the"):
        edge_messages(x.to("meta"), edge, source, backend="fused")
    slopes = torch.func.vmap(lambda one: edge_messages(x, one, source))(torch.stack([edge, edge]))
    assert torch.equal(slopes[0], edge_messages(x, edge, source))


def test_what_was_given_and_expected_is_said():
    x, edge, source = graph(4, 3, 10)
    message = r"^`x` has shape \(4, 3\), `edge` \(9, 3\) and `source` is torch\.int64 of shape \(10,\), but \(N, C\)"
    with pytest.raises(ShapeError, match=message):
        edge_messages(x, edge[1:], source)
    with pytest.raises(ShapeError, match=r"`source` is torch\.int32 of shape \(10,\), but \(N, C\), \(E, C\) and"):
        edge_messages(x, edge, source.int())
    with pytest.raises(ShapeError, match=r"`source` is torch\.int64 of shape \(10, 1\), but"):
        edge_messages(x, edge.unsqueeze(1), source.unsqueeze(1))
    beside = source.numpy()  # changes that PyTorch does not see
    for wrong in (4, -1):
        beside[0] = wrong
        with pytest.raises(DataError, match=r"^`source` runs from -?\d to \d but there are 4 rows, 0 to 3\.$"):
            edge_messages(x, edge, source)
