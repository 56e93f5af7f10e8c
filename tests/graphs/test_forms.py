"""Forms: rows of information are those of dense algebra, message by message."""

from __future__ import annotations

import pytest
import torch
from tests.graphs.dense import dense_parts
from torch import Tensor

from fishnets.algebra import unpack_symmetric
from fishnets.errors import ConfigError, ShapeError
from fishnets.graphs.forms import expect_form, information_rows, num_outputs

FORMS = ("regression", "location", "paper", "legacy")
every_form = pytest.mark.parametrize("form", FORMS)
SOLVED = {torch.float64: {"rtol": 1e-8, "atol": 1e-8}, torch.float32: {"rtol": 1e-2, "atol": 1e-3}}  # ill-conditioned


def split(rows: Tensor, p: int) -> tuple[Tensor, Tensor]:
    return rows[..., :p], unpack_symmetric(rows[..., p:])


def softplus_diagonal(square: list[list[float]]) -> Tensor:
    matrix = torch.tensor(square, dtype=torch.float64)
    matrix.diagonal().exp_().log1p_()
    return matrix


@every_form
@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_rows_are_scores_and_fisher_matrices_of_dense_algebra(form, p, generator, device, dtype, close) -> None:
    raw = torch.randn(7, num_outputs(p), generator=generator, device=device, dtype=dtype)
    score, fisher = split(information_rows(raw, p, form), p)
    expected_score, expected_fisher = dense_parts(raw, p, form)
    close(score, expected_score.to(dtype))
    close(fisher, expected_fisher.to(dtype))


@every_form
def test_any_batch_shape_and_none(form, generator, device, dtype, close) -> None:
    raw = torch.randn(2, 4, 3, num_outputs(2), generator=generator, device=device, dtype=dtype)
    rows = information_rows(raw, 2, form)
    assert rows.shape == raw.shape
    close(rows[1, 2, 0], information_rows(raw[1, 2, 0], 2, form))
    assert information_rows(raw[:0], 2, form).shape == (0, 4, 3, 5)


def test_a_location_is_what_its_own_information_estimates(generator, device, dtype) -> None:
    raw = torch.randn(7, num_outputs(3), generator=generator, device=device, dtype=dtype)
    score, fisher = split(information_rows(raw, 3, "location"), 3)
    torch.testing.assert_close(torch.linalg.solve(fisher, score), raw[:, :3], **SOLVED[dtype])


def test_summed_locations_are_a_precision_weighted_mean(generator, device, dtype) -> None:
    raw = torch.randn(7, num_outputs(3), generator=generator, device=device, dtype=dtype)
    score, fisher = split(information_rows(raw, 3, "location").sum(0), 3)
    each = dense_parts(raw, 3, "location")[1]
    weights = torch.linalg.inv(each.sum(0)) @ each  # (7, 3, 3), add to the identity
    mean = (weights @ raw.double()[:, :3, None]).sum(0).squeeze(-1)
    torch.testing.assert_close(torch.linalg.solve(fisher, score), mean.to(dtype), **SOLVED[dtype])


def test_responses_are_solved_by_least_squares(generator, device, dtype) -> None:
    """Seven messages are 21 equations L^T z = a in three unknowns."""
    raw = torch.randn(7, num_outputs(3), generator=generator, device=device, dtype=dtype)
    score, fisher = split(information_rows(raw, 3, "regression").sum(0), 3)
    design = torch.linalg.cholesky(dense_parts(raw, 3, "regression")[1]).mT.flatten(0, 1)
    solution = torch.linalg.lstsq(design, raw.double()[:, :3].flatten()).solution
    torch.testing.assert_close(torch.linalg.solve(fisher, score), solution.to(dtype), **SOLVED[dtype])


@pytest.mark.parametrize("form", ["paper", "legacy"])
def test_the_papers_score_is_the_vector_itself(form, generator, device, dtype) -> None:
    raw = torch.randn(7, num_outputs(3), generator=generator, device=device, dtype=dtype)
    assert torch.equal(information_rows(raw, 3, form)[:, :3], raw[:, :3])


def test_the_factor_is_lower_triangular_but_for_the_legacy_fill() -> None:
    """By hand: 1..6 fill a triangle row by row, or both triangles of a square."""
    raw = torch.cat([torch.zeros(3), torch.arange(1.0, 7.0)]).double()
    triangle = softplus_diagonal([[1, 0, 0], [2, 3, 0], [4, 5, 6]])
    square = softplus_diagonal([[4, 5, 6], [6, 5, 4], [3, 2, 1]])
    for form, factor in (("regression", triangle), ("location", triangle), ("paper", triangle), ("legacy", square)):
        torch.testing.assert_close(split(information_rows(raw, 3, form), 3)[1], factor @ factor.T)


def test_the_legacy_fill_of_two_parameters() -> None:
    factor = softplus_diagonal([[3, 3], [2, 1]])
    fisher = split(information_rows(torch.tensor([0.0, 0.0, 1.0, 2.0, 3.0]).double(), 2, "legacy"), 2)[1]
    torch.testing.assert_close(fisher, factor @ factor.T)


@every_form
def test_gradients_of_first_and_second_order(form, generator, device) -> None:
    options = {"generator": generator, "device": device, "dtype": torch.float64, "requires_grad": True}
    raw = torch.randn(3, num_outputs(2), **options)
    with torch.random.fork_rng():  # the checks draw directions
        assert torch.autograd.gradcheck(lambda raw: information_rows(raw, 2, form), raw)
        assert torch.autograd.gradgradcheck(lambda raw: information_rows(raw, 2, form), raw)


@pytest.mark.parametrize(("p", "number"), [(1, 2), (2, 5), (8, 44), (10, 65)])
def test_numbers_per_message(p: int, number: int) -> None:
    assert num_outputs(p) == number


def test_an_unknown_form_is_refused_by_name() -> None:
    for form in FORMS:
        expect_form(form)
    names = '"regression", "location", "paper" or "legacy"'
    with pytest.raises(ConfigError, match=rf"^`form` is 'papr' but {names} was expected\.$"):
        expect_form("papr")


@every_form
def test_a_wrong_number_of_outputs_is_refused(form) -> None:
    with pytest.raises(ShapeError, match=r"^`raw` has shape \(4, 8\) but \(\.\.\., 9\) was expected\.$"):
        information_rows(torch.zeros(4, 8), 3, form)
