r"""The definition of the stacked gated networks, in plain PyTorch.

Network :math:`k` of :math:`K` is a residual network of gated blocks with its own weights; all read the same input:

.. math::
    h = x W_{in} + b_{in}, \qquad
    [g, v] = h W_{gate} + b_{gate}, \quad h \leftarrow h + (\mathrm{silu}(g) \odot v) W_{leave} + b_{leave}, \qquad
    y = h W_{head} + b_{head} .
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu

__all__ = ["Affine", "stacked_gated"]

Affine = tuple[Tensor, Tensor]  # weight (K, in, out) and bias (K, out)


def stacked_gated(x: Tensor, enter: Affine, gates: Sequence[Affine], leaves: Sequence[Affine], head: Affine) -> Tensor:
    """Applies K networks of any depth to a shared input by batched products.

    Args:
        x: Shared input, shape (n, d).
        enter: Weight (K, d, w) and bias (K, w) of the entrance.
        gates: Weight (K, w, 2 m) and bias (K, 2 m) for every block, the columns of the gate before those of the value.
        leaves: Weight (K, m, w) and bias (K, w) for every block.
        head: Weight (K, w, o) and bias (K, o).

    Returns:
        Outputs, shape (K, n, o).

    Example:
        >>> one = (torch.ones(3, 1, 1), torch.zeros(3, 1))
        >>> stacked_gated(torch.ones(2, 1), one, [], [], one).shape
        torch.Size([3, 2, 1])
    """
    h = _affine(x.expand(len(enter[0]), *x.shape), enter)
    for gate, leave in zip(gates, leaves, strict=True):
        open_, value = _affine(h, gate).chunk(2, dim=-1)
        h = h + _affine(silu(open_) * value, leave)
    return _affine(h, head)


def _affine(h: Tensor, layer: Affine) -> Tensor:
    weight, bias = layer
    return torch.baddbmm(bias[:, None], h, weight)
