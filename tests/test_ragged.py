"""Sets: every way in gives the same rows, nothing is read that should not be, and each refusal says what is wrong."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.laws import check_printing, check_round_trip, equal, same_sets
from tests.strategies import PROPERTY, normals, seeds
from torch import Tensor

from fishnets.errors import ConfigError, DataError, NonFiniteError, ShapeError
from fishnets.ragged import Sets

sizes_of_sets = st.lists(st.integers(0, 4), min_size=1, max_size=6)
widths = st.integers(1, 3)


def make(sizes: list[int], width: int = 2, seed: int = 0, dtype: torch.dtype = torch.float64) -> Sets:
    """Sets of the given sizes; empty ones know their width."""
    return Sets.from_list([normals(seed + i, n, width, dtype=dtype) for i, n in enumerate(sizes)])


def padded(sets: Sets, padding: float = torch.nan) -> tuple[Tensor, Tensor]:
    """The same sets as a block with holes, real rows at the end of each line, and its mask."""
    longest = max(1, int(sets.sizes.max())) + 1
    block = sets.values.new_full((len(sets), longest, sets.num_features), padding)
    mask = torch.zeros(len(sets), longest, dtype=torch.bool)
    for i, rows in enumerate(sets.to_list()):
        block[i, longest - len(rows) :] = rows
        mask[i, longest - len(rows) :] = True
    return block, mask


@PROPERTY
@given(sizes_of_sets, widths, seeds, st.sampled_from([torch.float32, torch.float64]))
def test_every_constructor_gives_the_same_sets(sizes, width, seed, dtype):
    sets = make(sizes, width, seed, dtype)
    assert sets.sizes.tolist() == sizes
    assert (sets.num_sets, sets.num_data, sets.num_features) == (len(sizes), sum(sizes), width)
    assert len(sets) == len(sizes)
    equal(sets.values, torch.cat([normals(seed + i, n, width, dtype=dtype) for i, n in enumerate(sizes)]))
    equal(sets.index, torch.tensor([i for i, n in enumerate(sizes) for _ in range(n)], dtype=torch.int64))
    block, mask = padded(sets)
    same_sets(Sets.from_padded(block, mask), sets)
    same_sets(Sets.from_padded(block.numpy(), mask.to(torch.int64).numpy()), sets)
    same_sets(Sets.from_padded(block, mask.to(torch.float32)), sets)
    same_sets(Sets.from_offsets(sets.values, sets.offsets), sets)
    same_sets(Sets.from_offsets(sets.values.numpy(), sets.offsets.tolist()), sets)
    same_sets(Sets.from_index(sets.values, sets.index, len(sizes)), sets)
    same_sets(Sets.from_list([rows.numpy() for rows in sets.to_list()]), sets)


@PROPERTY
@given(sizes_of_sets, widths, seeds)
def test_rows_in_any_order_find_their_sets_and_keep_their_order_within(sizes, width, seed):
    sets = make(sizes, width, seed)
    # rows of different sets interleaved, each set's own in order
    rank = torch.arange(sets.num_data) - sets.offsets[sets.index]
    order = torch.argsort(rank * len(sets) + sets.index)
    same_sets(Sets.from_index(sets.values[order], sets.index[order].to(torch.int32), len(sizes)), sets)


@PROPERTY
@given(sizes_of_sets, widths, seeds)
def test_lists_go_in_and_come_out(sizes, width, seed):
    sets = make(sizes, width, seed)
    check_round_trip(Sets.to_list, Sets.from_list, sets, same_sets)
    assert [tuple(rows.shape) for rows in sets.to_list()] == [(n, width) for n in sizes]


@pytest.mark.parametrize("sizes", [[2, 0, 3], [1], [0, 4], [1, 1]])
def test_nested_tensors_go_in(sizes):
    sets = make(sizes)
    check_round_trip(
        lambda s: torch.nested.nested_tensor(s.to_list(), layout=torch.jagged), Sets.from_jagged, sets, same_sets
    )


@pytest.mark.parametrize("padding", [torch.nan, torch.inf, 1e30])
def test_padding_is_never_read(padding):
    sets = make([2, 0, 3])
    block, mask = padded(sets, padding)
    same_sets(Sets.from_padded(block, mask), sets)
    assert Sets.from_padded(block, mask, nonfinite="drop").dropped is None


@pytest.mark.parametrize(
    ("given_dtype", "kept"),
    [
        (torch.int64, torch.float32),
        (torch.uint8, torch.float32),
        (torch.bool, torch.float32),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_integers_and_half_precision_become_float32_and_float64_stays(given_dtype, kept):
    rows = torch.tensor([[0, 1], [1, 1], [1, 0]]).to(given_dtype)
    expected = rows.to(kept)
    for sets in (
        Sets.from_list([rows[:1], rows[1:]]),
        Sets.from_offsets(rows, [0, 1, 3]),
        Sets.from_index(rows, [0, 1, 1]),
        Sets.from_padded(rows[None], torch.ones(1, 3, dtype=torch.bool)),
    ):
        equal(sets.values, expected)


def test_float64_in_one_set_makes_all_float64():
    sets = Sets.from_list([torch.ones(1, 2), torch.ones(2, 2, dtype=torch.float64), np.ones((1, 2), dtype=np.int16)])
    assert sets.values.dtype == torch.float64


def test_offsets_need_not_be_contiguous():
    offsets = torch.tensor([0, 9, 2, 9, 5, 9])[::2]
    pieces = list(Sets.from_offsets(torch.zeros(5, 1), offsets).chunks(3))
    assert [piece.sizes.tolist() for _, piece in pieces] == [[2, 1], [2]]


def test_sets_of_no_and_of_one_row():
    sets = Sets.from_list([np.zeros((0, 3)), [], [[1.0, 2.0, 3.0]], np.zeros((0, 0))])
    assert sets.sizes.tolist() == [0, 0, 1, 0]
    assert sets.num_features == 3
    nothing = Sets.from_list([torch.zeros(0, 3)])
    assert (nothing.num_sets, nothing.num_data, nothing.num_features) == (1, 0, 3)
    assert list(nothing.chunks(5)) == []
    assert Sets.from_index(torch.zeros(0, 3), [], num_sets=2).sizes.tolist() == [0, 0]
    assert Sets.from_padded(torch.full((2, 4, 3), torch.nan), torch.zeros(2, 4)).sizes.tolist() == [0, 0]


@PROPERTY
@given(sizes_of_sets, seeds, st.integers(1, 30))
def test_chunks_hold_every_row_once_and_in_order(sizes, seed, max_data):
    sets = make(sizes, 2, seed)
    pieces = list(sets.chunks(max_data))
    assert sum(piece.num_data for _, piece in pieces) == sets.num_data
    assert all(1 <= piece.num_data <= max_data for _, piece in pieces)
    assert all(bool((piece.offsets.diff() >= 0).all()) for _, piece in pieces)
    rows: list[list[Tensor]] = [[] for _ in sizes]
    for first, piece in pieces:
        for number, part in enumerate(piece.to_list(), start=first):
            rows[number].append(part)
    for number, expected in enumerate(sets.to_list()):
        equal(torch.cat([expected[:0], *rows[number]]), expected)


@pytest.mark.parametrize("max_data", [0, -3])
def test_chunks_need_room_for_a_row(max_data):
    with pytest.raises(ConfigError, match=f"`max_data` is {max_data} but at least 1 was expected"):
        next(make([2]).chunks(max_data))


@PROPERTY
@given(sizes_of_sets, seeds, st.integers(1, 6))
def test_thinned_sets_keep_evenly_spaced_rows_in_order(sizes, seed, max_size):
    sets = make(sizes, 2, seed)
    thinned = sets.thinned(max_size)
    assert thinned.sizes.tolist() == [min(n, max_size) for n in sizes]
    for few, many in zip(thinned.to_list(), sets.to_list(), strict=True):
        for k, row in enumerate(few):
            place = int((many == row).all(1).nonzero())
            middle = (k + 0.5) * len(many) / len(few)  # of the k-th of as many equal parts
            assert abs(place + 0.5 - middle) <= 0.5


def test_sets_no_larger_than_asked_are_not_thinned():
    sets = make([3, 0, 5, 1])
    same_sets(sets.thinned(5), sets)
    same_sets(sets.thinned(10**9), sets)


@pytest.mark.parametrize("max_size", [0, -3])
def test_thinned_sets_need_room_for_a_row(max_size):
    with pytest.raises(ConfigError, match=f"`max_size` is {max_size} but at least 1 was expected"):
        make([2]).thinned(max_size)


@PROPERTY
@given(sizes_of_sets, seeds, st.data())
def test_selection_is_that_of_a_list(sizes, seed, data):
    sets = make(sizes, 2, seed)
    rows = sets.to_list()
    position = data.draw(st.integers(-len(sizes), len(sizes) - 1))
    numbers = data.draw(st.lists(st.integers(-len(sizes), len(sizes) - 1), max_size=5))
    bound = st.none() | st.integers(-8, 8)
    cut = slice(data.draw(bound), data.draw(bound), data.draw(st.sampled_from([None, 1, 2, 3])))
    for key in (position, np.int64(position), torch.tensor(position)):
        same_rows(sets[key], [rows[position]])
    same_rows(sets[torch.tensor(numbers, dtype=torch.int64)], [rows[i] for i in numbers])
    same_rows(sets[cut], rows[cut])
    chosen = torch.tensor([n > 1 for n in sizes])
    same_rows(sets[chosen], [r for r in rows if len(r) > 1])


def same_rows(sets: Sets, rows: list[Tensor]) -> None:
    assert len(sets) == len(rows)
    for actual, expected in zip(sets.to_list(), rows, strict=True):
        equal(actual, expected)


def test_iterating_gives_the_sets_one_by_one():
    sets = make([2, 0, 3])
    assert [one.num_data for one in sets] == [2, 0, 3]


@pytest.mark.parametrize("key", [3, -4])
def test_set_that_is_not_there_is_refused(key):
    with pytest.raises(IndexError, match=f"Set {key} was asked for but there are 3"):
        make([1, 2, 3])[key]


@PROPERTY
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=5), seeds)
def test_union_joins_set_by_set(sizes, seed):
    a, b = make([m for m, _ in sizes], 2, seed), make([n for _, n in sizes], 2, seed + 100)
    same_rows(a.union(b), [torch.cat(pair) for pair in zip(a.to_list(), b.to_list(), strict=True)])


@pytest.mark.parametrize(("sizes", "width"), [([1, 2, 3], 2), ([1, 2], 3)])
def test_union_of_unlike_batches_is_refused(sizes, width):
    with pytest.raises(ShapeError, match=rf"Cannot join 2 sets of width 2 with {len(sizes)} of width {width}; both"):
        make([1, 2]).union(make(sizes, width))


def test_concatenation_puts_batches_one_after_another():
    a, b = make([2, 0]), make([1], seed=9)
    same_rows(Sets.concatenate([a, b, a]), [*a.to_list(), *b.to_list(), *a.to_list()])
    with pytest.raises(DataError, match="no batches of sets to concatenate"):
        Sets.concatenate([])
    with pytest.raises(ShapeError, match="batches have 2, 3 features; they must agree"):
        Sets.concatenate([a, make([1], 3)])


def holes() -> list[Tensor]:
    rows = [torch.ones(2, 2), torch.ones(0, 2), torch.ones(4, 2)]
    rows[0][1, 0] = torch.nan
    rows[2][0, 1] = torch.inf
    rows[2][3, 0] = -torch.inf
    return rows


def every_way(rows: list[Tensor], nonfinite: str) -> list[object]:
    """The constructors, ready to be called, with the same data."""
    offsets = [0, *itertools.accumulate(len(r) for r in rows)]
    index = [i for i, r in enumerate(rows) for _ in r]
    block = torch.full((len(rows), 4, 2), 5.0)
    mask = torch.zeros(len(rows), 4, dtype=torch.bool)
    for i, r in enumerate(rows):
        block[i, : len(r)], mask[i, : len(r)] = r, True
    return [
        lambda: Sets.from_list(rows, nonfinite),
        lambda: Sets.from_padded(block, mask, nonfinite),
        lambda: Sets.from_offsets(torch.cat(rows), offsets, nonfinite),
        lambda: Sets.from_index(torch.cat(rows), index, len(rows), nonfinite),
        lambda: Sets.from_jagged(torch.nested.nested_tensor(rows, layout=torch.jagged), nonfinite),
    ]


@pytest.mark.parametrize("way", range(5))
def test_rows_that_are_not_finite_are_named_by_set_and_row(way):
    with pytest.raises(
        NonFiniteError,
        match=r"3 of 6 rows hold NaN or infinite values: set 0 row 1, set 2 row 0, set 2 row 3\. .*nonfinite=\"drop\"",
    ):
        every_way(holes(), "raise")[way]()


@pytest.mark.parametrize("way", range(5))
def test_rows_that_are_not_finite_can_be_left_out_and_are_counted(way):
    sets = every_way(holes(), "drop")[way]()
    equal(sets.values, torch.ones(3, 2))
    assert sets.sizes.tolist() == [1, 0, 2]
    assert sets.dropped.tolist() == [1, 0, 2]
    check_printing(sets, "num_data=3", "dropped=3")


def test_count_of_rows_left_out_follows_the_sets():
    sets = Sets.from_list(holes(), "drop")
    assert sets[2].dropped.tolist() == [2]
    assert sets[1:].dropped.tolist() == [0, 2]
    assert sets[torch.tensor([2, 0])].dropped.tolist() == [2, 1]
    assert sets.union(make([1, 1, 1])).dropped.tolist() == [1, 0, 2]
    assert Sets.concatenate([make([1]), sets]).dropped.tolist() == [0, 1, 0, 2]
    assert sets.to(dtype=torch.float64).dropped.tolist() == [1, 0, 2]


def test_long_lists_of_bad_rows_are_cut():
    with pytest.raises(NonFiniteError, match=r"8 of 8 rows .* set 1 row 0 and 3 more\."):
        Sets.from_offsets(torch.full((8, 1), torch.nan), [0, 4, 8])


def test_finite_check_of_sets_made_by_hand():
    sets = Sets(torch.tensor([[1.0], [torch.nan]]), torch.tensor([0, 0, 2]))
    with pytest.raises(NonFiniteError, match="set 1 row 1"):
        sets.check_finite()
    good = make([1, 2])
    assert good.check_finite() is good


def test_unknown_policy_is_refused():
    with pytest.raises(ConfigError, match='`nonfinite` is "ignore" but "raise" or "drop" was expected'):
        Sets.from_list([torch.zeros(1, 1)], "ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ([], DataError, "list of sets is empty; at least one set was expected"),
        ([[], []], DataError, r"Every set is empty and none tells .* Give .* \(0, num_features\)"),
        ([torch.zeros(2, 3), torch.zeros(1, 2)], ShapeError, r"`sets\[1\]` has 2 features but the first set has 3"),
        ([torch.zeros(2, 3), torch.zeros(0, 2)], ShapeError, r"`sets\[1\]` has 2 features but the first set has 3"),
        ([torch.zeros(2, 3), torch.zeros(4)], ShapeError, r"`sets\[1\]` has shape \(4,\) .*give shape \(n, 1\)"),
        ([torch.zeros(4), torch.zeros(2)], ShapeError, r"`sets\[0\]` has shape \(4,\) .*give shape \(n, 1\)"),
        ([1.0, 2.0], ShapeError, r"`sets\[0\]` has shape \(\) but \(n, num_features\)"),
        ([torch.zeros(2, 3, 1)], ShapeError, r"`sets\[0\]` has shape \(2, 3, 1\) but \(n, num_features\)"),
        ([torch.zeros(2, 0)], ShapeError, "rows have no features; at least one column"),
        ([np.zeros((1, 1), dtype=complex)], DataError, r"`sets\[0\]` is complex; give real and imaginary parts"),
        ([[["a"]]], DataError, r"`sets\[0\]` cannot be read as an array of numbers"),
        ([[[1.0, 2.0], [3.0]]], DataError, r"`sets\[0\]` cannot be read as an array of numbers"),
        ([[np.zeros(2), np.zeros(3)]], DataError, r"`sets\[0\]` cannot be read as an array of numbers"),
        ([None], DataError, r"`sets\[0\]` cannot be read as an array of numbers"),
    ],
)
def test_lists_that_are_no_sets_are_refused(arrays, error, message):
    with pytest.raises(error, match=message):
        Sets.from_list(arrays)


@pytest.mark.parametrize(
    ("values", "offsets", "error", "message"),
    [
        ((3, 2), [0, 2], DataError, "must rise from 0 to the number of rows, 3, but it runs from 0 to 2.$"),
        ((3, 2), [1, 3], DataError, "must rise from 0 .* but it runs from 1 to 3.$"),
        ((3, 2), [0, 2, 1, 3], DataError, "must rise from 0 .* and decreases on the way"),
        ((3, 2), [0], DataError, r"bounds no set; at least \[0, num_data\] was expected"),
        ((3, 2), [], DataError, "bounds no set"),
        ((3, 2), [0.0, 3.0], DataError, r"`offsets` has shape \(2,\) and dtype torch.float32 but a vector of integers"),
        ((3, 2), [True, False], DataError, r"dtype torch.bool but a vector of integers"),
        ((3, 2), [[0, 3]], DataError, r"`offsets` has shape \(1, 2\)"),
        ((3, 2), ["a"], DataError, "`offsets` cannot be read as an array of numbers"),
        ((3,), [0, 3], ShapeError, r"`values` has shape \(3,\) but \(num_data, num_features\) was expected"),
    ],
)
def test_offsets_that_bound_nothing_are_refused(values, offsets, error, message):
    with pytest.raises(error, match=message):
        Sets.from_offsets(torch.zeros(values), offsets)


@pytest.mark.parametrize(
    ("values", "index", "num_sets", "error", "message"),
    [
        ((3, 2), [0, 1], None, ShapeError, r"`values` has shape \(3, 2\) and `index` \(2,\) but \(num_data"),
        ((3,), [0, 1, 1], None, ShapeError, r"`values` has shape \(3,\)"),
        ((0, 2), [], None, DataError, "no rows, so the number of sets is unknown. Give `num_sets`"),
        ((3, 2), [0, -1, 1], None, DataError, "`index` runs from -1 to 1 but 0 to 1 was expected for 2 sets"),
        ((3, 2), [0, 1, 2], 2, DataError, "`index` runs from 0 to 2 but 0 to 1 was expected for 2 sets"),
        ((3, 2), [0.0, 1.0, 2.0], None, DataError, "`index` .* a vector of integers was expected"),
    ],
)
def test_index_that_names_no_set_is_refused(values, index, num_sets, error, message):
    with pytest.raises(error, match=message):
        Sets.from_index(torch.zeros(values), index, num_sets)


@pytest.mark.parametrize(
    ("values", "mask", "error", "message"),
    [
        ((2, 4, 3), torch.ones(2, 3), ShapeError, r"`values` has shape \(2, 4, 3\) and `mask` \(2, 3\) but"),
        ((2, 4), torch.ones(2, 4), ShapeError, r"`values` has shape \(2, 4\) and `mask` \(2, 4\) but"),
        ((2, 4, 3), torch.ones(2, 4, 3), ShapeError, r"`mask` \(2, 4, 3\) but"),
        ((1, 2, 1), torch.tensor([[0.5, 1.0]]), DataError, "`mask` holds values other than 0 and 1; give a boolean"),
        ((1, 2, 1), torch.tensor([[torch.nan, 1.0]]), DataError, "`mask` holds values other than 0 and 1"),
        ((1, 2, 1), [[None, 1]], DataError, "`mask` cannot be read as an array"),
    ],
)
def test_mask_that_does_not_fit_is_refused(values, mask, error, message):
    with pytest.raises(error, match=message):
        Sets.from_padded(torch.zeros(values), mask)


def test_tensor_that_is_not_jagged_is_refused():
    with pytest.raises(DataError, match=r"nested tensor of jagged layout was expected, as made by"):
        Sets.from_jagged(torch.zeros(2, 3, 1))


@pytest.mark.parametrize(
    ("values", "offsets", "message"),
    [
        (torch.zeros(3), torch.tensor([0, 3]), r"`values` has shape \(3,\) but \(num_data, num_features\)"),
        (torch.zeros(3, 1), torch.tensor([[0, 3]]), r"`offsets` has shape \(1, 2\) .*\(num_sets \+ 1,\) and"),
        (torch.zeros(3, 1), torch.tensor([], dtype=torch.int64), r"`offsets` has shape \(0,\)"),
        (torch.zeros(3, 1), torch.tensor([0, 3], dtype=torch.int32), "dtype torch.int32 but"),
    ],
)
def test_state_made_by_hand_is_checked_for_its_shape(values, offsets, message):
    with pytest.raises(ShapeError, match=message):
        Sets(values, offsets)


def test_state_cannot_be_changed():
    with pytest.raises(AttributeError):
        make([1]).values = torch.zeros(1, 2)  # type: ignore[misc]


def test_moves_to_a_device_and_dtype(device):
    sets = make([2, 1]).to(device, torch.float32)
    assert sets.device.type == sets.offsets.device.type == device.type
    assert sets.values.dtype == torch.float32
    same_sets(sets[1].to("cpu"), make([2, 1], dtype=torch.float32)[1])


def test_printing():
    check_printing(make([2, 0]), "num_sets=2", "num_data=2", "num_features=2")
    assert "dropped" not in repr(make([2]))
