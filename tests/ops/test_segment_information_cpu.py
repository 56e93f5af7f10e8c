"""The CPU kernels, against dense matrices in float64 and their derivatives by autograd."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.laws import equal
from tests.strategies import integers, normals
from torch import Tensor
from torch.nn.functional import softplus

pytest.importorskip("numba")

from fishnets.ops.segment_information import fused_cpu
from fishnets.ops.segment_information.fused_cpu import CHUNK, backward, forward, obstacle
from fishnets.ops.threads import run_ranges

# whole blocks of 8 rows, partial ones, and groups without a row, at both ends and between
SIZES = [0, 1, 8, 0, 0, 9, 7, 17, 2, 40, 0]
CASES = [
    *((3, "full", form) for form in ("score", "regression", "location")),
    *((3, "diagonal", form) for form in ("score", "regression", "location")),
    *((3, "rank-2", form) for form in ("score", "location")),
    (1, "full", "location"),
    (2, "full", "regression"),
    (2, "rank-1", "location"),
    (5, "full", "location"),
    (8, "full", "regression"),
    (8, "rank-3", "score"),
]
LAYOUTS = {
    "rows": lambda raw: raw,
    "columns": lambda raw: raw.mT.contiguous().mT,
    "slices": lambda raw: raw.repeat_interleave(2, dim=1).repeat_interleave(3, dim=2)[:, ::2, ::3],
    "wider rows": lambda raw: torch.cat([raw, raw], dim=-1)[..., : raw.shape[-1]],
    "batches inside": lambda raw: raw.transpose(0, 1).contiguous().transpose(0, 1),
    "one row for all": lambda raw: raw[:, :1].expand_as(raw),
    "one batch for all": lambda raw: raw[:1].expand_as(raw),
}


def width(p: int, kind: str) -> int:
    factor = {"full": p * (p + 1) // 2, "diagonal": p}
    return p + (factor[kind] if kind in factor else p * int(kind.removeprefix("rank-")))


def bounds(sizes: list[int]) -> Tensor:
    return torch.tensor([0, *torch.tensor(sizes, dtype=torch.int64).cumsum(0).tolist()])


def dense_factor(entries: Tensor, p: int, kind: str) -> Tensor:
    if kind == "diagonal":
        return torch.diag_embed(softplus(entries))
    if kind != "full":
        return entries.reshape(*entries.shape[:-1], p, -1)
    L = entries.new_zeros(*entries.shape[:-1], p, p)
    rows, columns = torch.tril_indices(p, p)
    L[..., rows, columns] = entries
    return L.tril(-1) + torch.diag_embed(softplus(L.diagonal(dim1=-2, dim2=-1)))


def definition(
    raw: Tensor, p: int, ptr: Tensor, kind: str, form: str, weight: Tensor | None = None, order: Tensor | None = None
) -> Tensor:
    """The sums, from a matrix per row and `index_add`."""
    L, a = dense_factor(raw[..., p:], p, kind), raw[..., :p, None]
    t = {"score": lambda: a, "regression": lambda: L @ a, "location": lambda: L @ (L.mT @ a)}[form]()
    rows, columns = torch.tril_indices(p, p)
    information = torch.cat([t.squeeze(-1), (L @ L.mT)[..., rows, columns]], dim=-1)
    if weight is not None:
        information = information * weight[:, None]
    if order is not None:
        information = information[:, order]
    index = torch.repeat_interleave(ptr.diff())
    return information.new_zeros(len(raw), len(ptr) - 1, information.shape[-1]).index_add(1, index, information)


def expected(
    grad: Tensor, raw: Tensor, p: int, ptr: Tensor, kind: str, form: str, weight: Tensor | None, order: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The sums and the gradients of outputs and weight, in float64."""
    raw = raw.detach().double().contiguous().requires_grad_()
    weight = (torch.ones(raw.shape[1]) if weight is None else weight).double().detach().requires_grad_()
    total = definition(raw, p, ptr, kind, form, weight, order)
    return total.detach(), *torch.autograd.grad(total, (raw, weight), grad.double())


