"""Twin networks stacked for the fused operations: the same numbers, wherever they run."""

from __future__ import annotations

import pytest
import torch

from fishnets.networks import MLP, Gated, TwinNetwork
from fishnets.networks import fused as module
from fishnets.networks.fused import evaluate_fused, fuses


def build(body: MLP | Gated, shared: bool, members: int = 2) -> TwinNetwork:
    return TwinNetwork(body, 3, 2, "rank-2", shared, members, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("body", [MLP(8, 3, "elu"), MLP(8, 3, "swish"), Gated(8, 2)], ids=str)
def test_the_stack_gives_the_networks_own_outputs(
    body: MLP | Gated, shared: bool, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fused operations are replaced by their references, which are the definition."""
    from fishnets.ops.stacked_gated import stacked_gated
    from fishnets.ops.stacked_mlp import stacked_mlp

    monkeypatch.setattr(module, "stacked_mlp", lambda *given: stacked_mlp(*given[:-1], "reference"))
    monkeypatch.setattr(module, "stacked_gated", lambda *given, backend: stacked_gated(*given, backend="reference"))
    twin = build(body, shared).double()
    values = torch.randn(11, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for given, expected in zip(evaluate_fused(*twin._networks(), values), twin(values), strict=True):
        torch.testing.assert_close(given, expected, rtol=1e-10, atol=1e-12)


def test_nothing_is_fused_without_a_gpu() -> None:
    twin = build(MLP(256, 3, "elu"), False)
    assert not fuses(*twin._networks(), torch.zeros(4, 3))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("body", "shared"),
    [(MLP(256, 3, "elu"), False), (MLP(256, 3, "elu"), True), (Gated(16, 2), False), (Gated(32, 2), True)],
    ids=str,
)  # each kind with and without a shared trunk; more shapes would only take longer to compile
def test_half_precision_on_a_gpu_is_close(body: MLP | Gated, shared: bool) -> None:
    twin = build(body, shared, members=3).to("cuda")
    values = torch.randn(5000, 3, generator=torch.Generator("cuda").manual_seed(1), device="cuda")
    assert twin.fuses(values)
    with torch.no_grad():
        for given, expected in zip(twin(values, half=True), twin(values), strict=True):
            assert float((given - expected).norm() / expected.norm()) < 1e-2
