r"""Ensembles trained in one go: every parameter carries a leading member dimension, every product is batched.

A network of this library is always an ensemble; a single network is an ensemble of one. Members share the data and
differ in their initial values. Pooling keeps additivity: with weights :math:`w_k`, the score and Fisher matrix of a set
are :math:`\sum_k w_k t_k` and :math:`\sum_k w_k F_k`, both still sums over data.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

__all__ = ["StackedLinear", "in_blocks", "member_weights"]

BLOCK = 2048  # rows of a block on a GPU


class StackedLinear(nn.Module):
    r"""The linear layers of K members, :math:`y_k = x_k W_k + b_k`, as one batched product.

    Weights start uniform with variance 1 / ``num_inputs``, biases at zero.

    Args:
        members: Number of members K.
        num_inputs: Width of the input.
        num_outputs: Width of the output.
        generator: Source of the initial values.

    Example:
        >>> layer = StackedLinear(4, 3, 5, torch.Generator().manual_seed(0))
        >>> layer(torch.zeros(1, 7, 3)).shape
        torch.Size([4, 7, 5])
    """

    def __init__(self, members: int, num_inputs: int, num_outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        bound = math.sqrt(3 / num_inputs)
        uniform = torch.rand((members, num_inputs, num_outputs), generator=generator)
        self.weight = nn.Parameter(bound * (2 * uniform - 1))  # (K, in, out)
        self.bias = nn.Parameter(torch.zeros(members, 1, num_outputs))  # (K, 1, out)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (K or 1, *, n, in) to (K, *, n, out); a leading 1 is shared by all members."""
        if len(self.weight) == 1:
            return torch.nn.functional.linear(x, self.weight[0].mT, self.bias[0, 0])
        if x.ndim == 3:
            return torch.baddbmm(self.bias, x.expand(len(self.weight), -1, -1), self.weight)
        return torch.matmul(x, self.weight.unsqueeze(1)) + self.bias.unsqueeze(1)


def in_blocks(rows: Tensor) -> Tensor:
    """Rows (K, n, d) as (K, blocks, BLOCK, d), padded with zeros, for products on a GPU.

    A weight's gradient sums over all rows; a batched product with as few members as an ensemble has would leave most of
    a GPU idle, one with as many as there are blocks does not.

    Example:
        >>> in_blocks(torch.ones(1, 2049, 3)).shape
        torch.Size([1, 2, 2048, 3])
    """
    blocks = -(-rows.shape[1] // BLOCK)
    padded: Tensor = pad(rows, (0, 0, 0, blocks * BLOCK - rows.shape[1]))
    return padded.reshape(rows.shape[0], blocks, BLOCK, rows.shape[2])


def member_weights(validation_loss: Tensor) -> Tensor:
    r"""Weighs members by how well they did on validation data, :math:`w_k \propto e^{-\ell_k}`, summing to one.

    Args:
        validation_loss: Mean validation loss per set of each member, shape (K,).

    Returns:
        Weights, shape (K,).

    Example:
        >>> member_weights(torch.tensor([-4.0, -4.0]))
        tensor([0.5000, 0.5000])
    """
    return torch.softmax(-validation_loss, dim=0)
