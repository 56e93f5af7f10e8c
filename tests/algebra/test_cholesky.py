"""Raw outputs to factors and Fisher matrices, and the solves; against dense algebra."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.laws import equal
from tests.strategies import PROPERTY, conditions, gradcheck, kinds, normals, num_params, positive_definite, seeds
from torch.nn.functional import softplus

from fishnets.algebra.cholesky import (
    cholesky,
    factor_from_raw,
    factor_rank,
    factor_width,
    fisher_packed_from_raw,
    inverse_softplus,
    log_determinant,
    solve,
)
from fishnets.algebra.packing import pack_symmetric, unpack_symmetric
from fishnets.errors import ConfigError, NotPositiveDefiniteError, ShapeError

KINDS = ["full", "diagonal", "rank-1", "rank-2"]


@PROPERTY
@given(num_params, seeds, st.sampled_from([0.1, 1.0, 10.0]))
def test_full_factor_is_lower_triangular_with_positive_diagonal(device, dtype, p, seed, spread):
    raw = spread * normals(seed, 3, factor_width("full", p), dtype=dtype, device=device)
    factor = factor_from_raw(raw, p)
    assert factor.shape == (3, p, p)
    equal(factor, factor.tril())
    assert bool((factor.diagonal(dim1=-2, dim2=-1) > 0).all())
    below = torch.ones(p, p, dtype=torch.bool, device=device).tril(-1)
    equal(pack_symmetric(factor * below), pack_symmetric(below) * raw)


@PROPERTY
@given(kinds(), seeds, st.lists(st.integers(0, 3), max_size=2))
def test_packed_fisher_is_the_packed_dense_product(device, dtype, close, kind_and_size, seed, batch):
    kind, p = kind_and_size
    raw = normals(seed, *batch, factor_width(kind, p), dtype=dtype, device=device)
    factor = factor_from_raw(raw, p, kind)
    assert factor.shape == (*batch, p, factor_rank(kind, p))
    close(fisher_packed_from_raw(raw, p, kind), pack_symmetric(factor @ factor.mT))


@PROPERTY
@given(kinds(), seeds)
def test_fisher_is_positive_semidefinite_and_of_the_rank_of_its_factor(kind_and_size, seed):
    kind, p = kind_and_size
    fisher = unpack_symmetric(fisher_packed_from_raw(normals(seed, factor_width(kind, p)), p, kind))
    eigenvalues = torch.linalg.eigvalsh(fisher)
    noise = 1e-12 * float(eigenvalues[-1])
    assert float(eigenvalues[0]) >= -noise
    assert int((eigenvalues > noise).sum()) <= factor_rank(kind, p)


def test_diagonal_factor_gives_softplus_squared(close, dtype):
    raw = normals(1, 4, 3, dtype=dtype)
    close(unpack_symmetric(fisher_packed_from_raw(raw, 3, "diagonal")), torch.diag_embed(softplus(raw).square()))


def test_rank_one_reaches_the_fisher_matrix_of_a_scalar_datum():
    gradient = torch.tensor([2.0, -3.0])
    equal(unpack_symmetric(fisher_packed_from_raw(gradient, 2, "rank-1")), torch.outer(gradient, gradient))


def test_raw_outputs_may_be_non_contiguous(close, dtype):
    raw = normals(2, 6, 4, dtype=dtype).mT  # (4, 6)
    close(fisher_packed_from_raw(raw, 3), fisher_packed_from_raw(raw.contiguous(), 3))
    close(factor_from_raw(raw, 3, "rank-2"), factor_from_raw(raw.contiguous(), 3, "rank-2"))


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_of_factor_and_fisher(kind):
    raw = normals(3, 2, factor_width(kind, 3))
    gradcheck(lambda x: fisher_packed_from_raw(x, 3, kind), raw)
    gradcheck(lambda x: factor_from_raw(x, 3, kind), raw)


@pytest.mark.parametrize("kind", ["rank-0", "rank-4", "rank-", "rank-1.5", "rank-01", "lower", "Full", ""])
@pytest.mark.parametrize("function", [factor_rank, factor_width])
def test_unknown_kind_is_refused(function, kind):
    with pytest.raises(ConfigError, match=rf'`factor` is "{kind}" but "full", "diagonal" or "rank-r" with 1 <= r <= 3'):
        function(kind, 3)


@pytest.mark.parametrize("function", [factor_from_raw, fisher_packed_from_raw])
def test_wrong_number_of_raw_outputs_is_refused(function):
    with pytest.raises(ShapeError, match=r'`raw` has shape \(4, 5\) but \(\.\.\., 6\) .*the width of a "full" factor'):
        function(torch.zeros(4, 5), 3)


@pytest.mark.parametrize("value", [1e-8, 0.01, 1.0, 50.0, 1e4])
def test_inverse_softplus_inverts_softplus(value):
    x = inverse_softplus(value)
    assert math.isclose(float(softplus(torch.tensor(x, dtype=torch.float64))), value, rel_tol=1e-7)


@PROPERTY
@given(num_params, seeds, conditions)
def test_solve_and_log_determinant_agree_with_dense_algebra(close, dtype, device, p, seed, condition):
    fisher, vector = positive_definite(seed, 3, p, condition=condition), normals(seed + 1, 3, p)
    # the oracle is float64 algebra on the rounded input; what is asked of the solution is a small residual
    given_fisher, given_vector = fisher.to(device, dtype), vector.to(device, dtype)
    solution = solve(given_fisher, given_vector)
    close((given_fisher @ solution.unsqueeze(-1)).squeeze(-1) / condition, given_vector / condition)
    sign, expected = torch.linalg.slogdet(given_fisher.to("cpu", torch.float64))
    assert bool((sign == 1).all())
    close(log_determinant(given_fisher), expected.to(device, dtype))


def test_solve_and_log_determinant_reach_float64_precision():
    fisher, vector = positive_definite(5, 4, 3, condition=1e6), normals(6, 4, 3)
    expected = torch.linalg.solve(fisher, vector.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(solve(fisher, vector), expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(log_determinant(fisher), torch.linalg.slogdet(fisher)[1], rtol=1e-9, atol=0)


def test_gradient_of_solve_and_log_determinant():
    lower = positive_definite(7, 2, 3)
    gradcheck(lambda m, v: solve(m + m.mT, v), lower, normals(8, 2, 3))
    gradcheck(lambda m: log_determinant(m + m.mT), lower)


def test_solve_refuses_a_vector_of_another_width():
    with pytest.raises(ShapeError, match=r"`vector` has shape \(2,\) but \(\.\.\., 3\) was expected"):
        solve(torch.eye(3), torch.zeros(2))


def matrices(*batch: int) -> torch.Tensor:
    return torch.eye(2, dtype=torch.float64).expand(*batch, 2, 2).clone()


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (torch.tensor([[1.0, 2.0], [2.0, 1.0]]), "indefinite or singular"),
        (torch.zeros(2, 2), "indefinite or singular"),
        (torch.tensor([[1.0, torch.nan], [torch.nan, 1.0]]), "not finite"),
        (torch.tensor([[torch.inf, 0.0], [0.0, 1.0]]), "not finite"),
    ],
)
def test_failing_batch_element_is_named_with_its_kind_of_failure(bad, kind):
    fisher = matrices(4)
    fisher[2] = bad
    with pytest.raises(NotPositiveDefiniteError, match=f"`fisher` is {kind} at batch element 2, so it has no Cholesky"):
        cholesky(fisher)
    with pytest.raises(NotPositiveDefiniteError, match=f"`fisher` is {kind}, so it has no Cholesky factor. An empty"):
        cholesky(bad)


def test_each_kind_of_failure_names_its_own_elements():
    fisher = matrices(4)
    fisher[0] = 0
    fisher[2] = torch.nan
    fisher[3] = -fisher[3]
    with pytest.raises(
        NotPositiveDefiniteError,
        match="not finite at batch element 2 and indefinite or singular at batch element 0, 3, so",
    ):
        cholesky(fisher)


def test_failing_element_of_a_deeper_batch_is_named_by_all_its_numbers():
    fisher = matrices(2, 3)
    fisher[1, 2] = -fisher[1, 2]
    with pytest.raises(NotPositiveDefiniteError, match=r"at batch element \(1, 2\), so"):
        log_determinant(fisher)


def test_long_lists_of_failures_are_cut():
    with pytest.raises(NotPositiveDefiniteError, match="at batch element 0, 1, 2, 3, 4 and 3 more"):
        solve(-matrices(8), torch.zeros(8, 2, dtype=torch.float64))


def test_failure_of_another_matrix_carries_its_name_and_no_advice_about_sets():
    with pytest.raises(NotPositiveDefiniteError, match=r"`covariance` is indefinite .* positive-definite matrix"):
        cholesky(-matrices(), "covariance")


def test_matrix_that_is_not_square_is_refused():
    with pytest.raises(ShapeError, match=r"`fisher` has shape \(2, 3\) but \(\.\.\., 3, 3\) was expected"):
        cholesky(torch.zeros(2, 3))
