"""Fused sums of information and estimates from messages, against their definitions in float64: values and gradients.

On a machine without CUDA the kernels of the CPU are tested here through the public functions, and the tests marked
``gpu`` are left out; those run the Triton kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
from tests.laws import equal
from tests.strategies import normals
from torch import Tensor

from fishnets.algebra.cholesky import factor_width
from fishnets.algebra.packing import packed_size
from fishnets.errors import BackendUnavailableError, ConfigError, DataError, ShapeError
from fishnets.graphs import FishnetsAggregation
from fishnets.ops import schedule as scheduling
from fishnets.ops.estimate_messages import estimate_messages, estimate_messages_backend
from fishnets.ops.estimate_messages import fused_triton as messages_triton
from fishnets.ops.schedule import owners, schedule
from fishnets.ops.segment_information import segment_information, segment_information_backend
from fishnets.ops.solve_information import solve_information

KINDS_AND_FORMS = [
    (kind, form)
    for kind, form in product(["full", "diagonal", "rank-1", "rank-2"], ["score", "regression", "location"])
    if form != "regression" or not kind.startswith("rank")
]
# empty groups, groups of one, a group that is cut into items, sizes off powers of two
SIZES = [[0, 3, 700, 1, 0, 33], [1], [5000, 0], [2, 2, 2], [0, 0], [130, 1, 17, 16, 15]]
TF32 = 5e-3  # of the largest value, where products are rounded to ten bits


@pytest.fixture
def matmul_precision() -> Iterator[Callable[[str], None]]:
    """Sets how float32 is multiplied, for one test."""
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


def bounds(sizes: list[int], device: torch.device | str) -> Tensor:
    return torch.tensor([0, *sizes], device=device).cumsum(0)


def near(got: Tensor, want: Tensor, tolerance: float) -> None:
    """Equal to a part of the largest value."""
    assert got.shape == want.shape
    scale = want.abs().max().item() if want.numel() else 0.0
    torch.testing.assert_close(got.double(), want, rtol=0.0, atol=tolerance * max(scale, 1e-3))


def doubles(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if one is None else one.detach().double().requires_grad_() for one in tensors]


def check_sums(raw: Tensor, p: int, sizes: list[int], kind: str, form: str, tolerance: float = 1e-5) -> None:
    """Values and gradients of the fused sum, with weights and an order, and without."""
    device, n = raw.device, raw.shape[-2]
    ptr = bounds(sizes, device)
    generator = torch.Generator().manual_seed(5)
    weight, order = torch.rand(n, generator=generator).to(device), torch.randperm(n, generator=generator).to(device)
    for w, o in ((None, None), (weight, order)):
        given = [one if one is None else one.clone().requires_grad_() for one in (raw, w)]
        exact = doubles(raw, w)
        options = {"kind": kind, "form": form, "order": o}
        got = segment_information(given[0], p, ptr, weight=given[1], backend="fused", **options)
        want = segment_information(exact[0], p, ptr, weight=exact[1], backend="reference", **options)
        upstream = [normals(7 + i, *one.shape).to(device) for i, one in enumerate(want)]
        inputs = [[one for one in group if one is not None] for group in (given, exact)]
        found = torch.autograd.grad(got, inputs[0], [one.to(got[0]) for one in upstream])
        for one, other in zip((*got, *found), (*want, *torch.autograd.grad(want, inputs[1], upstream)), strict=True):
            near(one.detach(), other.detach(), tolerance)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("kind", "form"), KINDS_AND_FORMS)
def test_sums_are_those_of_the_definition(device, kind, form, sizes):
    raw = normals(1, sum(sizes), 3 + factor_width(kind, 3), dtype=torch.float32).to(device)
    check_sums(raw, 3, sizes, kind, form)


def test_compiled_bounds_that_share_memory_are_told_apart():
    raw = normals(8, 12, 5, dtype=torch.float32)
    some, others = bounds([3, 9], "cpu"), bounds([8, 4], "cpu")

    @torch.compile(fullgraph=True)
    def both(one, other):  # the compiler may write the second bounds where the first were
        first = segment_information(raw, 2, one * 1, form="regression", backend="fused")[1]
        return first, segment_information(raw, 2, other * 1, form="regression", backend="fused")[1]

    with torch.no_grad():
        found = both(some, others)
    for got, ptr in zip(found, (some, others), strict=True):
        near(got, segment_information(raw.double(), 2, ptr, form="regression", backend="reference")[1], 1e-5)


def test_softplus_is_right_however_small_or_large(device):
    raw = torch.linspace(-30, 30, 241, device=device).repeat(2, 1).mT.contiguous()
    ptr = torch.arange(242, device=device)
    _, got = segment_information(raw, 1, ptr, form="score", backend="fused")
    _, want = segment_information(raw.double(), 1, ptr, form="score", backend="reference")
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=0.0)  # of its square


@pytest.mark.gpu
@pytest.mark.parametrize("p", [1, 2, 8, 11])
def test_sums_of_any_width_in_columns(device, p):
    raw = normals(2, p + packed_size(p), 5003, dtype=torch.float32).to(device).mT
    check_sums(raw, p, [0, 4000, 1000, 3], "full", "regression", 1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_summed_in_float32(device, dtype):
    raw = normals(3, 2, 600, 9, dtype=torch.float32).to(device, dtype)
    check_sums(raw, 3, [590, 10], "full", "regression", 1e-2)


@pytest.mark.gpu
def test_sums_and_gradients_are_the_same_from_run_to_run(device):
    raw = normals(4, 50_000, 44, dtype=torch.float32).to(device).requires_grad_()
    ptr = bounds([30_000, 1, 0, 19_999], device)
    first, second = (segment_information(raw, 8, ptr, form="regression", backend="fused") for _ in range(2))
    for one, other in zip(first, second, strict=True):
        equal(one.detach(), other.detach())
    gradients = [torch.autograd.grad(got[0].sum() + got[1].square().sum(), raw)[0] for got in (first, second)]
    equal(*gradients)


def test_double_backward_is_that_of_the_reference(device):
    raw, ptr = normals(5, 7, 5, dtype=torch.float32).to(device).requires_grad_(), bounds([3, 4], device)
    found = []
    for backend in ("fused", "reference"):
        score, fisher = segment_information(raw, 2, ptr, form="regression", backend=backend)
        (slope,) = torch.autograd.grad(score.square().sum() + fisher.sum(), raw, create_graph=True)
        found += torch.autograd.grad(slope.square().sum(), raw)
    near(found[0], found[1].double(), 1e-5)


def compiled(function, *inputs):  # type: ignore[no-untyped-def]
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")(*inputs)


def test_the_compiler_sees_one_graph(device):
    raw, ptr = normals(6, 9, 5, dtype=torch.float32).to(device).requires_grad_(), bounds([4, 5], device)

    def total(raw: Tensor) -> Tensor:
        score, fisher = segment_information(raw, 2, ptr, form="regression", backend="fused")
        estimate, log_determinant = solve_information(score, fisher + torch.ones(3, device=device))
        return estimate.sum() + log_determinant.sum()

    got, want = compiled(total, raw), total(raw)
    near(got.detach(), want.detach().double(), 1e-6)
    near(torch.autograd.grad(got, raw)[0], torch.autograd.grad(want, raw)[0].double(), 1e-5)


# Estimates from messages


def messages(
    n: int, channels: int, p: int, device: torch.device | str, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Messages, weights and bias of a layer, and a prior."""
    width = p + packed_size(p)
    x, lin = normals(1, n, channels), normals(2, width, channels) / channels**0.5
    drawn = (x, lin, 0.3 * normals(3, width), normals(4, p).exp())
    return [*(one.to(device, dtype) for one in drawn[:3]), drawn[3].to(device, torch.float32)]


