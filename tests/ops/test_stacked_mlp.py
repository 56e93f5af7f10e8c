"""The stacked networks: the reference against a loop over networks, the fused kernels against the reference."""

from __future__ import annotations

import warnings
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fishnets.errors import BackendUnavailableError, ConfigError, ShapeError
from fishnets.ops.stacked_mlp import stacked_mlp, stacked_mlp_backend

needs_context = pytest.mark.usefixtures("cuda_context")
TOLERANCE = 1e-2  # bfloat16 operands, float32 sums
AUTOCAST_FACTOR = 1.5  # or not much worse than autocast on the same numbers
NAMES = ("W1", "W2", "W3", "W4", "b1", "b2", "b3", "b4")


def make_case(
    num_rows: int, num_networks: int, widths: tuple[int, ...], seed: int = 0, device: str = "cpu"
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Input, weights and biases in float64 (exact in float32), with hidden values on both sides of zero."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, torch.float64)

    pairs = list(pairwise(widths))
    weights = [(draw(num_networks, a, b) * (1.5 / a**0.5)).float().double() for a, b in pairs]
    biases = [(draw(num_networks, b) * 0.3).float().double() for _, b in pairs]
    return draw(num_rows, widths[0]), weights, biases


def gradients(
    x: Tensor, parameters: list[Tensor], grad: Tensor, backend: str, dtype: torch.dtype, autocast: bool = False
) -> tuple[Tensor, list[Tensor]]:
    leaves = [parameter.detach().to(dtype).clone().requires_grad_() for parameter in parameters]
    half = len(leaves) // 2
    with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=autocast):
        out = stacked_mlp(x.to(dtype), leaves[:half], leaves[half:], backend=backend)
    out.backward(grad.to(out.dtype))
    return out.detach(), [leaf.grad for leaf in leaves if leaf.grad is not None]


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


@pytest.mark.parametrize("activation", ["elu", "swish"])
@pytest.mark.parametrize("widths", [(3, 2), (3, 5, 2), (4, 6, 6, 6, 3)])
def test_reference_equals_a_loop_over_networks(widths: tuple[int, ...], activation: str) -> None:
    x, weights, biases = make_case(7, 3, widths)
    phi = {"elu": torch.nn.functional.elu, "swish": torch.nn.functional.silu}[activation]
    for k, out in enumerate(stacked_mlp(x, weights, biases, activation)):
        h = x
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            h = torch.nn.functional.linear(h if layer == 0 else phi(h), weight[k].T, bias[k])
        torch.testing.assert_close(out, h)


def test_reference_gradients_are_right() -> None:
    x, weights, biases = make_case(4, 2, (3, 4, 4, 2))
    tensors = [tensor.requires_grad_() for tensor in (x, *weights, *biases)]
    assert torch.autograd.gradcheck(lambda x, *p: stacked_mlp(x, p[:3], p[3:]), tensors)


def test_auto_takes_the_reference_on_cpu_and_says_why() -> None:
    x, weights, biases = make_case(4, 2, (3, 4, 2))
    name, reason = stacked_mlp_backend(x, weights, biases)
    assert name == "reference"
    assert "needs a CUDA device" in reason
    assert stacked_mlp_backend(x, weights, biases, backend="reference") == ("reference", "it was asked for")


def test_named_backend_that_cannot_run_raises() -> None:
    x, weights, biases = make_case(4, 2, (3, 4, 2))
    with pytest.raises(BackendUnavailableError, match='"fused" cannot run: `x` is on cpu'):
        stacked_mlp(x, weights, biases, backend="fused")


def test_misspelt_settings_raise() -> None:
    x, weights, biases = make_case(4, 2, (3, 4, 2))
    with pytest.raises(ConfigError, match='`activation` is "gelu" but one of'):
        stacked_mlp(x, weights, biases, activation="gelu")
    with pytest.raises(ConfigError, match='`backend` is "triton" but one of'):
        stacked_mlp(x, weights, biases, backend="triton")


def test_wrong_shapes_raise() -> None:
    x, weights, biases = make_case(4, 2, (3, 4, 2))
    with pytest.raises(ShapeError, match=r"`x` has shape \(1, 4, 3\) but \(n, d\) was expected"):
        stacked_mlp(x[None], weights, biases)
    with pytest.raises(ShapeError, match="`weights` has 2 layers and `biases` 1"):
        stacked_mlp(x, weights, biases[:1])
    with pytest.raises(ShapeError, match=r"`weights\[1\]` has shape \(2, 3, 2\) but \(2, 4, out\) was expected"):
        stacked_mlp(x, [weights[0], weights[1][:, :3]], biases)
    with pytest.raises(ShapeError, match=r"`biases\[0\]` has shape \(2, 3\) but \(2, 4\) was expected"):
        stacked_mlp(x, weights, [biases[0][:, :3], biases[1]])


