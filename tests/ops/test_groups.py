"""Groups of rows: bounds and order, remembered for as long as an index lives and stays the same."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import PROPERTY

from fishnets.errors import DataError, ShapeError
from fishnets.ops import groups, memory
from fishnets.ops.groups import expect_bounds, group_rows


@PROPERTY
@given(st.lists(st.integers(0, 5), max_size=30), st.integers(6, 9))
def test_positions_hold_the_rows_of_their_group_in_order(device, index, num_groups):
    found = group_rows(torch.tensor(index, dtype=torch.int64, device=device), num_groups)
    ptr = found.ptr.tolist()
    order = list(range(len(index))) if found.order is None else found.order.tolist()
    assert len(ptr) == num_groups + 1
    assert (ptr[0], ptr[-1]) == (0, len(index))
    for group in range(num_groups):
        assert order[ptr[group] : ptr[group + 1]] == [row for row, g in enumerate(index) if g == group]


def test_rows_in_order_need_none():
    assert group_rows(torch.tensor([0, 0, 2]), 4).order is None
    assert group_rows(torch.tensor([2, 0, 0]), 4).order is not None


def test_an_index_is_sorted_once(monkeypatch):
    edges = torch.tensor([[0, 1, 2], [1, 0, 1]])
    first = group_rows(edges[1], 2)
    monkeypatch.setattr(groups, "_sorted", None)
    assert group_rows(edges[1], 2) is first  # another view of the same tensor


def test_a_changed_index_another_part_and_another_number_are_grouped_anew():
    edges = torch.tensor([[0, 1, 1], [1, 0, 1]])
    first = group_rows(edges[1], 2)
    assert group_rows(edges[0], 2).order is None
    assert len(group_rows(edges[1], 3).ptr) == 4
    assert len(group_rows(edges[1, :2], 2).order) == 2
    edges[1, 0] = 0
    assert group_rows(edges[1], 2).order is None
    assert first.order.tolist() == [1, 0, 2]


def test_nothing_outlives_its_index():
    memory._MEMORY.clear()
    index = torch.tensor([1, 0])
    group_rows(index, 2)
    assert len(memory._MEMORY) == 1
    del index
    gc.collect()
    assert not memory._MEMORY


def test_only_the_last_few_are_remembered():
    kept = [torch.tensor([1, 0, i]) for i in range(2 * memory.REMEMBERED)]
    for index in kept:
        group_rows(index, 100)
    assert len(memory._MEMORY) == memory.REMEMBERED


def test_tensors_of_inference_mode_are_grouped_each_time():
    with torch.inference_mode():
        index = torch.tensor([1, 0])
        assert group_rows(index, 2).order.tolist() == [1, 0]


@pytest.mark.parametrize("index", [[0, 3], [-1, 2]])
def test_an_index_out_of_range_is_refused(index):
    low, high = min(index), max(index)
    with pytest.raises(DataError, match=rf"^`index` runs from {low} to {high} but there are 3 groups, 0 to 2\.$"):
        group_rows(torch.tensor(index), 3)


def test_bounds_are_looked_at_once_and_again_when_they_change():
    ptr = torch.tensor([0, 2, 5])
    expect_bounds(ptr, 5)
    expect_bounds(ptr, 5)
    ptr[1] = 7
    with pytest.raises(DataError, match=r"^`ptr` must rise from 0 to the number of rows, 5, but it is 0, 7, 5\.$"):
        expect_bounds(ptr, 5)


@pytest.mark.parametrize("ptr", [[0, 3, 2, 5], [1, 5], [0, 4], [-1, 5]])
def test_bounds_that_do_not_fit_are_refused(ptr):
    with pytest.raises(DataError, match=r"^`ptr` must rise from 0 to the number of rows, 5, but it is "):
        expect_bounds(torch.tensor(ptr), 5)


@pytest.mark.parametrize("ptr", [torch.zeros(2).int(), torch.zeros(1, 2), torch.zeros(0).long()])
def test_bounds_of_another_kind_are_refused(ptr):
    with pytest.raises(ShapeError, match=r"^`ptr` is torch\..* but int64 of shape \(g \+ 1,\) was expected\.$"):
        expect_bounds(ptr, 5)