def check_estimates(given: list[Tensor], sizes: list[int], form: str, backend: str, tolerance: float) -> None:
    """Values and gradients, with weights and an order, and without."""
    device, n = given[0].device, len(given[0])
    ptr, generator = bounds(sizes, device), torch.Generator().manual_seed(5)
    weight, order = torch.rand(n, generator=generator).to(device), torch.randperm(n, generator=generator).to(device)
    for w, o in ((None, None), (weight, order)):
        inputs = [one.clone().requires_grad_() for one in (*given, *([] if w is None else [w]))]
        exact = doubles(*inputs)
        options = [{"weight": None if w is None else group[4], "order": o} for group in (inputs, exact)]
        got = estimate_messages(*inputs[:4], ptr, form, **options[0], backend=backend)
        want = estimate_messages(*exact[:4], ptr, form, **options[1], backend="reference")
        upstream = normals(7, *want.shape).to(device)
        found = torch.autograd.grad(got, inputs, upstream.to(got))
        for one, other in zip((got, *found), (want, *torch.autograd.grad(want, exact, upstream)), strict=True):
            near(one.detach(), other.detach(), tolerance)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("form", ["score", "regression", "location"])
def test_separate_parts_estimate_as_defined(device, form, sizes):
    check_estimates(messages(sum(sizes), 6, 3, device), sizes, form, "separate", 1e-4)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("form", ["score", "regression", "location"])
