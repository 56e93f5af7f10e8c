"""Users' arrays: read in any layout and byte order, sharing memory where it can be, or refused by name."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from tests.laws import equal
from torch import nn

from fishnets.arrays import as_float, as_integers, as_rows, as_tensor, available_device, fingerprint
from fishnets.errors import BackendUnavailableError, ConfigError, DataError, ShapeError
from fishnets.ragged import Sets

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "rows",
    [
        np.arange(12.0).reshape(6, 2)[::2],
        np.arange(12.0).reshape(6, 2)[::-2],
        np.asfortranarray(np.arange(6.0).reshape(3, 2)),
        np.broadcast_to(np.array([1.0, 2.0]), (3, 2)),
        np.arange(6.0).reshape(3, 2).astype(">f8"),
        torch.arange(6.0).reshape(2, 3).mT,
        torch.arange(12.0).reshape(6, 2)[::2],
        [np.array([1.0, 2.0]), np.array([3.0, 4.0])],
        [[1, 2], [3, 4]],
        ((1.0, 2.0), (3.0, 4.0)),
    ],
    ids=["strided", "reversed", "fortran", "frozen", "big-endian", "transposed", "sliced", "rows", "lists", "tuples"],
)
def test_any_layout_is_read(rows):
    expected = torch.tensor(np.array([np.asarray(row) for row in rows], dtype=np.float64))
    number = len(rows)
    equal(as_float(rows, "values").double(), expected)
    for sets in (Sets.from_list([rows]), Sets.from_offsets(rows, [0, number]), Sets.from_index(rows, [0] * number)):
        equal(sets.values.double(), expected)
        equal(sets.offsets, torch.tensor([0, number]))


def test_memory_is_shared_where_torch_can():
    array = np.zeros((3, 2))
    as_tensor(array, "values")[1, 1] = 7.0
    assert array[1, 1] == 7.0
    array.flags.writeable = False
    as_tensor(array, "values")[1, 1] = 8.0
    assert array[1, 1] == 7.0, "what must not be written is copied"


def test_what_is_no_array_of_real_numbers_is_refused_by_name():
    with pytest.raises(DataError, match="`mask` cannot be read as an array of numbers"):
        as_tensor([["a"]], "mask")
    with pytest.raises(DataError, match="`values` is complex; give real and imaginary parts as two features"):
        as_float(np.zeros(2, dtype=complex), "values")


@pytest.mark.parametrize("array", [[0, 2, 5], np.array([0, 2, 5], dtype=np.uint8), torch.tensor([0, 9, 2, 9, 5])[::2]])
def test_integers_become_contiguous_int64(array):
    vector = as_integers(array, "offsets", CPU)
    equal(vector, torch.tensor([0, 2, 5]))
    assert vector.is_contiguous()


@pytest.mark.parametrize("array", [[0.0, 1.0], [[0, 1]], [True, False], 3], ids=repr)
def test_what_is_no_vector_of_integers_is_refused(array):
    with pytest.raises(DataError, match=r"`index` has shape .* and dtype .* but a vector of integers was expected"):
        as_integers(array, "index", CPU)


@pytest.mark.parametrize("shape", [(0,), (0, 0), (0, 3)])
def test_a_set_without_rows_takes_the_width_of_the_others(shape):
    assert as_rows(torch.zeros(shape), 3, "sets[1]").shape == (0, 3)


def test_rows_of_another_width_are_refused():
    for shape in [(0, 2), (4, 2)]:
        with pytest.raises(ShapeError, match=r"`sets\[1\]` has 2 features but the first set has 3"):
            as_rows(torch.zeros(shape), 3, "sets[1]")


def test_devices_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BackendUnavailableError, match='`device` is "cuda" but torch sees no GPU; use "cpu"'):
        available_device("cuda")
    with pytest.raises(ConfigError, match='`device` is "gpu" but "cpu", "cuda"'):
        available_device("gpu")


def test_fingerprint_is_of_names_kinds_shapes_and_numbers() -> None:
    x, y = torch.arange(6.0).reshape(2, 3), torch.tensor([1, 2])
    found = fingerprint(x=x, y=y)
    assert len(found) == 64
    assert fingerprint(y=y.clone(), x=x.clone(), z=None) == found  # in any order, without what is not there
    assert fingerprint(x=x.T.contiguous().T, y=nn.Parameter(y.float()).long()) == found  # wherever the numbers lie
    changed = x.clone()
    changed[1, 2] += 1
    others = [
        fingerprint(x=changed, y=y),
        fingerprint(x=x),
        fingerprint(x=y, y=x),
        fingerprint(x=x, w=y),
        fingerprint(x=x.reshape(3, 2), y=y),
        fingerprint(x=x, y=y.int()),
        fingerprint(x=x.view(torch.int32), y=y),  # the same bytes
    ]
    assert len({found, *others}) == 8


def test_fingerprint_knows_every_precision() -> None:
    x = torch.tensor([1.5, -2.0])
    kinds = [x.to(dtype) for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.bool)]
    shapes = [x, x[0], x[:0], x[:0].long()]
    assert len({fingerprint(x=one) for one in (*kinds, *shapes)}) == 9
    expected = hashlib.sha256(b"x torch.float32 (2,)" + np.float32([1.5, -2.0]).tobytes())
    assert fingerprint(x=x) == expected.hexdigest()
