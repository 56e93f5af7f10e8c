"""Small systems: the fused solve gives the reference's values and gradients, of first and second order."""

from __future__ import annotations

import pytest
import torch
from tests.strategies import normals
from torch import Tensor

from fishnets.algebra import pack_symmetric, unpack_symmetric
from fishnets.errors import BackendUnavailableError, ShapeError
from fishnets.ops.solve_information import solve_information, solve_information_backend

every_size = pytest.mark.parametrize("p", [1, 2, 3, 8, 13])


def systems(p: int, *lead: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    square = normals(p, *lead, p, p, dtype=dtype, device=device)
    matrix = pack_symmetric(square @ square.mT + torch.eye(p, dtype=dtype, device=device))
    return normals(p + 1, *lead, p, dtype=dtype, device=device), matrix


@every_size
@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_estimates_and_log_determinants_are_those_of_dense_algebra(backend, p, device, dtype, close):
    score, matrix = systems(p, 2, 35, dtype=dtype, device=device)
    estimate, log_determinant = solve_information(score, matrix, backend)
    dense = unpack_symmetric(matrix.double())
    close(estimate, torch.linalg.solve(dense, score.double()).to(dtype))
    close(log_determinant, torch.logdet(dense).to(dtype))


@every_size
@pytest.mark.parametrize("which", ["estimate", "log-determinant", "both"])
def test_gradients_are_those_of_the_reference(which, p, device, close):
    found = {}
    for backend in ("reference", "fused"):
        score, matrix = (x.requires_grad_() for x in systems(p, 35, dtype=torch.float64, device=device))
        estimate, log_determinant = solve_information(score, matrix, backend)
        loss = torch.zeros((), dtype=torch.float64, device=device)
        if which != "log-determinant":
            loss = loss + (estimate * normals(9, 35, p, device=device)).sum()
        if which != "estimate":
            loss = loss + (log_determinant * normals(8, 35, device=device)).sum()
        loss.backward()
        found[backend] = (torch.zeros_like(score) if score.grad is None else score.grad, matrix.grad)
    for ours, theirs in zip(found["fused"], found["reference"], strict=True):
        close(ours, theirs)


def test_gradients_of_first_and_second_order():
    score, matrix = (x.requires_grad_() for x in systems(3, 4, dtype=torch.float64))
    with torch.random.fork_rng():  # the checks draw directions
        torch.manual_seed(0)
        assert torch.autograd.gradcheck(lambda t, A: solve_information(t, A, "fused"), (score, matrix))
        assert torch.autograd.gradgradcheck(lambda t, A: solve_information(t, A, "fused"), (score, matrix))


@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_a_matrix_that_is_not_positive_definite_gives_nan_and_leaves_the_others_alone(backend):
    matrix = torch.tensor([[1.0, 0.0, 1.0], [1.0, 2.0, 1.0]])
    estimate, log_determinant = solve_information(torch.ones(2, 2), matrix, backend)
    assert torch.equal(estimate[0], torch.ones(2))
    assert estimate[1].isnan().all()
    assert log_determinant.isnan().tolist() == [False, True]


def test_no_systems_give_nothing():
    estimate, log_determinant = solve_information(torch.zeros(0, 2), torch.zeros(0, 3))
    assert estimate.shape == (0, 2)
    assert log_determinant.shape == (0,)


def test_it_compiles_without_a_break():
    compiled = torch.compile(lambda t, A: solve_information(t, A)[0].sin().sum(), fullgraph=True, dynamic=True)
    for size in (5, 9):
        found = []
        for function in (compiled, lambda t, A: solve_information(t, A, "reference")[0].sin().sum()):
            score, matrix = (x.requires_grad_() for x in systems(3, size, dtype=torch.float64))
            function(score, matrix).backward()
            found.append((score.grad, matrix.grad))
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_shapes_that_do_not_fit_and_backends_that_cannot_run_are_refused():
    with pytest.raises(ShapeError, match=r"^`precision` has shape \(4, 2\) but \(\.\.\., 3\) was expected\."):
        solve_information(torch.zeros(4, 2), torch.zeros(4, 2))
    with pytest.raises(ShapeError, match=r"^`score` has shape \(4, 2\) but `precision` \(5, 3\)\.$"):
        solve_information(torch.zeros(4, 2), torch.zeros(5, 3))
    half = torch.zeros(4, 2, dtype=torch.float16), torch.zeros(4, 3, dtype=torch.float16)
    with pytest.raises(BackendUnavailableError, match=r'"fused" cannot run: the systems are torch.float16'):
        solve_information(*half, "fused")
    assert solve_information_backend(*half)[0] == "reference"
