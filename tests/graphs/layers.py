"""What the tests of the layers share: a seed that is put back, small layers, random edges, checks of gradients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from fishnets.graphs import FishnetsAggregation

__all__ = ["compare_compiled", "compiling", "edges", "every_form", "finite_gradients", "perturbed", "seeded", "small"]

every_form = pytest.mark.parametrize("form", ["regression", "location", "paper", "legacy"])
compiling = pytest.mark.filterwarnings("ignore:`torch._prims_common.check` is deprecated:FutureWarning")


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Parameters are drawn from torch's own generator, as everywhere in PyTorch Geometric; it is put back."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def small(width: int = 8, **options) -> FishnetsAggregation:
    return FishnetsAggregation(width, num_params=2, **options)


def perturbed(module: nn.Module) -> nn.Module:
    """Moves parameters away from their start, where some are zero or one."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return module


def edges(num_sources: int, num_targets: int, num_edges: int = 20) -> Tensor:
    return torch.stack([torch.randint(num_sources, (num_edges,)), torch.randint(num_targets, (num_edges,))])


def finite_gradients(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        assert parameter.grad.isfinite().all(), name


def compare_compiled(module: nn.Module, backend: str, *calls: dict[str, Tensor | int]) -> None:
    """Compiles a module without a break; values and gradients are the same on calls of different sizes."""
    torch._dynamo.reset()
    fast = torch.compile(module, fullgraph=True, dynamic=True, backend=backend)
    for call in calls:
        results = []
        for function in (module, fast):
            x = call["x"].clone().requires_grad_()
            module.zero_grad()
            out = function(**{**call, "x": x})
            out.square().sum().backward()
            results.append((out.detach(), x.grad, *[parameter.grad.clone() for parameter in module.parameters()]))
        for slow, quick in zip(*results, strict=True):
            torch.testing.assert_close(quick, slow, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
