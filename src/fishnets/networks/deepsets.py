r"""Deep sets, the baselines of the paper's robustness study.

Two embeddings per datum (to match the twin networks' complexity), concatenated, aggregated over the set by a mean or by
a channel-wise softmax with one learned temperature :math:`\beta`,

.. math:: a_c = \sum_i \frac{e^{\beta h_{ic}}}{\sum_j e^{\beta h_{jc}}} h_{ic},

and a global network that returns the parameters. An empty set aggregates to zero.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from fishnets.errors import ConfigError, ShapeError
from fishnets.ops.segment_information import segment_sum
from fishnets.ragged import Sets

__all__ = ["DeepSet"]


class DeepSet(nn.Module):
    """A deep set of the paper's size by default: 87,810 parameters with a mean, 87,811 with a softmax.

    Args:
        num_features: Width of a datum.
        num_params: Number of parameters returned.
        aggregation: ``"mean"`` or ``"softmax"``.
        embedding: Width of each layer of the two embeddings.
        hidden: Width of the global network's two hidden layers.
        seed: Seed of the initial values.

    Example:
        >>> net = DeepSet(num_features=3, num_params=2)
        >>> sum(parameter.numel() for parameter in net.parameters())
        87810
        >>> net(Sets.from_offsets(torch.zeros(7, 3), [0, 2, 7])).shape
        torch.Size([2, 2])
    """

    def __init__(
        self,
        num_features: int,
        num_params: int,
        aggregation: Literal["mean", "softmax"] = "mean",
        embedding: int = 128,
        hidden: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if aggregation not in ("mean", "softmax"):
            raise ConfigError(f'`aggregation` is "{aggregation}" but "mean" or "softmax" was expected.')
        self.num_features = num_features
        generator = torch.Generator().manual_seed(seed)
        self.embeddings = nn.ModuleList(
            _swish_network([num_features, embedding, embedding, embedding], generator) for _ in range(2)
        )
        self.readout = _swish_network([2 * embedding, hidden, hidden, num_params], generator)
        self.temperature = nn.Parameter(torch.ones(())) if aggregation == "softmax" else None

    def forward(self, sets: Sets) -> Tensor:
        """Maps a batch of sets to parameters, shape (num_sets, p)."""
        if sets.num_features != self.num_features:
            raise ShapeError(f"The sets have {sets.num_features} features but {self.num_features} were expected.")
        rows = torch.cat([embedding(sets.values) for embedding in self.embeddings], dim=-1)
        sizes = sets.sizes.clamp(min=1).unsqueeze(-1)
        if self.temperature is None:
            return self.readout(segment_sum(rows, sets.offsets) / sizes)  # type: ignore[no-any-return]
        return self.readout(_softmax_sum(rows, self.temperature, sets))  # type: ignore[no-any-return]


def _softmax_sum(rows: Tensor, temperature: Tensor, sets: Sets) -> Tensor:
    logits = temperature * rows
    index = sets.index.unsqueeze(-1).expand_as(rows)
    peak = logits.detach().new_full((len(sets), rows.shape[1]), -torch.inf)
    peak = peak.scatter_reduce(0, index, logits.detach(), "amax")
    weight = torch.exp(logits - peak[sets.index])
    total = segment_sum(weight, sets.offsets)
    return segment_sum(weight * rows, sets.offsets) / total.clamp(min=torch.finfo(rows.dtype).tiny)


def _swish_network(widths: list[int], generator: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        linear = nn.utils.skip_init(nn.Linear, a, b)
        with torch.no_grad():
            linear.weight.copy_((2 * torch.rand((b, a), generator=generator) - 1) * (3 / a) ** 0.5)
            linear.bias.zero_()
        layers += [linear, nn.SiLU()]
    return nn.Sequential(*layers[:-1])
