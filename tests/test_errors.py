"""Errors: their families, and the texts every layer shares."""

from __future__ import annotations

import pytest
import torch

from fishnets import errors
from fishnets.errors import FishnetsError, MissingExtraError, ShapeError, describe_rows

ERRORS = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error") and name != "FishnetsError"]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: e.__name__)
def test_every_error_is_ours_and_a_built_in_one(error):
    assert issubclass(error, FishnetsError)
    assert issubclass(error, (ValueError, RuntimeError, ArithmeticError, ImportError))
    assert error.__doc__


def test_missing_extra_names_what_to_install():
    with pytest.raises(MissingExtraError, match=r"^Plotting needs `matplotlib`, .*pip install .fishnets\[plots\].`\.$"):
        raise MissingExtraError("matplotlib", "plots", "Plotting")


@pytest.mark.parametrize(
    ("rows", "text"),
    [([], ""), ([7], "7"), ([1, 2, 3, 4, 5], "1, 2, 3, 4, 5"), (list(range(9)), "0, 1, 2, 3, 4 and 4 more")],
)
def test_long_lists_are_cut(rows, text):
    assert describe_rows(rows) == text


@pytest.mark.parametrize("shape", [(), (2,), (3, 2)])
def test_wrong_width_is_refused_with_its_hint(shape):
    with pytest.raises(ShapeError, match=r"^`score` has shape \(.*\) but \(\.\.\., 3\) was expected\. Try this\.$"):
        errors.expect_last_dim("score", torch.zeros(shape), 3, "Try this.")
    with pytest.raises(ShapeError, match=r"was expected\.$"):
        errors.expect_last_dim("score", torch.zeros(shape), 3)


@pytest.mark.parametrize("shape", [(), (3,), (3, 2), (2, 3), (2, 2)])
def test_matrix_of_another_size_is_refused(shape):
    with pytest.raises(ShapeError, match=r"^`fisher` has shape \(.*\) but \(\.\.\., 3, 3\) was expected\.$"):
        errors.expect_square("fisher", torch.zeros(shape), 3)


def test_right_shapes_pass():
    errors.expect_last_dim("score", torch.zeros(4, 3), 3)
    errors.expect_square("fisher", torch.zeros(4, 3, 3), 3)
    errors.expect_square("fisher", torch.zeros(2, 2))
