"""Sums weighted by a softmax: values, gradients and gradients of gradients, on every backend."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.ops.test_fused_sums import SIZES, bounds, near
from tests.strategies import normals
from torch import Tensor

from fishnets.errors import BackendUnavailableError, ShapeError
from fishnets.ops.softmax_messages import fused_cpu, softmax_messages, softmax_messages_backend

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def plainly(x: Tensor, temperature: Tensor, sizes: list[int]) -> Tensor:
    """Group by group, with PyTorch's softmax."""
    groups = [(torch.softmax(temperature * rows, 0) * rows).sum(0) for rows in x.split(sizes)]
    return torch.stack(groups)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sums_are_those_of_a_softmax_in_every_group(sizes):
    x = 3 * normals(1, sum(sizes), 5).requires_grad_()
    temperature = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    upstream = normals(2, len(sizes), 5)
    got, want = softmax_messages(x, temperature, bounds(sizes, "cpu")), plainly(x, temperature, sizes)
    torch.testing.assert_close(got, want)
    for one, other in zip(*(torch.autograd.grad(out, (x, temperature), upstream) for out in (got, want)), strict=True):
        torch.testing.assert_close(one, other)


def test_messages_may_come_in_any_order():
    x, ptr = normals(3, 12, 2), bounds([5, 0, 7], "cpu")
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    temperature = torch.ones(1, dtype=torch.float64)
    got = softmax_messages(x, temperature, ptr, order=order)
    torch.testing.assert_close(got, softmax_messages(x[order], temperature, ptr))


def test_large_messages_do_not_overflow():
    x = torch.tensor([[1e4], [-1e4], [1e4 - 1]])
    got = softmax_messages(x, torch.ones(1), torch.tensor([0, 3]))
    assert got.item() == pytest.approx(1e4 - 1 / (1 + torch.e))


def test_gradients_agree_with_differences():
    x = normals(4, 6, 2).requires_grad_()
    temperature = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    ptr = torch.tensor([0, 4, 4, 6])
    with torch.random.fork_rng():
        assert torch.autograd.gradcheck(lambda *given: softmax_messages(*given, ptr), (x, temperature))
        assert torch.autograd.gradgradcheck(lambda *given: softmax_messages(*given, ptr), (x, temperature))


def test_what_was_given_and_expected_is_said():
    with pytest.raises(ShapeError, match=r"^`x` has shape \(2,\) and `temperature` \(1,\) but \(n, C\) and \(1,\)"):
        softmax_messages(torch.ones(2), torch.ones(1), torch.tensor([0, 2]))
    with pytest.raises(BackendUnavailableError, match="the messages are on meta and kernels exist for CPU and CUDA"):
        softmax_messages_backend(torch.ones(2, 1, device="meta"), torch.ones(1), backend="fused")
    twice = torch.ones(2, 1, dtype=torch.float64)
    with pytest.raises(BackendUnavailableError, match=r"sums are in torch\.float64 and those in float32 are fused"):
        softmax_messages(twice, twice[0], torch.tensor([0, 2]), backend="fused")


def test_what_is_not_a_number_stays_so():
    x = torch.tensor([[1.0, torch.nan, 0.0], [2.0, 3.0, torch.inf], [0.0, 0.0, 0.0]])
    got = softmax_messages(x, torch.ones(1), torch.tensor([0, 2, 3]))
    assert got.isnan().tolist() == [[False, True, True], [False, False, False]]


def test_small_shares_are_those_of_the_definition():
    x, ptr = torch.linspace(0, 120, 241).unsqueeze(1), torch.tensor([0, 241])
    got, want = (softmax_messages(x, torch.ones(1), ptr, backend=one) for one in ("auto", "reference"))
    torch.testing.assert_close(got, want, rtol=1e-6, atol=0)