def check(raw: Tensor, p: int, sizes: list[int], kind: str, form: str, weighted: bool, ordered: bool, **tolerance):
    """Compares sums and every gradient with the definition."""
    n, ptr = raw.shape[1], bounds(sizes)
    dtype = torch.promote_types(raw.dtype, torch.float32)
    weight = normals(1, n, dtype=dtype).relu() if weighted else None  # half of them zero
    order = torch.randperm(n, generator=torch.Generator().manual_seed(2)) if ordered else None
    grad = normals(3, len(raw), len(sizes), p + p * (p + 1) // 2, dtype=dtype)
    total, grad_raw, grad_weight = expected(grad, raw, p, ptr, kind, form, weight, order)
    got = forward(raw, p, ptr, kind, form, weight, order)
    got_raw, got_weight = backward(grad, raw, p, ptr, kind, form, weight, order, need_weight=True)
    assert (got.dtype, got_raw.dtype, got_weight.dtype) == (dtype, raw.dtype, dtype)
    assert got_raw.stride() == torch.empty_like(raw).stride()
    tolerance = tolerance or {"rtol": 1e-10, "atol": 1e-10}
    for a, b in ((got, total), (got_raw, grad_raw), (got_weight, grad_weight)):
        torch.testing.assert_close(a.double(), b, **tolerance)


@pytest.fixture
def memory_of_nan(monkeypatch) -> None:
    """Every output starts as NaN."""
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda self, *shape: self.new_full(shape, math.nan))
    monkeypatch.setattr(fused_cpu, "empty_like", lambda source: torch.full_like(source, math.nan))


@pytest.fixture
def num_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("p", "kind", "form"), CASES)
def test_sums_and_gradients_are_those_of_dense_matrices(p, kind, form, memory_of_nan):
    raw = normals(0, 2, sum(SIZES), width(p, kind))
    check(raw, p, SIZES, kind, form, weighted=True, ordered=True)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [[], [0], [0, 0, 0], [1], [1] * 9, [8, 16], [7, 0, 9], [0, 3], [3, 0], [CHUNK], [CHUNK + 1], [2, 5 * CHUNK, 0, 1]],
    ids=str,
)
def test_groups_of_every_size(sizes, ordered, weighted, memory_of_nan):
    check(normals(0, 1, sum(sizes), 9), 3, sizes, "full", "regression", weighted, ordered)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ordered", [False, True])
def test_any_strides_are_read_and_given_back(layout, ordered, memory_of_nan):
    raw = LAYOUTS[layout](normals(0, 3, sum(SIZES), 9))
    check(raw, 3, SIZES, "full", "regression", weighted=True, ordered=ordered)


def test_no_batches_give_nothing():
    raw = torch.zeros(0, 4, 9, dtype=torch.float64)
    total = forward(raw, 3, bounds([4]), "full", "regression")
    grad, _ = backward(total, raw, 3, bounds([4]), "full", "regression")
    assert (total.shape, grad.shape) == ((0, 1, 9), (0, 4, 9))


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize(("p", "kind", "form"), [(8, "full", "regression"), (3, "diagonal", "location")])
def test_single_precision(p, kind, form, layout, memory_of_nan):
    raw = LAYOUTS[layout](normals(0, 2, sum(SIZES), width(p, kind), dtype=torch.float32))
    check(raw, p, SIZES, kind, form, weighted=True, ordered=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-10)])
def test_half_precision_is_summed_in_single(dtype, rtol):
    raw, ptr = normals(0, 2, sum(SIZES), 6, dtype=dtype), bounds(SIZES)
    check(raw, 3, SIZES, "diagonal", "location", weighted=True, ordered=True, rtol=rtol, atol=1e-2)
    equal(forward(raw, 3, ptr, "diagonal", "location"), forward(raw.float(), 3, ptr, "diagonal", "location"))


def test_expanded_gradient_is_read():
    raw, ptr = normals(0, 2, sum(SIZES), 9), bounds(SIZES)
    one = torch.ones(1, 1, 1, dtype=torch.float64).expand(2, len(SIZES), 9)
    arguments = (raw, 3, ptr, "full", "regression")
    equal(backward(one, *arguments)[0], backward(one.contiguous(), *arguments)[0])


def test_every_row_of_a_hub_counts_once():
    """Whole numbers do not round, so a row counted twice or not at all shows in the last bit."""
    sizes = [3, 20 * CHUNK + 5, 0, 11]
    raw, ptr = integers(0, 1, sum(sizes), 9), bounds(sizes)
    equal(forward(raw, 3, ptr, "rank-2", "score"), definition(raw, 3, ptr, "rank-2", "score"))


def test_sums_over_a_hub_stay_accurate_in_single_precision():
    sizes = [100 * CHUNK, 1]
    raw, ptr = normals(0, 1, sum(sizes), 6, dtype=torch.float32), bounds(sizes)
    total = forward(raw, 3, ptr, "diagonal", "location")
    exact = definition(raw.double(), 3, ptr, "diagonal", "location")
    size = definition(raw.double().abs(), 3, ptr, "diagonal", "location")  # scores cancel, their rounding does not
    assert ((total - exact).abs() <= 1e-6 * size).all()


