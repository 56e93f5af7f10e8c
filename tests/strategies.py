"""What property tests draw from. Tensors come from a drawn seed, so that nothing depends on global state."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

__all__ = [
    "PROPERTY",
    "conditions",
    "gradcheck",
    "integers",
    "kinds",
    "normals",
    "num_params",
    "positive_definite",
    "seeds",
]

PROPERTY = settings(
    deadline=None,
    derandomize=True,
    max_examples=40,
    database=None,
    # the fixtures used here (device, dtype, close) hold no state that one example could leave to the next
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

seeds = st.integers(0, 2**31 - 1)
num_params = st.integers(1, 5)
conditions = st.sampled_from([1.0, 10.0, 1e3])


@st.composite
def kinds(draw: st.DrawFn) -> tuple[str, int]:
    """A number of parameters p and a kind of factor that exists for it."""
    p = draw(num_params)
    return draw(st.sampled_from(["full", "diagonal", *(f"rank-{r}" for r in range(1, p + 1))])), p


def normals(
    seed: int, *shape: int, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
) -> Tensor:
    """Standard normal numbers that depend on the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device=device, dtype=dtype)


def integers(seed: int, *shape: int) -> Tensor:
    """Whole numbers in float64: sums and products of a few are exact, so laws hold to the last bit."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 9, shape, generator=generator).to(torch.float64)


def positive_definite(seed: int, *shape: int, condition: float = 10.0) -> Tensor:
    """Symmetric positive-definite matrices of the given batch shape and size p, of a known condition number."""
    rotation, _ = torch.linalg.qr(normals(seed, *shape, shape[-1]))
    spectrum = torch.linspace(0, 1, shape[-1], dtype=torch.float64)
    matrix = (rotation * condition**spectrum) @ rotation.mT
    return 0.5 * (matrix + matrix.mT)


def gradcheck(function: object, *inputs: Tensor) -> None:
    """First derivatives against finite differences, in float64."""
    leaves = tuple(x.detach().clone().requires_grad_() for x in inputs)
    torch.autograd.gradcheck(function, leaves)  # type: ignore[arg-type]
