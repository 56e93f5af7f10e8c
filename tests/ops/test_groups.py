"""Groups of rows: bounds and order, remembered for as long as an index lives and stays the same."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import PROPERTY

from fishnets.errors import DataError
from fishnets.ops import groups
from fishnets.ops.groups import group_rows


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
    groups._MEMORY.clear()
    index = torch.tensor([1, 0])
    group_rows(index, 2)
    assert len(groups._MEMORY) == 1
    del index
    gc.collect()
    assert not groups._MEMORY


def test_only_the_last_few_are_remembered():
    kept = [torch.tensor([1, 0, i]) for i in range(3 * groups.REMEMBERED)]
    for index in kept:
        group_rows(index, 100)
    assert len(groups._MEMORY) == groups.REMEMBERED


def test_tensors_of_inference_mode_are_grouped_each_time():
    with torch.inference_mode():
        index = torch.tensor([1, 0])
        assert group_rows(index, 2).order.tolist() == [1, 0]


@pytest.mark.parametrize("index", [[0, 3], [-1, 2]])
def test_an_index_out_of_range_is_refused(index):
    low, high = min(index), max(index)
    with pytest.raises(DataError, match=rf"^`index` runs from {low} to {high} but there are 3 groups, 0 to 2\.$"):
        group_rows(torch.tensor(index), 3)
