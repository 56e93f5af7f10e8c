"""The stacked gated networks: the reference against a loop over networks, the fused kernels against the reference."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from fishnets.errors import BackendUnavailableError, ConfigError, ShapeError
from fishnets.ops.stacked_gated import stacked_gated, stacked_gated_backend

needs_context = pytest.mark.usefixtures("cuda_context")
TOLERANCE = 1e-2  # bfloat16 operands, float32 sums
AUTOCAST_FACTOR = 1.5  # or not much worse than autocast on the same numbers

Layers = list[tuple[Tensor, Tensor]]


def make_case(
    num_rows: int,
    num_networks: int,
    num_inputs: int,
    width: int,
    num_outputs: int,
    depth: int,
    device: str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Layers, Tensor]:
    """Input, layers (entrance, gates, leaves, head) and a gradient of the output, all exact in float32."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    def layer(rows: int, columns: int, scale: float) -> tuple[Tensor, Tensor]:
        weight = draw(num_networks, rows, columns) * (scale / rows**0.5)
        return weight.float().to(dtype), (draw(num_networks, columns) * 0.3).float().to(dtype)

    layers = [layer(num_inputs, width, 1.0)]
    layers += [layer(width, 4 * width, 1.0) for _ in range(depth)]
    layers += [layer(2 * width, width, 0.7) for _ in range(depth)]
    layers += [layer(width, num_outputs, 1.0)]
    return draw(num_rows, num_inputs), layers, draw(num_networks, num_rows, num_outputs)


def apply(x: Tensor, layers: Layers, backend: str = "auto") -> Tensor:
    depth = len(layers) // 2 - 1
    return stacked_gated(x, layers[0], layers[1 : 1 + depth], layers[1 + depth : -1], layers[-1], backend=backend)


def backend_of(x: Tensor, layers: Layers, backend: str = "auto") -> tuple[str, str]:
    depth = len(layers) // 2 - 1
    return stacked_gated_backend(
        x, layers[0], layers[1 : 1 + depth], layers[1 + depth : -1], layers[-1], backend=backend
    )


def pair(tensors: tuple[Tensor, ...] | list[Tensor]) -> Layers:
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def output_and_gradients(
    x: Tensor, layers: Layers, grad: Tensor, backend: str, dtype: torch.dtype, half: bool = False
) -> list[Tensor]:
    """The output and the gradient of every parameter."""
    tensors = [tensor.detach().to(dtype).clone().requires_grad_() for layer in layers for tensor in layer]
    with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=half):
        out = apply(x.to(dtype), pair(tensors), backend)
    return [out.detach(), *torch.autograd.grad(out, tensors, grad.to(out.dtype))]


def names(depth: int) -> list[str]:
    layers = ["enter", *(f"gates[{i}]" for i in range(depth)), *(f"leaves[{i}]" for i in range(depth)), "head"]
    return ["output", *(f"{part} of {layer}" for layer in layers for part in ("weight", "bias"))]


def relative_error(given: Tensor, expected: Tensor) -> float:
    error = float((given.double() - expected).norm() / expected.norm())
    return error if error == error else float("inf")


def poison_memory() -> None:
    """Leaves NaN in the allocator's free blocks, so that an element nobody wrote shows."""
    blocks = [torch.full((1 << power,), float("nan"), device="cuda") for power in range(8, 24)]
    del blocks


