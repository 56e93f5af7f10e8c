"""Sums over groups of rows, against `index_add` and dense products, in value and gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.laws import (
    check_batch_of_one,
    check_compress_then_merge,
    check_merging,
    check_permutation_invariance,
    equal,
    same_information,
)
from tests.strategies import PROPERTY, gradcheck, integers, kinds, normals, seeds
from torch import Tensor

from fishnets.algebra import Information, factor_from_raw, factor_width, pack_symmetric, unpack_symmetric
from fishnets.errors import ConfigError, DataError, ShapeError
from fishnets.ops.segment_information import segment_information, segment_sum
from fishnets.ragged import Sets

sizes_of_groups = st.lists(st.integers(0, 6), min_size=1, max_size=8)
# one long group among short ones takes both levels of the two-level sum: longer than 4 blocks of max(32, sqrt(n))
LONG = [[0, 3, 700, 1, 0, 33], [129], [130, 1], [1, 5000, 0], [200, 200, 3, 200], [129, 0, 128, 32, 31, 33, 64, 65]]


def bounds(sizes: list[int], device: torch.device | str = "cpu") -> Tensor:
    return torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int64, device=device)


def oracle(rows: Tensor, sizes: list[int]) -> Tensor:
    """Adds row after row in float64."""
    rows = rows.to("cpu", torch.float64)
    index = torch.tensor([g for g, n in enumerate(sizes) for _ in range(n)], dtype=torch.int64)
    return rows.new_zeros((*rows.shape[:-2], len(sizes), rows.shape[-1])).index_add(-2, index, rows)


@PROPERTY
@given(sizes_of_groups, st.lists(st.integers(1, 3), max_size=2), st.integers(1, 4), seeds)
def test_sum_is_that_of_index_add(device, dtype, close, sizes, lead, width, seed):
    rows = normals(seed, *lead, sum(sizes), width, dtype=dtype, device=device)
    close(segment_sum(rows, bounds(sizes, device)), oracle(rows, sizes).to(device, dtype))


@pytest.mark.parametrize("sizes", LONG, ids=str)
@pytest.mark.parametrize("lead", [(), (2,)])
def test_one_long_group_among_short_ones_is_summed_at_both_levels(device, dtype, close, sizes, lead):
    rows = normals(1, *lead, sum(sizes), 3, dtype=dtype, device=device)
    close(segment_sum(rows, bounds(sizes, device)), oracle(rows, sizes).to(device, dtype))
    # whole numbers do not round, so a row counted twice or not at all shows in the last bit
    exact = integers(2, *lead, sum(sizes), 3)
    equal(segment_sum(exact, bounds(sizes)), oracle(exact, sizes))


@pytest.mark.parametrize("sizes", [[4, 4, 4], [1, 1], [7], [0, 0], [0], [0, 0, 5]], ids=str)
def test_groups_of_one_common_size_and_empty_groups(sizes, close, dtype):
    rows = normals(3, 2, sum(sizes), 3, dtype=dtype)
    total = segment_sum(rows, bounds(sizes))
    assert total.shape == (2, len(sizes), 3)
    close(total, oracle(rows, sizes).to(dtype))


def test_no_rows_give_zeros_that_can_be_differentiated():
    rows = torch.zeros(2, 0, 3, requires_grad=True)
    total = segment_sum(rows, bounds([0, 0, 0, 0]))
    equal(total.detach(), torch.zeros(2, 4, 3))
    total.sum().backward()
    assert rows.grad is not None
    assert rows.grad.shape == (2, 0, 3)


def test_no_groups_give_nothing():
    assert segment_sum(torch.zeros(0, 3), torch.tensor([0])).shape == (0, 3)


def test_rows_may_be_non_contiguous(close, dtype):
    rows = normals(4, 3, 12, dtype=dtype).mT[::2]  # (6, 3)
    close(segment_sum(rows, bounds([1, 0, 5])), segment_sum(rows.contiguous(), bounds([1, 0, 5])))
    close(segment_sum(rows, bounds([3, 3])), segment_sum(rows.contiguous(), bounds([3, 3])))


@pytest.mark.parametrize("sizes", [[2, 0, 3], [2, 2], [0, 0], [150, 1]], ids=str)
def test_gradient_of_the_sum(sizes):
    gradcheck(lambda rows: segment_sum(rows, bounds(sizes)), normals(5, 2, sum(sizes), 1))


@pytest.mark.parametrize("sizes", [[2, 0, 3], [2, 2], [150, 1]], ids=str)
def test_gradient_gives_every_row_that_of_its_group(sizes):
    rows = normals(6, sum(sizes), 2).requires_grad_()
    weight = normals(7, len(sizes), 2)
    (segment_sum(rows, bounds(sizes)) * weight).sum().backward()
    equal(rows.grad, torch.repeat_interleave(weight, torch.tensor(sizes), dim=0))


@pytest.mark.parametrize("sizes", LONG, ids=str)
def test_reruns_are_the_same_to_the_last_bit(sizes, device):
    rows = normals(8, 2, sum(sizes), 4, dtype=torch.float32, device=device)
    first = segment_sum(rows, bounds(sizes, device))
    for _ in range(3):
        equal(segment_sum(rows, bounds(sizes, device)), first)


def test_long_sums_in_single_precision_stay_accurate():
    """Two levels keep the rounding of a long group near that of its square root."""
    rows = 1 + 0.1 * normals(9, 40_000, 1, dtype=torch.float32)
    sizes = [39_999, 1]
    torch.testing.assert_close(segment_sum(rows, bounds(sizes)).double(), oracle(rows, sizes), rtol=2e-6, atol=0)


@pytest.mark.parametrize("ptr", [[0, 1, 5], [0, 1, 3], [1, 4], [0, 3, 2, 4], [0, 2, -1, 4]], ids=str)
def test_bounds_that_do_not_fit_the_rows_are_refused(ptr):
    with pytest.raises(DataError, match=rf"`ptr` must rise from 0 to the number of rows, 4, but it is {ptr[0]}, "):
        segment_sum(torch.zeros(4, 1), torch.tensor(ptr))


@PROPERTY
@given(kinds(), sizes_of_groups, st.lists(st.integers(1, 2), max_size=1), seeds)
def test_information_is_the_sum_of_scores_and_dense_products(
    device, dtype, close, kind_and_size, sizes, lead, seed
):
    kind, p = kind_and_size
    raw = normals(seed, *lead, sum(sizes), p + factor_width(kind, p), dtype=dtype, device=device)
    factor = factor_from_raw(raw[..., p:].double(), p, kind)
    total_score, total_fisher = segment_information(raw, p, bounds(sizes, device), kind, backend="reference")
    close(total_score, oracle(raw[..., :p], sizes).to(device, dtype))
    close(total_fisher, oracle(pack_symmetric(factor @ factor.mT), sizes).to(device, dtype))
    assert total_score.dtype == total_fisher.dtype == dtype


@pytest.mark.parametrize("kind", ["full", "diagonal", "rank-1"])
def test_gradient_of_the_information(kind):
    ptr, raw = bounds([2, 0, 3]), normals(1, 5, 2 + factor_width(kind, 2))
    gradcheck(lambda raw: segment_information(raw, 2, ptr, kind, backend="reference"), raw)


@pytest.mark.parametrize("form", ["score", "regression", "location"])
@pytest.mark.parametrize("kind", ["full", "diagonal"])
@pytest.mark.parametrize("p", [2, 5])  # narrow rows and wide ones take different ways
def test_forms_of_the_score(form, kind, p, device, dtype, close):
    raw = normals(4, 6, p + factor_width(kind, p), dtype=dtype, device=device)
    vector, factor = raw[:, :p].double(), factor_from_raw(raw[:, p:].double(), p, kind)
    by = {"score": torch.eye(p, device=device).double(), "regression": factor, "location": factor @ factor.mT}[form]
    expected = (by @ vector.unsqueeze(-1)).squeeze(-1).sum(0, keepdim=True)
    score, fisher = segment_information(raw, p, bounds([6], device), kind, form, backend="reference")
    close(score, expected.to(dtype))
    close(fisher, pack_symmetric(factor @ factor.mT).sum(0, keepdim=True).to(dtype))


def test_weights_and_order():
    raw, weight, order = normals(0, 6, 5), normals(1, 6).abs(), torch.tensor([5, 0, 2, 1, 4, 3])
    got = segment_information(raw, 2, bounds([2, 4]), weight=weight, order=order, backend="reference")
    rows = [segment_information(raw[i : i + 1], 2, bounds([1]), backend="reference") for i in range(6)]
    for part, total in enumerate(got):
        terms = [weight[i] * rows[i][part][0] for i in order]
        torch.testing.assert_close(total, torch.stack([sum(terms[:2]), sum(terms[2:])]))


def test_half_precision_is_summed_in_single():
    raw = torch.ones(5_000, 2, dtype=torch.bfloat16)
    score, fisher = segment_information(raw, 1, bounds([5_000]), "rank-1", backend="reference")
    assert score.dtype == fisher.dtype == torch.float32
    assert float(score) == float(fisher) == 5_000


def test_raw_outputs_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError, match=r"`raw` has shape \(4, 4\) but \(\.\.\., 5\) was expected"):
        segment_information(torch.zeros(4, 4), 2, bounds([4]))
    with pytest.raises(ShapeError, match=r"`raw` has shape \(5,\) but \(\*, n, p \+ w\) was expected"):
        segment_information(torch.zeros(5), 2, bounds([4]))
    with pytest.raises(ConfigError, match=r'`factor` is "rank-3" but'):
        segment_information(torch.zeros(4, 8), 2, bounds([4]), "rank-3")
    with pytest.raises(ConfigError, match=r'^`form` is "paper" but one of'):
        segment_information(torch.zeros(4, 5), 2, bounds([4]), form="paper")
    with pytest.raises(ConfigError, match=r'^The form "regression" needs a square factor but `kind` is "rank-1"\.$'):
        segment_information(torch.zeros(4, 4), 2, bounds([4]), "rank-1", "regression")


def test_a_switch_names_the_first_row_that_is_not_finite():
    raw = torch.zeros(6, 5)
    raw[3, 1], raw[4, 0] = torch.nan, torch.inf
    with pytest.raises(DataError, match=r"^Rows of `raw` are not finite at 3, 4; the first is 3, which holds"):
        segment_information(raw, 2, bounds([6]), check_finite=True)


def compress(sets: Sets) -> Information:
    """Rows are score (2) and raw factor (3); a stand-in for a network."""
    score, fisher_packed = segment_information(sets.values, 2, sets.offsets, backend="reference")
    fiducial = torch.zeros(2, dtype=sets.values.dtype)
    return Information(score, unpack_symmetric(fisher_packed), fiducial, sets.sizes)


@PROPERTY
@given(st.lists(st.tuples(*3 * [st.integers(0, 5)]), min_size=1, max_size=4), seeds)
def test_laws_of_aggregation(sizes, seed):
    parts = [
        Sets.from_list([normals(seed + 10 * part + i, n[part], 5) for i, n in enumerate(sizes)]) for part in range(3)
    ]
    a, b, c = (compress(part) for part in parts)
    check_merging(lambda x, y: x + y, Information.zero(2, (len(sizes),)), (a, b, c), same_information)
    check_compress_then_merge(compress, lambda x, y: x + y, parts[0], parts[1], same_information)
    check_permutation_invariance(compress, parts[0], torch.Generator().manual_seed(seed), same_information)
    check_batch_of_one(compress, parts[0], same_information)
