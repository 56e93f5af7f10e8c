"""The laws every implementation runs, as plain functions that raise when a law is broken.

A law takes the operations under test and the data to try them on; ``same`` compares two results and raises where they
differ, so that exact arithmetic and rounding use the same laws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from tests.conftest import TOLERANCES
from torch import Tensor

from fishnets.algebra import Information
from fishnets.ragged import Sets

__all__ = [
    "check_batch_of_one",
    "check_compress_then_merge",
    "check_merging",
    "check_permutation_invariance",
    "check_printing",
    "check_round_trip",
    "close",
    "equal",
    "same_information",
    "same_sets",
    "shuffled",
]

T = TypeVar("T")
Same = Callable[[Any, Any], None]


def close(actual: Tensor, expected: Tensor) -> None:
    """Equal up to the tolerance of the dtype."""
    torch.testing.assert_close(actual, expected, **TOLERANCES[actual.dtype])


def equal(actual: Tensor, expected: Tensor) -> None:
    """Equal to the last bit."""
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=0.0)


def same_information(actual: Information, expected: Information, same: Same = close) -> None:
    """The same score, Fisher matrix, fiducial and count."""
    same(actual.score, expected.score)
    same(actual.fisher, expected.fisher)
    same(actual.fiducial.expand_as(actual.score), expected.fiducial.expand_as(expected.score))
    equal(actual.count, expected.count)


def same_sets(actual: Sets, expected: Sets) -> None:
    """The same rows in the same sets, dtype included."""
    equal(actual.values, expected.values)
    equal(actual.offsets, expected.offsets)


def check_merging(
    merge: Callable[[T, T], T], zero: T, parts: tuple[T, T, T], same: Callable[[T, T], None]
) -> None:
    """Merging is associative and commutative, and ``zero`` is its identity on either side, with itself included."""
    a, b, c = parts
    same(merge(merge(a, b), c), merge(a, merge(b, c)))
    same(merge(a, b), merge(b, a))
    for part in parts:
        same(merge(part, zero), part)
        same(merge(zero, part), part)
    same(merge(zero, zero), zero)


def check_compress_then_merge(
    compress: Callable[[Sets], T], merge: Callable[[T, T], T], first: Sets, second: Sets, same: Callable[[T, T], None]
) -> None:
    """Compressing two halves and merging equals compressing their union."""
    same(merge(compress(first), compress(second)), compress(first.union(second)))


def check_permutation_invariance(
    compress: Callable[[Sets], T], sets: Sets, generator: torch.Generator, same: Callable[[T, T], None]
) -> None:
    """The order of the rows of a set does not matter."""
    same(compress(shuffled(sets, generator)), compress(sets))


def check_batch_of_one(compress: Callable[[Sets], Any], sets: Sets, same: Same) -> None:
    """A set gives the same result alone as among others; ``compress`` returns something that can be sliced."""
    together = compress(sets)
    for i in range(len(sets)):
        same(compress(sets[i]), together[i : i + 1])


def check_printing(value: object, *shown: str) -> None:
    """Printing gives one short line that names the type and says what is given, never the numbers of a tensor."""
    text = repr(value)
    assert text.startswith(f"{type(value).__name__}("), text
    assert "\n" not in text, text
    assert len(text) <= 160, text
    assert "tensor(" not in text, text
    for part in shown:
        assert part in text, f"{part!r} is not in {text!r}"


def check_round_trip(
    write: Callable[[T], Any], read: Callable[[Any], T], value: T, same: Callable[[T, T], None]
) -> None:
    """Reading what was written gives the value back."""
    same(read(write(value)), value)


def shuffled(sets: Sets, generator: torch.Generator) -> Sets:
    """The same sets with the rows of each in another order."""
    keys = torch.rand(sets.num_data, generator=generator, dtype=torch.float64, device=sets.device)
    return Sets(sets.values[torch.argsort(sets.index + keys)], sets.offsets)
