"""Options, fixtures and the tolerance table every test shares."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import fishnets  # noqa: F401 rich draws from Python's generator when first imported: not in the first test

TOLERANCES = {torch.float64: {"rtol": 1e-10, "atol": 1e-12}, torch.float32: {"rtol": 1e-4, "atol": 1e-5}}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="device the tests run on")
    parser.addoption("--dtype", default="float64", choices=("float32", "float64"), help="precision of the inputs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips GPU tests where there is none, saying so."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device; run with `pytest -m gpu --device cuda` on one")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.config.getoption("--device"))


@pytest.fixture
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return getattr(torch, request.config.getoption("--dtype"))


@pytest.fixture
def generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(20240)


@pytest.fixture
def close(dtype: torch.dtype):
    """Compares with the tolerance of the dtype under test."""
    return lambda a, b: torch.testing.assert_close(a, b, **TOLERANCES[dtype])


@pytest.fixture(autouse=True)
def no_global_state() -> Iterator[None]:
    """Fails any test that leaves a changed seed, default, thread count or grad mode behind."""
    before = _global_state()
    yield
    changed = [name for name, value in _global_state().items() if value != before[name]]
    assert not changed, f"the test changed global state: {changed}"


def _global_state() -> dict[str, object]:
    return {
        "torch seed": hash(torch.get_rng_state().numpy().tobytes()),
        "numpy seed": hash(np.random.get_state()[1].tobytes()),  # noqa: NPY002
        "python seed": hash(random.getstate()),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "grad mode": torch.is_grad_enabled(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