@pytest.mark.parametrize(
    ("precision", "tolerance"), [pytest.param("high", TF32, marks=pytest.mark.gpu), ("highest", 1e-4)]
)
def test_fused_messages_estimate_as_defined(device, form, sizes, precision, tolerance, matmul_precision):
    matmul_precision(precision)
    check_estimates(messages(sum(sizes), 20, 3, device), sizes, form, "fused", tolerance)


WIDTHS = [(1, 3), (4, 64), (7, 64), (8, 128), (9, 65), (10, 64)]


@pytest.mark.parametrize(("p", "channels"), WIDTHS)
def test_fused_messages_of_any_width(device, p, channels, matmul_precision):
    matmul_precision("highest")
    check_estimates(messages(5003, channels, p, device), [0, 4000, 1000, 3], "regression", "fused", 1e-4)


@pytest.mark.parametrize("channels", [1, 17, 100])
def test_messages_in_float64_are_multiplied_in_float64(channels):
    inputs = [one.double().requires_grad_() for one in messages(1300, channels, 3, "cpu", torch.float64)]
    found = []
    for backend in ("fused", "reference"):
        out = estimate_messages(*inputs, bounds([0, 1100, 200], "cpu"), backend=backend)
        found.append((out.detach(), *torch.autograd.grad(out.square().sum(), inputs)))
    for one, other in zip(*found, strict=True):
        near(one, other, 1e-11)


def test_messages_of_any_strides_are_fused_on_a_cpu():
    x, *layer = messages(400, 12, 3, "cpu")
    x, ptr = x.mT.contiguous().mT, bounds([300, 100], "cpu")
    got, want = (estimate_messages(x, *layer, ptr, backend=backend) for backend in ("fused", "reference"))
    near(got, want.double(), 1e-5)


def test_a_message_that_is_not_finite_spoils_its_own_group_only():
    x, *layer = messages(400, 12, 3, "cpu")
    x[130] = float("nan")
    inputs = [x.requires_grad_(), *layer]
    out = estimate_messages(*inputs, bounds([130, 5, 265], "cpu"), backend="fused")
    assert torch.isnan(out[1]).any()
    assert torch.isfinite(out[[0, 2]]).all()
    (slopes,) = torch.autograd.grad(out[[0, 2]].sum(), x)
    assert torch.isfinite(slopes[:130]).all()
    assert torch.isfinite(slopes[135:]).all()


@pytest.mark.gpu
def test_messages_in_bfloat16_are_summed_in_float32(device):
    check_estimates(messages(600, 64, 8, device, torch.bfloat16), [590, 10], "regression", "fused", 4e-2)


@pytest.mark.gpu
def test_gradients_of_outputs_are_written_in_parts(device, monkeypatch, matmul_precision):
    matmul_precision("high")
    monkeypatch.setattr(messages_triton, "CHUNK", 44 * 1000)
    check_estimates(messages(5003, 64, 8, device), [5000, 3], "regression", "fused", TF32)


def test_estimates_and_gradients_are_the_same_from_run_to_run(device):
    inputs = [one.requires_grad_() for one in messages(50_000, 64, 8, device)]
    ptr, runs = bounds([30_000, 1, 0, 19_999], device), []
    for _ in range(2):
        out = estimate_messages(*inputs, ptr, backend="fused")
        runs.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    for one, other in zip(*runs, strict=True):
        equal(one.detach(), other.detach())


def test_fused_messages_compile_and_are_differentiated_twice(device, matmul_precision):
    matmul_precision("high")
    inputs = [one.requires_grad_() for one in messages(300, 16, 3, device)]
    ptr = bounds([250, 50], device)

    def total(*inputs: Tensor) -> Tensor:
        return estimate_messages(*inputs, ptr, backend="fused").square().sum()

    got = torch.autograd.grad(compiled(total, *inputs), inputs)
    slopes = torch.autograd.grad(total(*inputs), inputs, create_graph=True)
    for one, other in zip(got, slopes, strict=True):
        near(one, other.detach().double(), TF32)
    twice = torch.autograd.grad(slopes[0].square().sum(), inputs[1])[0]
    assert torch.isfinite(twice).all()


def test_layers_of_every_backend_agree(device, matmul_precision):
    matmul_precision("highest")
    with torch.random.fork_rng():
        layer = FishnetsAggregation(64, num_params=8, device=device)
    x, index = normals(1, 3000, 64, dtype=torch.float32).to(device), torch.arange(3000, device=device) * 7 % 100
    outs = []
    for backend in ("reference", "separate", "fused", "auto"):
        layer.backend = backend
        outs.append(layer(x, index, dim_size=100).detach())
    for out in outs[1:]:
        near(out, outs[0].double(), 1e-4)