@pytest.mark.gpu
@needs_context
@pytest.mark.parametrize(
    ("num_rows", "num_networks", "num_inputs", "width", "num_outputs"),
    [
        (1, 4, 3, 256, 2),
        (127, 2, 3, 256, 6),
        (1000, 20, 3, 256, 2),
        (20_011, 4, 5, 256, 6),
        (513, 2, 15, 256, 16),
        (300, 1, 5, 128, 1),
        (300, 4, 3, 64, 6),
    ],
)  # few shapes in all tests together: kernels are compiled for each width, and again for more than 7 inputs
def test_fused_equals_reference(
    num_rows: int, num_networks: int, num_inputs: int, width: int, num_outputs: int
) -> None:
    widths = (num_inputs, width, width, width, num_outputs)
    x, weights, biases = make_case(num_rows, num_networks, widths, device="cuda")
    grad = torch.randn((num_networks, num_rows, num_outputs), device="cuda", dtype=torch.float64)
    expected, expected_gradients = gradients(x, weights + biases, grad, "reference", torch.float64)
    half, half_gradients = gradients(x, weights + biases, grad, "reference", torch.float32, autocast=True)
    poison_memory()
    out, given_gradients = gradients(x, weights + biases, grad, "fused", torch.float32)
    least = TOLERANCE if num_rows > 1 else 3 * TOLERANCE  # a single row has nothing to average over
    assert relative_error(out, expected) < max(least, AUTOCAST_FACTOR * relative_error(half, expected))
    for name, given, other, wanted in zip(NAMES, given_gradients, half_gradients, expected_gradients, strict=True):
        assert relative_error(given, wanted) < max(least, AUTOCAST_FACTOR * relative_error(other, wanted)), name


@pytest.mark.gpu
@needs_context
def test_fused_reruns_give_the_same_bits() -> None:
    x, weights, biases = make_case(5000, 4, (3, 256, 256, 256, 2), device="cuda")
    grad = torch.randn((4, 5000, 2), device="cuda")
    first = gradients(x, weights + biases, grad, "fused", torch.float32)
    for _ in range(3):
        poison_memory()
        again = gradients(x, weights + biases, grad, "fused", torch.float32)
        for one, other in zip((first[0], *first[1]), (again[0], *again[1]), strict=True):
            assert torch.equal(one, other)


@pytest.mark.gpu
@needs_context
@pytest.mark.parametrize(("num_networks", "num_outputs"), [(2, 6), (1, 16)])  # 16 outputs need no padding
def test_fused_without_gradients_and_with_strided_parameters_gives_the_same_output(
    num_networks: int, num_outputs: int
) -> None:
    x, weights, biases = make_case(300, num_networks, (3, 64, 64, 64, num_outputs), device="cuda")
    x, weights, biases = x.float(), [w.float() for w in weights], [b.float() for b in biases]
    expected = stacked_mlp(x, [w.clone().requires_grad_() for w in weights], biases, backend="fused")
    strided = [w.mT.contiguous().mT for w in weights]
    with torch.no_grad():
        out = stacked_mlp(x.T.contiguous().T, strided, biases, backend="fused")
    assert torch.equal(out, expected)


@pytest.mark.gpu
@needs_context
@pytest.mark.parametrize(
    ("widths", "activation", "message"),
    [
        ((3, 256, 256, 2), "elu", "2 hidden layers and exactly three are fused"),
        ((3, 96, 96, 96, 2), "elu", r"hidden widths are \[96\]"),
        ((16, 256, 256, 256, 2), "elu", "16 inputs and 2 outputs"),
        ((3, 256, 256, 256, 2), "swish", 'activation is "swish"'),
    ],
)
def test_fused_says_what_it_does_not_support(widths: tuple[int, ...], activation: str, message: str) -> None:
    x, weights, biases = make_case(4, 1, widths, device="cuda")
    x, weights, biases = x.float(), [w.float() for w in weights], [b.float() for b in biases]
    with pytest.raises(BackendUnavailableError, match=message):
        stacked_mlp(x, weights, biases, activation, backend="fused")
    assert stacked_mlp_backend(x, weights, biases, activation)[0] == "reference"


@pytest.mark.gpu
@needs_context
def test_fused_refuses_the_gradient_of_its_input() -> None:
    x, weights, biases = make_case(4, 1, (3, 256, 256, 256, 2), device="cuda")
    x, weights, biases = x.float().requires_grad_(), [w.float() for w in weights], [b.float() for b in biases]
    with pytest.raises(BackendUnavailableError, match=r"`x` requires a gradient.*pass `x.detach\(\)`"):
        stacked_mlp(x, weights, biases, backend="fused")
