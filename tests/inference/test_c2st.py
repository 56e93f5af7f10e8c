"""Classifier two-sample test: known accuracies, determinism, errors."""

from __future__ import annotations

import math
import time

import pytest
import torch
from torch import Tensor

from fishnets.errors import ConfigError, DataError, NonFiniteError, ShapeError
from fishnets.inference.c2st import c2st


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def test_equal_laws_cannot_be_told_apart(generator: torch.Generator) -> None:
    start = time.process_time()
    found = c2st(normal(generator, 2000, 2), normal(generator, 2000, 2))
    assert time.process_time() - start < 20  # one second, alone on a core
    assert abs(found.value - 0.5) < 3 * found.error
    assert found.error == pytest.approx(0.5 / math.sqrt(4000), rel=0.05)


@pytest.mark.parametrize("shift", [0.5, 2.0])
def test_shifted_gaussians_are_told_apart_as_well_as_can_be(shift: float, generator: torch.Generator) -> None:
    """The best classifier cuts half-way and is right with probability Φ(shift / 2)."""
    samples = normal(generator, 2000, 2) + torch.tensor([shift, 0.0])
    found = c2st(samples, normal(generator, 2000, 2))
    assert abs(found.value - 0.5 * (1 + math.erf(shift / 2 / math.sqrt(2)))) < 3 * found.error


def test_correlations_are_seen_where_marginals_agree(generator: torch.Generator) -> None:
    factor = torch.tensor([[1.0, 0.0], [0.9, math.sqrt(1 - 0.81)]])
    samples, reference = normal(generator, 1000, 2) @ factor.T, normal(generator, 1000, 2) @ factor.T
    assert c2st(samples * torch.tensor([1.0, -1.0]), reference).value > 0.8


def test_sides_of_different_sizes_count_the_same(generator: torch.Generator) -> None:
    few, many = normal(generator, 300, 1), normal(generator, 3000, 1)
    found = c2st(few, many)
    assert abs(found.value - 0.5) < 3 * found.error
    assert c2st(few + 2, many).value == pytest.approx(0.8413, abs=0.05)


def test_units_do_not_matter(generator: torch.Generator) -> None:
    samples, reference = normal(generator, 300, 2).double() + 1, normal(generator, 300, 2).double()
    moved = c2st(1024 * samples + 2048, 1024 * reference + 2048)
    assert moved.value == pytest.approx(c2st(samples, reference).value, abs=0.01)


def test_a_parameter_that_never_varies_does_no_harm(generator: torch.Generator) -> None:
    samples, reference = normal(generator, 200, 2), normal(generator, 200, 2)
    samples[:, 1] = reference[:, 1] = 7.0
    assert c2st(samples, reference).value == pytest.approx(0.5, abs=0.1)


def test_the_same_seed_gives_the_same_answer(generator: torch.Generator) -> None:
    samples, reference = normal(generator, 100, 2) + 0.5, normal(generator, 100, 2)
    assert c2st(samples, reference) == c2st(samples.numpy(), reference.numpy())
    first, second = (c2st(samples, reference, torch.Generator().manual_seed(3), folds=2) for _ in range(2))
    assert first == second


def test_it_works_where_gradients_are_off(generator: torch.Generator) -> None:
    samples, reference = normal(generator, 100, 1) + 4, normal(generator, 100, 1)
    with torch.no_grad():
        assert c2st(samples, reference).value > 0.9


def test_it_agrees_with_sbi(generator: torch.Generator) -> None:
    pytest.importorskip("sbi")
    from sbi.utils.metrics import c2st as theirs

    reference = normal(generator, 1000, 2)
    for samples in (normal(generator, 1000, 2), normal(generator, 1000, 2) + 1, 2 * normal(generator, 1000, 2)):
        expected = float(theirs(reference, samples, classifier="mlp"))
        assert c2st(samples, reference).value == pytest.approx(expected, abs=0.03)


def test_input_is_checked() -> None:
    good = torch.zeros(60, 2)
    with pytest.raises(ShapeError, match=r"`samples` has shape \(60, 2\) and `reference` \(60, 3\) but \(N, p\) and"):
        c2st(good, torch.zeros(60, 3))
    with pytest.raises(ShapeError, match=r"One parameter still needs its axis: \(N, 1\)"):
        c2st(torch.zeros(60), torch.zeros(60))
    with pytest.raises(DataError, match=r"`reference` holds 49 samples but at least 50 were expected"):
        c2st(good, good[:49])
    bad = good.clone()
    bad[[3, 8], 1] = torch.nan
    with pytest.raises(NonFiniteError, match=r"`samples` is NaN or infinite in 2 rows: 3, 8"):
        c2st(bad, good)
    with pytest.raises(ConfigError, match=r"`folds` is 1 but 2 to 25 were expected; 5 is usual"):
        c2st(good, good, folds=1)
