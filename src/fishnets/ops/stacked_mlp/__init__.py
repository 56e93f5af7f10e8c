"""Many small networks with one shared input, all of them in a few fused kernels.

An ensemble of score and Fisher networks is K perceptrons that read the same rows. Written layer by layer, training is
limited by the traffic of hidden values through memory; the fused backend keeps most of them on the chip.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fishnets.errors import ConfigError, ShapeError
from fishnets.ops.dispatch import choose_backend, obstacle_on_device
from fishnets.ops.stacked_mlp import reference

__all__ = ["stacked_mlp", "stacked_mlp_backend"]


def stacked_mlp(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: str = "elu",
    backend: str = "auto",
) -> Tensor:
    r"""Applies K networks to one shared input.

    .. math:: h_0 = x, \quad h_l = \phi(h_{l-1} W_l + b_l), \quad y = h_L W_{L+1} + b_{L+1} \quad \text{for each } k

    The fused backend multiplies in bfloat16 and accumulates in float32 (relative error of outputs and gradients below
    1e-2, for a single row 3e-2), has no gradient with respect to ``x``, and gives the same bits from run to run. The
    reference computes in the dtype of its input and differentiates everything.

    Args:
        x: Shared input, shape :math:`(n, d)`.
        weights: One tensor per layer, shape :math:`(K, \mathrm{in}, \mathrm{out})`.
        biases: One tensor per layer, shape :math:`(K, \mathrm{out})`.
        activation: ``"elu"`` or ``"swish"``, after every layer but the last.
        backend: ``"auto"``, ``"reference"`` or ``"fused"``.

    Returns:
        Outputs, shape :math:`(K, n, o)`.

    Example:
        >>> import torch
        >>> weights = [torch.ones(2, 3, 4), torch.ones(2, 4, 1)]
        >>> biases = [torch.zeros(2, 4), torch.zeros(2, 1)]
        >>> stacked_mlp(torch.ones(5, 3), weights, biases).shape
        torch.Size([2, 5, 1])
    """
    name, _ = stacked_mlp_backend(x, weights, biases, activation, backend)
    if name == "reference":
        return reference.stacked_mlp(x, weights, biases, activation)
    from fishnets.ops.stacked_mlp import fused_triton

    return fused_triton.stacked_mlp(x, weights, biases)


def stacked_mlp_backend(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: str = "elu",
    backend: str = "auto",
) -> tuple[str, str]:
    """Tells which backend :func:`stacked_mlp` would use with these arguments, and why.

    Returns:
        The name, ``"reference"`` or ``"fused"``, and the reason.

    Example:
        >>> import torch
        >>> stacked_mlp_backend(torch.ones(5, 3), [torch.ones(2, 3, 1)], [torch.zeros(2, 1)])
        ('reference', '`x` is on cpu and the fused backend needs a CUDA device')
    """
    _check_shapes(x, weights, biases)
    if activation not in reference.ACTIVATIONS:
        raise ConfigError(f'`activation` is "{activation}" but one of {sorted(reference.ACTIVATIONS)} was expected.')
    return choose_backend(backend, lambda: _obstacle(x, weights, biases, activation))


def _check_shapes(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
    if x.ndim != 2:
        raise ShapeError(f"`x` has shape {tuple(x.shape)} but (n, d) was expected: all networks share their input.")
    if len(weights) == 0 or len(weights) != len(biases):
        raise ShapeError(
            f"`weights` has {len(weights)} layers and `biases` {len(biases)}; "
            "as many of each, at least one, were expected."
        )
    num_networks, width = len(weights[0]), x.shape[1]
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        if weight.ndim != 3 or weight.shape[:2] != (num_networks, width):
            raise ShapeError(
                f"`weights[{layer}]` has shape {tuple(weight.shape)} but ({num_networks}, {width}, out) was expected."
            )
        width = weight.shape[2]
        if bias.shape != (num_networks, width):
            raise ShapeError(
                f"`biases[{layer}]` has shape {tuple(bias.shape)} but ({num_networks}, {width}) was expected."
            )


def _obstacle(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], activation: str) -> str | None:
    """Why the fused backend cannot run with these arguments, or None when it can."""
    fault = "is neither a Hopper nor a datacenter Blackwell GPU"
    obstacle = obstacle_on_device(x, [*weights, *biases], (9, 10), fault)
    if obstacle is not None:
        return obstacle
    if activation != "elu":
        return f'the activation is "{activation}" and only "elu" is fused'
    return _shape_obstacle(x, weights)


def _shape_obstacle(x: Tensor, weights: Sequence[Tensor]) -> str | None:
    from fishnets.ops.stacked_mlp.fused_triton import MAX_INPUTS, MAX_OUTPUTS, WIDTHS

    if len(weights) != 4:
        return f"there are {len(weights) - 1} hidden layers and exactly three are fused"
    widths = {weight.shape[2] for weight in weights[:3]}
    if len(widths) != 1 or not widths <= set(WIDTHS):
        return f"the hidden widths are {sorted(widths)} and one of {list(WIDTHS)} for all three is fused"
    num_inputs, num_outputs = x.shape[1], weights[3].shape[2]
    if not 1 <= num_inputs <= MAX_INPUTS or not 1 <= num_outputs <= MAX_OUTPUTS:
        return (
            f"there are {num_inputs} inputs and {num_outputs} outputs, "
            f"and 1 to {MAX_INPUTS} and 1 to {MAX_OUTPUTS} are fused"
        )
    if x.shape[0] == 0 or weights[0].shape[0] == 0:
        return "there are no rows or no networks"
    return None
