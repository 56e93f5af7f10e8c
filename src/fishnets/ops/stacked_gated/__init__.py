"""Many small gated residual networks with one shared input, all of them in two fused kernels.

An ensemble of gated score and Fisher networks is K residual networks that read the same rows. They are so narrow that,
written layer by layer, training waits for memory and launches; the fused backend keeps every hidden value on the chip.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fishnets.errors import ShapeError
from fishnets.ops.dispatch import choose_backend, obstacle_on_device
from fishnets.ops.stacked_gated import reference
from fishnets.ops.stacked_gated.reference import Affine

__all__ = ["stacked_gated", "stacked_gated_backend"]


def stacked_gated(
    x: Tensor,
    enter: Affine,
    gates: Sequence[Affine],
    leaves: Sequence[Affine],
    head: Affine,
    backend: str = "auto",
) -> Tensor:
    r"""Applies K gated residual networks to one shared input.

    .. math::
        h = x W_{in} + b_{in}, \quad
        [g, v] = h W_{gate} + b_{gate}, \;\; h \leftarrow h + (\mathrm{silu}(g) \odot v) W_{leave} + b_{leave}, \quad
        y = h W_{head} + b_{head}

    The fused backend multiplies in bfloat16 and accumulates in float32, as ``torch.autocast`` does, has no gradient
    with respect to ``x``, and gives the same bits from run to run. The reference computes in the dtype of its input and
    differentiates everything.

    Args:
        x: Shared input, shape :math:`(n, d)`.
        enter: Weight :math:`(K, d, w)` and bias :math:`(K, w)` of the entrance.
        gates: Weight :math:`(K, w, 2m)` and bias :math:`(K, 2m)` for every block, the columns of the gate before those
            of the value.
        leaves: Weight :math:`(K, m, w)` and bias :math:`(K, w)` for every block.
        head: Weight :math:`(K, w, o)` and bias :math:`(K, o)`.
        backend: ``"auto"``, ``"reference"`` or ``"fused"``.

    Returns:
        Outputs, shape :math:`(K, n, o)`.

    Example:
        >>> import torch
        >>> enter, head = (torch.ones(2, 3, 4), torch.zeros(2, 4)), (torch.ones(2, 4, 1), torch.zeros(2, 1))
        >>> gate, leave = (torch.ones(2, 4, 16), torch.zeros(2, 16)), (torch.ones(2, 8, 4), torch.zeros(2, 4))
        >>> stacked_gated(torch.ones(5, 3), enter, [gate], [leave], head).shape
        torch.Size([2, 5, 1])
    """
    name, _ = stacked_gated_backend(x, enter, gates, leaves, head, backend)
    if name == "reference":
        return reference.stacked_gated(x, enter, gates, leaves, head)
    from fishnets.ops.stacked_gated import fused_triton

    return fused_triton.stacked_gated(x, enter, gates, leaves, head)


def stacked_gated_backend(
    x: Tensor,
    enter: Affine,
    gates: Sequence[Affine],
    leaves: Sequence[Affine],
    head: Affine,
    backend: str = "auto",
) -> tuple[str, str]:
    """Tells which backend :func:`stacked_gated` would use with these arguments, and why.

    Returns:
        The name, ``"reference"`` or ``"fused"``, and the reason.

    Example:
        >>> import torch
        >>> one = (torch.ones(2, 1, 1), torch.zeros(2, 1))
        >>> stacked_gated_backend(torch.ones(5, 1), one, [], [], one)
        ('reference', '`x` is on cpu and the fused backend needs a CUDA device')
    """
    _check_shapes(x, enter, gates, leaves, head)
    return choose_backend(backend, lambda: _obstacle(x, enter, gates, leaves, head))


def _check_shapes(x: Tensor, enter: Affine, gates: Sequence[Affine], leaves: Sequence[Affine], head: Affine) -> None:
    if x.ndim != 2:
        raise ShapeError(f"`x` has shape {tuple(x.shape)} but (n, d) was expected: all networks share their input.")
    if len(gates) != len(leaves):
        raise ShapeError(f"`gates` has {len(gates)} blocks and `leaves` {len(leaves)}; as many of each were expected.")
    num_networks, width = len(enter[0]), enter[0].shape[-1]
    _check_layer("enter", enter, num_networks, x.shape[1], width)
    for block, (gate, leave) in enumerate(zip(gates, leaves, strict=True)):
        inner = leave[0].shape[1] if leave[0].ndim == 3 else 2 * width
        _check_layer(f"gates[{block}]", gate, num_networks, width, 2 * inner)
        _check_layer(f"leaves[{block}]", leave, num_networks, inner, width)
    _check_layer("head", head, num_networks, width, head[0].shape[-1])


def _check_layer(name: str, layer: Affine, num_networks: int, num_inputs: int, num_outputs: int) -> None:
    weight, bias = layer
    if weight.shape != (num_networks, num_inputs, num_outputs):
        raise ShapeError(
            f"The weight of `{name}` has shape {tuple(weight.shape)} "
            f"but ({num_networks}, {num_inputs}, {num_outputs}) was expected."
        )
    if bias.shape != (num_networks, num_outputs):
        raise ShapeError(
            f"The bias of `{name}` has shape {tuple(bias.shape)} but ({num_networks}, {num_outputs}) was expected."
        )


def _obstacle(x: Tensor, enter: Affine, gates: Sequence[Affine], leaves: Sequence[Affine], head: Affine) -> str | None:
    """Why the fused backend cannot run with these arguments, or None when it can."""
    tensors = [tensor for layer in (enter, *gates, *leaves, head) for tensor in layer]
    obstacle = obstacle_on_device(x, tensors, (9,), "is not a Hopper GPU, for which the kernels are cut up")
    return obstacle or _shape_obstacle(x, enter, leaves, head)


def _shape_obstacle(x: Tensor, enter: Affine, leaves: Sequence[Affine], head: Affine) -> str | None:
    from fishnets.ops.stacked_gated.fused_triton import DEPTHS, MAX_INPUTS, MAX_OUTPUTS, WIDTHS

    if len(leaves) not in DEPTHS:
        return f"there are {len(leaves)} blocks and one or two are fused"
    (num_networks, num_inputs, width), num_outputs = enter[0].shape, head[0].shape[2]
    if width not in WIDTHS:
        return f"the width is {width} and one of {list(WIDTHS)} is fused: wider gradients do not fit in registers"
    inner = {leave[0].shape[1] for leave in leaves}
    if inner != {2 * width}:
        return f"the inner widths are {sorted(inner)} and twice the width {width} is fused"
    if not 1 <= num_inputs <= MAX_INPUTS or not 1 <= num_outputs <= MAX_OUTPUTS:
        return (
            f"there are {num_inputs} inputs and {num_outputs} outputs, "
            f"and 1 to {MAX_INPUTS} and 1 to {MAX_OUTPUTS} are fused"
        )
    if x.shape[0] == 0 or num_networks == 0:
        return "there are no rows or no networks"
    return None
