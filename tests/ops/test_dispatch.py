"""The choice of an implementation: what was asked for, or the fused one where nothing is in its way."""

from __future__ import annotations

import pytest
import torch

from fishnets.errors import BackendUnavailableError, ConfigError
from fishnets.ops.dispatch import choose_backend, obstacle_on_device


@pytest.mark.parametrize(
    ("backend", "obstacle", "choice"),
    [
        ("auto", None, ("fused", "the device and the shapes are supported")),
        ("auto", "it rains", ("reference", "it rains")),
        ("fused", None, ("fused", "it was asked for")),
        ("reference", None, ("reference", "it was asked for")),
        ("reference", "it rains", ("reference", "it was asked for")),
    ],
)
def test_choice_and_its_reason(backend: str, obstacle: str | None, choice: tuple[str, str]) -> None:
    assert choose_backend(backend, lambda: obstacle) == choice


def test_named_backend_that_cannot_run_raises_with_the_reason() -> None:
    message = r'The backend "fused" cannot run: it rains. Use backend="auto" to fall back to the reference.'
    with pytest.raises(BackendUnavailableError, match=message):
        choose_backend("fused", lambda: "it rains")


def test_misspelt_backend_raises() -> None:
    with pytest.raises(ConfigError, match=r"`backend` is .cuda. but one of \['auto', 'reference', 'fused'\] was"):
        choose_backend("cuda", lambda: None)


def test_nothing_fused_runs_on_the_cpu() -> None:
    reason = obstacle_on_device(torch.zeros(2, 3), [], (9,), "is not the right one")
    assert reason == "`x` is on cpu and the fused backend needs a CUDA device"