@pytest.fixture(scope="module")
def cuda_context() -> None:
    """Has cuBLAS called once on this thread and once on autograd's: a thread's first call may find no CUDA context and
    warn, once per process, and warnings are errors here. Warnings of the backward pass are raised where it was called.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        a = torch.ones((2, 16, 16), device="cuda", requires_grad=True)
        torch.bmm(a, a).sum().backward()
        torch.cuda.synchronize()


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_reference_equals_a_loop_over_networks(depth: int) -> None:
    x, layers, _ = make_case(7, 3, 4, 5, 2, depth)
    for k, out in enumerate(apply(x, layers)):
        first, *middle, last = [(weight[k].T, bias[k]) for weight, bias in layers]
        h = linear(x, *first)
        for gate, leave in zip(middle[:depth], middle[depth:], strict=True):
            both = linear(h, *gate)
            h = h + linear(silu(both[:, :10]) * both[:, 10:], *leave)
        torch.testing.assert_close(out, linear(h, *last))


def test_reference_gradients_are_right() -> None:
    x, layers, _ = make_case(3, 2, 3, 2, 2, 2)
    tensors = [tensor.requires_grad_() for tensor in (x, *(tensor for layer in layers for tensor in layer))]
    assert torch.autograd.gradcheck(lambda x, *p: apply(x, pair(p)), tensors)


def test_auto_takes_the_reference_on_cpu_and_says_why() -> None:
    x, layers, _ = make_case(4, 2, 3, 16, 2, 2)
    name, reason = backend_of(x, layers)
    assert name == "reference"
    assert "needs a CUDA device" in reason
    assert backend_of(x, layers, "reference") == ("reference", "it was asked for")


def test_named_backend_that_cannot_run_raises() -> None:
    x, layers, _ = make_case(4, 2, 3, 16, 2, 2)
    with pytest.raises(BackendUnavailableError, match='"fused" cannot run: `x` is on cpu'):
        apply(x, layers, "fused")


def test_misspelt_backend_raises() -> None:
    x, layers, _ = make_case(4, 2, 3, 16, 2, 2)
    with pytest.raises(ConfigError, match='`backend` is "triton" but one of'):
        apply(x, layers, "triton")


def test_wrong_shapes_raise() -> None:
    x, layers, _ = make_case(4, 2, 3, 4, 2, 1)
    enter, gate, leave, head = layers
    with pytest.raises(ShapeError, match=r"`x` has shape \(1, 4, 3\) but \(n, d\) was expected"):
        apply(x[None], layers)
    with pytest.raises(ShapeError, match="`gates` has 1 blocks and `leaves` 0"):
        stacked_gated(x, enter, [gate], [], head)
    with pytest.raises(ShapeError, match=r"weight of `enter` has shape \(2, 3, 4\) but \(2, 2, 4\) was expected"):
        apply(x[:, :2], layers)
    with pytest.raises(
        ShapeError, match=r"weight of `gates\[0\]` has shape \(2, 4, 15\) but \(2, 4, 16\) was expected"
    ):
        stacked_gated(x, enter, [(gate[0][..., :-1], gate[1])], [leave], head)
    with pytest.raises(ShapeError, match=r"bias of `leaves\[0\]` has shape \(2, 3\) but \(2, 4\) was expected"):
        stacked_gated(x, enter, [gate], [(leave[0], leave[1][:, :3])], head)
    with pytest.raises(ShapeError, match=r"weight of `head` has shape \(2, 3, 2\) but \(2, 4, 2\) was expected"):
        stacked_gated(x, enter, [gate], [leave], (head[0][:, :3], head[1]))


@pytest.mark.gpu
@needs_context
@pytest.mark.parametrize(
    ("num_rows", "num_networks", "num_inputs", "width", "num_outputs", "depth"),
    [
        (1, 4, 3, 32, 6, 2),
        (1100, 4, 3, 32, 6, 2),
        (20_011, 4, 3, 32, 6, 2),
        (20_011, 4, 5, 16, 16, 2),
        (100_003, 1, 5, 16, 16, 2),
        (512, 20, 15, 32, 16, 2),
        (300, 2, 1, 32, 1, 1),
        (1, 1, 3, 16, 6, 1),
    ],
)  # few shapes in all tests together: kernels are compiled for each, and again for one row and for multiples of 16
def test_fused_equals_reference(
    num_rows: int, num_networks: int, num_inputs: int, width: int, num_outputs: int, depth: int
) -> None:
    x, layers, grad = make_case(num_rows, num_networks, num_inputs, width, num_outputs, depth, "cuda")
    expected = output_and_gradients(x, layers, grad, "reference", torch.float64)
    autocast = output_and_gradients(x, layers, grad, "reference", torch.float32, half=True)
    poison_memory()
    given = output_and_gradients(x, layers, grad, "fused", torch.float32)
    # a single row has nothing to average over: one rounding may be the whole error of a few numbers
    least = TOLERANCE if num_rows > 1 else 3 * TOLERANCE
    for name, one, other, wanted in zip(names(depth), given, autocast, expected, strict=True):
        tolerance = max(least, AUTOCAST_FACTOR * relative_error(other, wanted))
        assert relative_error(one, wanted) < tolerance, name


@pytest.mark.gpu
@needs_context
def test_fused_gradients_of_large_inputs_stay_finite() -> None:
    x, layers, grad = make_case(300, 2, 3, 32, 6, 2, "cuda")
    given = output_and_gradients(1e3 * x, layers, grad, "fused", torch.float32)
    assert all(bool(tensor.isfinite().all()) for tensor in given)


@pytest.mark.gpu
@needs_context
@pytest.mark.parametrize(("num_inputs", "width", "num_outputs"), [(5, 16, 16), (3, 32, 6)])
def test_fused_reruns_give_the_same_bits(num_inputs: int, width: int, num_outputs: int) -> None:
    x, layers, grad = make_case(50_001, 4, num_inputs, width, num_outputs, 2, "cuda")
    first = output_and_gradients(x, layers, grad, "fused", torch.float32)
    for _ in range(3):
        poison_memory()
        again = output_and_gradients(x, layers, grad, "fused", torch.float32)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.gpu
@needs_context
@pytest.mark.parametrize("num_networks", [2, 1])
def test_fused_with_strided_arguments_gives_the_same_bits(num_networks: int) -> None:
    x, layers, grad = make_case(300, num_networks, 3, 32, 6, 2, "cuda", torch.float32)
    expected = output_and_gradients(x, layers, grad, "fused", torch.float32)
    strided = [(weight.mT.contiguous().mT, bias.T.contiguous().T) for weight, bias in layers]
    tensors = [tensor.requires_grad_() for layer in strided for tensor in layer]
    out = apply(x.T.contiguous().T, pair(tensors), "fused")
    gradients = torch.autograd.grad(out, tensors, grad.mT.contiguous().mT)
    assert all(torch.equal(one, other) for one, other in zip([out, *gradients], expected, strict=True))
    with torch.no_grad():
        assert torch.equal(apply(x, layers, "fused"), expected[0])


@pytest.mark.gpu
@needs_context
def test_fused_can_be_captured_in_a_graph() -> None:
    x, layers, grad = make_case(3000, 4, 3, 32, 6, 2, "cuda", torch.float32)
    expected = output_and_gradients(x, layers, grad, "fused", torch.float32)  # also compiles the kernels
    tensors = [tensor.requires_grad_() for layer in layers for tensor in layer]
    still = torch.zeros_like(x)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = apply(still, pair(tensors), "fused")
        gradients = torch.autograd.grad(out, tensors, grad)
    still.copy_(x)
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(one, other) for one, other in zip([out, *gradients], expected, strict=True))


@pytest.mark.gpu
@needs_context
@pytest.mark.parametrize(
    ("num_inputs", "width", "num_outputs", "depth", "message"),
    [
        (3, 32, 2, 3, "3 blocks and one or two are fused"),
        (3, 64, 2, 2, r"width is 64 and one of \[16, 32\] is fused"),
        (16, 32, 2, 2, "16 inputs and 2 outputs"),
        (3, 32, 17, 2, "3 inputs and 17 outputs"),
    ],
)
def test_fused_says_what_it_does_not_support(
    num_inputs: int, width: int, num_outputs: int, depth: int, message: str
) -> None:
    x, layers, _ = make_case(4, 1, num_inputs, width, num_outputs, depth, "cuda", torch.float32)
    with pytest.raises(BackendUnavailableError, match=message):
        apply(x, layers, "fused")
    assert backend_of(x, layers)[0] == "reference"


@pytest.mark.gpu
@needs_context
def test_fused_refuses_the_gradient_of_its_input() -> None:
    x, layers, _ = make_case(4, 1, 3, 32, 2, 2, "cuda", torch.float32)
    with pytest.raises(BackendUnavailableError, match=r"`x` requires a gradient.*pass `x.detach\(\)`"):
        apply(x.requires_grad_(), layers, "fused")