# Schedules


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("sizes", [[0, 3, 40, 1, 0, 12], [5], [100, 2, 60, 2], [0]], ids=str)
def test_a_schedule_covers_every_position_once(sizes, window, monkeypatch):
    monkeypatch.setattr(scheduling, "REST", 7)
    monkeypatch.setattr(scheduling, "GRAIN", 2)
    ptr = bounds(sizes, "cpu")
    cut = schedule(ptr, 5, window)
    seen = [[] for _ in sizes]
    for start, stop, place in zip(cut.first.starts, cut.first.stops, cut.first.place, strict=True):
        assert stop - start <= 5
        seen[place] += range(start, stop)
    for i, group in enumerate(cut.heavy.tolist()):
        for item in range(cut.bounds[i], cut.bounds[i + 1]):
            assert 0 < cut.rest.stops[item] - cut.rest.starts[item] <= 7
            seen[group] += range(cut.rest.starts[item], cut.rest.stops[item])
    assert seen == [list(range(ptr[i], ptr[i + 1])) for i in range(len(sizes))]
    missing, near = 5 - (cut.first.stops - cut.first.starts), cut.first.place // window
    came = list(zip((missing // 2).tolist(), near.tolist(), missing.tolist(), strict=True))
    assert came == sorted(came)  # the largest first, then neighbours, and these by size


@pytest.mark.parametrize("sizes", [[0, 3, 40, 1, 0, 12], [0]], ids=str)
def test_every_row_has_an_owner(sizes):
    ptr, n = bounds(sizes, "cpu"), sum(sizes)
    assert owners(ptr, n).tolist() == [g for g, n in enumerate(sizes) for _ in range(n)]
    order = torch.randperm(n, generator=torch.Generator().manual_seed(1))
    assert torch.equal(owners(ptr, n, order)[order], owners(ptr, n))
    other = bounds(sizes[::-1], "cpu")  # the same order with other bounds is another question
    assert torch.equal(owners(other, n, order)[order], owners(other, n))


# What is refused


def test_what_cannot_be_fused_says_why(device):
    x, lin, bias, prior = messages(4, 3, 2, "cpu")
    few, many = x, x.repeat(250_000, 1)
    assert estimate_messages_backend(many, lin, bias, prior) == ("fused", "the device and the shapes are supported")
    name, reason = estimate_messages_backend(few, lin, bias, prior)
    assert (name, reason) == ("separate", "a separate layer is faster on a CPU for fewer than 4,000,000 outputs")
    assert estimate_messages_backend(few, lin, bias, prior, "fused")[0] == "fused"
    name, reason = estimate_messages_backend(x.unsqueeze(0), lin, bias, prior)
    assert (name, reason) == ("separate", "messages have 3 dimensions and those of shape (n, C) are fused")
    with pytest.raises(BackendUnavailableError, match=r'^The backend "fused" cannot run: messages have 3 dimensions'):
        estimate_messages(x.unsqueeze(0), lin, bias, prior, bounds([4], "cpu"), backend="fused")
    name, reason = estimate_messages_backend(torch.zeros(4, 257), torch.zeros(5, 257), bias, prior)
    assert (name, reason) == ("separate", "messages have 257 channels and the CPU kernels take at most 256")
    name, reason = estimate_messages_backend(torch.zeros(4, 0), torch.zeros(5, 0), bias, prior)
    assert (name, reason) == ("separate", "messages have no channels")
    assert estimate_messages_backend(x, lin, bias, prior, "separate") == ("separate", "it was asked for")
    with pytest.raises(ConfigError, match=r'^`backend` is "fast" but one of'):
        estimate_messages(x, lin, bias, prior, bounds([4], "cpu"), backend="fast")
    wide = torch.zeros(4, 17 + packed_size(17), device=device)
    name, reason = segment_information_backend(wide, 17)
    assert name == "reference"
    assert "at most 16" in reason


def test_bounds_and_shapes_that_do_not_fit_are_refused():
    x, lin, bias, prior = messages(4, 3, 2, "cpu")
    with pytest.raises(DataError, match=r"^`ptr` must rise from 0 to the number of rows, 4, but it is 0, 3, 2, 4\.$"):
        estimate_messages(x, lin, bias, prior, torch.tensor([0, 3, 2, 4]))
    with pytest.raises(DataError, match=r"^`ptr` must rise from 0 to the number of rows, 4, but it is 0, 5\.$"):
        segment_information(torch.zeros(4, 5), 2, torch.tensor([0, 5]), backend="fused")
    with pytest.raises(ShapeError, match=r"^`x` has shape \(4, 3\) and `lin` \(5, 4\) but \(\*, n, C\) and \(5, C\)"):
        estimate_messages(x, torch.zeros(5, 4), bias, prior, bounds([4], "cpu"))
