"""Packed triangles: round trips, the one order, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.laws import equal
from tests.strategies import PROPERTY, gradcheck, normals, num_params, seeds

from fishnets.algebra.packing import (
    diagonal_positions,
    num_params_of,
    pack_symmetric,
    packed_size,
    triangle_from_packed,
    unpack_symmetric,
)
from fishnets.errors import ShapeError

batches = st.lists(st.integers(0, 3), max_size=2)


@PROPERTY
@given(batches, num_params, seeds)
def test_packed_entries_survive_the_square_matrix(device, dtype, batch, p, seed):
    packed = normals(seed, *batch, packed_size(p), dtype=dtype, device=device)
    symmetric = unpack_symmetric(packed)
    assert symmetric.shape == (*batch, p, p)
    equal(symmetric, symmetric.mT)
    equal(pack_symmetric(symmetric), packed)
    triangle = triangle_from_packed(packed)
    equal(triangle, symmetric.tril())
    equal(pack_symmetric(triangle), packed)


@PROPERTY
@given(num_params, seeds)
def test_symmetric_matrix_survives_packing_even_when_not_contiguous(device, dtype, p, seed):
    square = normals(seed, p, p, 3, dtype=dtype, device=device)
    symmetric = (square + square.transpose(0, 1)).movedim(-1, 0)
    equal(unpack_symmetric(pack_symmetric(symmetric)), symmetric)


def test_entries_go_row_by_row_through_the_lower_triangle():
    expected = torch.tensor([[0, 0, 0], [1, 2, 0], [3, 4, 5]])
    equal(triangle_from_packed(torch.arange(6)), expected)
    equal(unpack_symmetric(torch.arange(6)), expected + expected.tril(-1).mT)


@pytest.mark.parametrize("p", [1, 2, 3, 7])
def test_order_is_that_of_torch(p):
    rows, cols = torch.tril_indices(p, p)
    matrix = torch.arange(p * p).reshape(p, p)
    equal(pack_symmetric(matrix), matrix[rows, cols])
    equal(pack_symmetric(matrix)[diagonal_positions(p)], matrix.diagonal())


def test_packing_is_linear_so_packed_symmetric_matrices_may_be_summed(close):
    parts = normals(0, 5, 6)
    close(unpack_symmetric(parts.sum(0)), unpack_symmetric(parts).sum(0))


def test_upper_triangle_is_never_read():
    matrix = torch.tensor([[1.0, torch.nan], [2.0, 3.0]])
    equal(pack_symmetric(matrix), torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("p", range(1, 40))
def test_size_and_number_of_parameters_invert_each_other(p):
    assert num_params_of(packed_size(p)) == p


@pytest.mark.parametrize("width", [2, 4, 5, 7, 8, 9, 11])
@pytest.mark.parametrize("unpack", [triangle_from_packed, unpack_symmetric])
def test_width_that_is_no_triangle_is_refused(unpack, width):
    with pytest.raises(ShapeError, match=rf"p\(p\+1\)/2 entries \(1, 3, 6, 10, \.\.\.\) but {width} were given"):
        unpack(torch.zeros(4, width))


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_matrix_that_is_not_square_is_refused(shape):
    with pytest.raises(ShapeError, match=r"`matrix` has shape .* but \(\.\.\., 3, 3\) was expected"):
        pack_symmetric(torch.zeros(shape))


@pytest.mark.parametrize("function", [triangle_from_packed, unpack_symmetric])
def test_gradient_of_unpacking(function):
    gradcheck(function, normals(0, 2, 6))


def test_gradient_of_packing():
    gradcheck(pack_symmetric, normals(0, 2, 3, 3))