def test_results_are_the_same_bits_from_run_to_run_and_for_any_number_of_threads(num_threads):
    sizes = [5, 30_000, 0, 3000, *[37] * 400]
    raw, ptr = normals(0, 2, sum(sizes), 9), bounds(sizes)
    weight, grad = normals(1, sum(sizes)), normals(2, 2, len(sizes), 9)
    arguments = (raw, 3, ptr, "full", "regression", weight)
    runs = []
    for threads in (1, 2, 2, 3, 16):
        torch.set_num_threads(threads)
        runs.append((forward(*arguments), *backward(grad, *arguments, need_weight=True)))
    for run in runs[1:]:
        for a, b in zip(run, runs[0], strict=True):
            equal(a, b)


def test_threads_of_the_caller_do_not_disturb_each_other(num_threads):
    torch.set_num_threads(2)
    ptr = bounds([100] * 200)
    raws = [normals(seed, 1, 20_000, 9) for seed in range(4)]
    alone = [forward(raw, 3, ptr, "full", "regression") for raw in raws]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            together = list(pool.map(lambda raw: forward(raw, 3, ptr, "full", "regression"), raws))
            for a, b in zip(together, alone, strict=True):
                equal(a, b)


@pytest.mark.parametrize(
    ("dtype", "least", "tolerance"), [(torch.float32, -85.0, 1e-6), (torch.float64, -700.0, 1e-13)]
)
def test_softplus_is_accurate_wherever_it_does_not_underflow(dtype, least, tolerance):
    """In a group of one with a = 1 and p = 1, the score is the factor and its gradient the slope."""
    entry = torch.cat([torch.linspace(least, 90, 5001), torch.linspace(-2, 2, 5001), torch.tensor([-0.0])]).to(dtype)
    raw = torch.stack([torch.ones_like(entry), entry], dim=-1)[None]
    ptr = torch.arange(len(entry) + 1)
    score = forward(raw, 1, ptr, "full", "regression")[0, :, 0]
    grad = torch.tensor([1.0, 0.0], dtype=dtype).expand(1, len(entry), 2)
    slope = backward(grad, raw, 1, ptr, "full", "regression")[0][0, :, 1]
    exact = entry.double()
    assert ((score / torch.logaddexp(exact, torch.zeros_like(exact)) - 1).abs() < tolerance).all()
    assert ((slope / torch.sigmoid(exact) - 1).abs() < tolerance).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_row_spoils_its_own_group_and_no_other(bad):
    sizes = [3, 9, 2]
    raw, ptr = normals(0, 1, sum(sizes), 9), bounds(sizes)
    for column in range(9):
        spoilt = raw.clone()
        spoilt[0, 11, column] = bad  # the last of its group, which the last block repeats
        total = forward(spoilt, 3, ptr, "full", "regression")
        assert not total[:, 1].isfinite().all()
        equal(total[:, [0, 2]], forward(raw, 3, ptr, "full", "regression")[:, [0, 2]])
        grad, _ = backward(torch.ones_like(total), spoilt, 3, ptr, "full", "regression")
        assert grad.isfinite().all(-1).sum() == 13


def test_weight_is_asked_for_or_not():
    raw, ptr = normals(0, 1, 4, 9), bounds([4])
    grad = torch.ones(1, 1, 9, dtype=torch.float64)
    assert backward(grad, raw, 3, ptr, "full", "regression")[1] is None
    assert backward(grad, raw, 3, ptr, "full", "regression", need_weight=True)[1].shape == (4,)


@pytest.mark.parametrize(
    ("raw", "p", "message"),
    [
        (torch.zeros(1, 4, 9, device="meta"), 3, "`raw` is on meta and the CPU kernels need it on the CPU"),
        (torch.zeros(1, 4, 9, dtype=torch.int64), 3, "`raw` is torch.int64 and the CPU kernels take float32, float64"),
        (torch.zeros(1, 4, 170), 17, "`num_params` is 17 and the CPU kernels are written out for at most 16"),
    ],
)
def test_obstacle_says_why_the_kernels_cannot_run(raw, p, message):
    assert obstacle(raw, p, "full", "score").startswith(message)
    assert obstacle(torch.zeros(1, 4, 9), 3, "full", "score") is None


def test_obstacle_says_what_to_install(monkeypatch):
    monkeypatch.setattr(fused_cpu, "HAS_NUMBA", False)
    assert obstacle(torch.zeros(1, 4, 9), 3, "full", "score") == "Numba is not installed; pip install 'fishnets[fast]'"


def test_importing_does_not_need_numba():
    code = "import sys; sys.modules['numba'] = None; import fishnets.ops.segment_information.fused_cpu"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_an_interrupt_inside_of_a_kernel_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        run_ranges(interrupted, 1, torch.tensor([0, 5]), [])

    def broken(*_: object) -> None:
        raise SystemError("something else")

    with pytest.raises(SystemError, match="something else"):
        run_ranges(broken, 1, torch.tensor([0, 5]), [])