def test_threads_change_nothing(monkeypatch):
    x, ptr = normals(8, 60_000, 8, dtype=torch.float32), 20 * torch.arange(3_001)
    found = []
    for threads in (1, 4):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        inputs = [x.clone().requires_grad_(), torch.ones(1, requires_grad=True)]
        out = softmax_messages(*inputs, ptr)
        found.append([out.detach(), *torch.autograd.grad(out.square().sum(), inputs)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("channels", [1, 16, 48, 64, 256])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_kernels_agree_with_the_definition(device, sizes, channels, monkeypatch):
    if device == "cpu":  # every output starts as NaN
        nan_like = partial(torch.full_like, fill_value=torch.nan)
        monkeypatch.setattr(torch.Tensor, "new_empty", lambda self, *shape: self.new_full(shape, torch.nan))
        monkeypatch.setattr(fused_cpu, "empty_like", nan_like)
        monkeypatch.setattr(torch, "empty_like", nan_like)
    x, ptr = 3 * normals(5, sum(sizes), channels, dtype=torch.float32).to(device), bounds(sizes, device)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(2)).to(device)
    temperature, upstream = torch.tensor([0.7], device=device), normals(6, len(sizes), channels).to(device)
    for chosen in (None, order):
        given, found = [], []
        for dtype, backend in ((torch.float32, "fused"), (torch.float64, "reference")):
            inputs = [one.to(dtype).requires_grad_() for one in (x, temperature)]
            out = softmax_messages(*inputs, ptr, order=chosen, backend=backend)
            given.append(out.detach())
            found.append(torch.autograd.grad(out, inputs, upstream.to(dtype)))
        near(given[0], given[1], 1e-5)
        near(found[0][0], found[1][0], 1e-5)
        near(found[0][1], found[1][1], 1e-4)  # a sum over all messages, of both signs


@pytest.mark.parametrize("device", DEVICES)
def test_kernels_refuse_what_they_cannot_do_and_pass_second_gradients(device):
    x, temperature = normals(7, 9, 4, dtype=torch.float32).to(device), torch.ones(1, device=device)
    assert softmax_messages_backend(x, temperature)[0] == "fused"
    assert softmax_messages_backend(x.double(), temperature)[0] == "reference"
    ptr, inputs = bounds([4, 5], device), (x.requires_grad_(), temperature.requires_grad_())
    slopes = []
    for backend in ("fused", "reference"):
        out = softmax_messages(*inputs, ptr, backend=backend).square().sum()
        first = torch.autograd.grad(out, inputs, create_graph=True)
        slopes.append(torch.autograd.grad(first[0].square().sum() + first[1].sum(), inputs))
    for got, want in zip(*slopes, strict=True):
        near(got, want.double(), 1e-4)


def test_messages_far_below_the_others_do_not_count():
    x = torch.tensor([[0.0], [-1e38], [-100.0], [-87.9]])
    assert softmax_messages(x[:2], torch.ones(1), torch.tensor([0, 2])).item() == 0
    got, want = (softmax_messages(x, torch.ones(1), torch.tensor([0, 4]), backend=one) for one in ("auto", "reference"))
    assert abs(got.item() - want.item()) < 1e-35


def test_sums_are_as_precise_as_the_more_precise_of_both():
    x, ptr = normals(9, 20, 3, dtype=torch.float32), torch.tensor([0, 20])
    slope = torch.tensor([1 / 3], dtype=torch.float64)
    torch.testing.assert_close(softmax_messages(x, slope, ptr), softmax_messages(x.double(), slope, ptr))
    half = x.bfloat16()
    assert softmax_messages_backend(half, slope.float()) == softmax_messages_backend(x, slope.float())
    got = softmax_messages(half, slope.bfloat16(), ptr)
    torch.testing.assert_close(got, softmax_messages(half.float(), slope.bfloat16().float(), ptr).bfloat16())


@pytest.mark.parametrize("order", [torch.tensor([0]), torch.tensor([1, 0], dtype=torch.int32), torch.tensor([[0, 1]])])
def test_an_order_that_does_not_fit_is_refused(order):
    message = r"`order` is torch\.int\d+ of shape \(.*\) but int64 of shape \(2,\) was expected"
    with pytest.raises(ShapeError, match=message):
        softmax_messages(torch.ones(2, 1), torch.ones(1), torch.tensor([0, 2]), order=order)
