r"""The definition of the stacked networks, in plain PyTorch.

Network :math:`k` of :math:`K` is a perceptron with its own weights; all read the same input:

.. math:: h_0 = x, \quad h_l = \phi(h_{l-1} W_l^{(k)} + b_l^{(k)}), \quad y^{(k)} = h_L W_{L+1}^{(k)} + b_{L+1}^{(k)} .
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import elu, silu

__all__ = ["ACTIVATIONS", "stacked_mlp"]

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {"elu": elu, "swish": silu}


def stacked_mlp(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], activation: str = "elu") -> Tensor:
    """Applies K networks of any depth to a shared input by batched products.

    Args:
        x: Shared input, shape (n, d).
        weights: One (K, in, out) per layer.
        biases: One (K, out) per layer.
        activation: ``"elu"`` or ``"swish"``, after every layer but the last.

    Returns:
        Outputs, shape (K, n, o).

    Example:
        >>> stacked_mlp(torch.ones(1, 2), [torch.ones(3, 2, 1)], [torch.zeros(3, 1)]).shape
        torch.Size([3, 1, 1])
    """
    phi = ACTIVATIONS[activation]
    h = x.expand(len(weights[0]), *x.shape)
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        h = phi(torch.baddbmm(bias[:, None], h, weight))
    return torch.baddbmm(biases[-1][:, None], h, weights[-1])
