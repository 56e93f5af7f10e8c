"""Picks the implementation of an operation, and says why."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fishnets.errors import BackendUnavailableError, ConfigError

__all__ = [
    "BACKENDS",
    "HAS_NUMBA",
    "HAS_TRITON",
    "choose_backend",
    "eager_operation",
    "num_multiprocessors",
    "obstacle_on_device",
    "on_device",
    "through_reference",
    "transforms_active",
]

P = ParamSpec("P")
R = TypeVar("R")
BACKENDS = ("auto", "reference", "fused")
HAS_TRITON = importlib.util.find_spec("triton") is not None
HAS_NUMBA = importlib.util.find_spec("numba") is not None


def choose_backend(backend: str, find_obstacle: Callable[[], str | None]) -> tuple[str, str]:
    """Picks the fused backend where it can run, the reference elsewhere, or the one that was asked for.

    Args:
        backend: ``"auto"``, ``"reference"`` or ``"fused"``.
        find_obstacle: Says why the fused backend cannot run, or None when it can.

    Returns:
        The name, ``"reference"`` or ``"fused"``, and the reason.

    Example:
        >>> choose_backend("auto", lambda: "there are no rows")
        ('reference', 'there are no rows')
    """
    if backend not in BACKENDS:
        raise ConfigError(f'`backend` is "{backend}" but one of {list(BACKENDS)} was expected.')
    if backend == "reference":
        return "reference", "it was asked for"
    obstacle = find_obstacle()
    if obstacle is None:
        return "fused", "it was asked for" if backend == "fused" else "the device and the shapes are supported"
    if backend == "fused":
        raise BackendUnavailableError(
            f'The backend "fused" cannot run: {obstacle}. Use backend="auto" to fall back to the reference.'
        )
    return "reference", obstacle


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def on_device(launch: Callable[Concatenate[Tensor, P], R]) -> Callable[Concatenate[Tensor, P], R]:
    """Makes kernels run on the device of the first tensor; left to themselves they run on the current one."""

    @wraps(launch)
    def run(first: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with torch.cuda.device_of(first):
            return launch(first, *args, **kwargs)

    return run


def eager_operation(
    compute: Callable[..., Any], remember: Callable[..., None], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """An operation with a gradient, for use outside of the compiler.

    A custom operation of ``torch.library`` has layers that take longer than the kernels of a small graph. So would
    ``setup_context`` of an autograd function: PyTorch binds its arguments by their signature every time.

    Args:
        compute: From inputs to outputs.
        remember: Keeps what the gradient needs, from a context, the inputs and the outputs.
        backward: From the context and gradients of the outputs to gradients of the inputs.

    Example:
        >>> keep = lambda ctx, inputs, output: ctx.save_for_backward(output)
        >>> exp = eager_operation(torch.exp, keep, lambda ctx, grad: grad * ctx.saved_tensors[0])
        >>> exp(torch.zeros(2, requires_grad=True)).sum().backward()
    """

    class Operation(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            outputs = compute(*inputs)
            remember(ctx, inputs, outputs)
            return outputs

    Operation.__name__ = compute.__module__.split(".")[-2:][0]  # the folder, as profiles and graphs show it
    Operation.backward = staticmethod(backward)  # type: ignore[method-assign]
    return Operation.apply


def through_reference(out: Tensor, inputs: Sequence[Tensor | None], grad: Tensor) -> list[Tensor | None]:
    """Gradients of inputs that can be differentiated again, from the output of a reference and its gradient.

    Example:
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> through_reference(x.square(), [x, None], torch.tensor(1.0))
        [tensor(6., grad_fn=<MulBackward0>), None]
    """
    needed = [one for one in inputs if one is not None and one.requires_grad]
    found = iter(torch.autograd.grad(out, needed, grad, create_graph=True))
    return [next(found) if one is not None and one.requires_grad else None for one in inputs]


def transforms_active() -> bool:
    """Whether a function transform of ``torch.func``, or forward-mode differentiation, looks at what is computed.

    Example:
        >>> torch.func.vmap(lambda x: x + transforms_active())(torch.zeros(2))
        tensor([1., 1.])
    """
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def obstacle_on_device(x: Tensor, parameters: Sequence[Tensor], majors: tuple[int, ...], fault: str) -> str | None:
    """Why kernels without a gradient of their input cannot run on these tensors, or None when they can.

    Args:
        x: The input.
        parameters: Weights and biases.
        majors: Major compute capabilities the kernels are written for.
        fault: What is wrong with any other GPU, after its name.
    """
    if not x.is_cuda:
        return f"`x` is on {x.device} and the fused backend needs a CUDA device"
    if not HAS_TRITON:
        return "Triton is not installed"
    if torch.cuda.get_device_capability(x.device)[0] not in majors:
        return f"{torch.cuda.get_device_name(x.device)} {fault}"
    if any(tensor.device != x.device or tensor.dtype != torch.float32 for tensor in (x, *parameters)):
        return "`x`, weights and biases are not all float32 on one device"
    if x.requires_grad and torch.is_grad_enabled():
        return "`x` requires a gradient, which the fused backend does not compute; pass `x.detach()`"
    return None
