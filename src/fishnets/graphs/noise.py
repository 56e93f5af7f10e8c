r"""Noise on edges: scores that were measured by counting.

A score :math:`p_e \in [0, 1]` of an edge is seen as :math:`n / N` with :math:`n \sim \mathrm{Binomial}(N, p_e)`; the
number of trials :math:`N`, one for all scores of an edge, is known and joins the features as :math:`N / 200`, or over
the largest bound of other laws. In the paper (section 4.3) :math:`N` is uniform on 20, ..., 199 in training; in tests
one half of the edges has 20 to 49 and the other 170 to 199.

Here the two directions of an edge are one measurement, and which half an edge is in is drawn for each. In the paper's
code every stored direction is measured on its own, and the halves are those of the list of edges: ``published=True``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fishnets.errors import ConfigError, DataError, ShapeError, describe_rows
from fishnets.graphs.datasets import sum_of_edges

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = ["LAWS", "EdgeNoise", "Laws", "largest_bound"]

Laws = Mapping[str, Sequence[tuple[int, int]]]
LAWS: Laws = {"train": ((20, 200),), "test": ((20, 50), (170, 200))}
"""Ranges of the number of trials, each with as many edges: from the first to below the last."""


class EdgeNoise:
    """Draws noisy versions of a graph.

    Args:
        data: A graph of N nodes with ``edge_index`` (2, E) and ``edge_attr`` (E, d), scores between 0 and 1. Edges
            between the same two nodes are one measurement, in either direction and however often they are listed,
            unless their scores differ: those of other scores are others.
        published: Whether to measure as the paper's code does.
        laws: Ranges of the number of trials by the name of the law; :data:`LAWS` are the paper's. Trials join the
            features divided by the largest bound, 200 there.

    Example:
        >>> from torch_geometric.data import Data
        >>> edge_index, score = torch.tensor([[0, 1], [1, 0]]), torch.tensor([[0.5], [0.5]])
        >>> noise = EdgeNoise(Data(edge_index=edge_index, edge_attr=score, num_nodes=2))
        >>> noisy = noise.draw("train", torch.Generator().manual_seed(0))
        >>> noisy.edge_attr.shape, bool(noisy.edge_attr[0].eq(noisy.edge_attr[1]).all())
        (torch.Size([2, 2]), True)
    """

    def __init__(self, data: Data, published: bool = False, laws: Laws = LAWS) -> None:
        score = data.edge_attr
        shape = None if score is None else tuple(score.shape)
        if shape is None or len(shape) != 2 or shape[0] != data.edge_index.shape[1]:
            raise ShapeError(
                f"`edge_attr` has shape {shape} but scores of shape ({data.edge_index.shape[1]}, d) were expected."
            )
        strange = score[~((score >= 0) & (score <= 1))]
        if len(strange):
            raise DataError(
                f"`edge_attr` holds {describe_rows(strange.tolist())} but scores between 0 and 1 were expected: they "
                "are the probabilities of counts."
            )
        self.data, self.published, self.laws, self.largest = data, published, laws, largest_bound(laws)
        ends = data.edge_index.sort(dim=0).values  # the same for both directions
        if published:
            self.first = self.edge = torch.arange(ends.shape[1], device=ends.device)
        else:
            self.first, self.edge = _numbered(ends[0] * data.num_nodes + ends[1])
            if not torch.equal(score[self.first][self.edge], score):  # parallel edges stay apart by their scores
                self.first, self.edge = _numbered(torch.cat([ends.T.double(), score.double()], dim=1))

    def draw(self, law: str, generator: torch.Generator) -> Data:
        """A noisy version of the graph.

        Args:
            law: Numbers of trials: those of ``"train"`` or of ``"test"``, or another of ``laws``.
            generator: On the device of the graph; where a realisation is to stay, one with a seed of its own.

        Returns:
            The graph with ``edge_attr`` (E, d + 1) and ``x``, the sum of those of the edges that end in each node,
            (N, d + 1).
        """
        if law not in self.laws:
            raise ConfigError(f"`law` is {law!r} but one of {list(self.laws)} was expected.")
        trials = self._trials(law, generator)
        score = self.data.edge_attr[self.first].to(trials)
        counts = torch.binomial(trials.unsqueeze(1).expand_as(score), score, generator=generator)
        features = torch.cat([counts / trials.unsqueeze(1), trials.unsqueeze(1) / self.largest], dim=1)
        noisy = copy(self.data)  # whose edges are the same tensor: what is remembered of it serves all versions
        noisy.edge_attr = features[self.edge].float()
        noisy.x = sum_of_edges(noisy)
        return noisy

    def _trials(self, law: str, generator: torch.Generator) -> Tensor:
        """Number of trials of every measurement, float32."""
        num, device = len(self.first), self.first.device
        ranges = torch.tensor(self.laws[law], device=device)
        if self.published:
            which = torch.arange(num, device=device) * len(ranges) // max(1, num)
        else:
            which = torch.randint(len(ranges), (num,), generator=generator, device=device)
        low, high = ranges[which].T
        beyond = (torch.rand(num, generator=generator, device=device) * (high - low)).floor()
        trials: Tensor = torch.minimum(low + beyond, high - 1).float()
        return trials


def largest_bound(laws: Laws) -> int:
    """The bound that no number of trials reaches, by which they are divided; raises where there are no such numbers.

    Example:
        >>> largest_bound(LAWS)
        200
    """
    for law, ranges in laws.items():
        broken = [(low, high) for low, high in ranges if not 1 <= low < high]
        if broken or not ranges:
            given = f"trials from {broken[0][0]} to below {broken[0][1]}" if broken else "no range"
            raise ConfigError(f"`laws[{law!r}]` has {given}, but numbers of trials, 1 or more, were expected.")
    if not laws:
        raise ConfigError("`laws` is empty but ranges of the number of trials, by the name of a law, were expected.")
    return max(high for ranges in laws.values() for _, high in ranges)


def _numbered(rows: Tensor) -> tuple[Tensor, Tensor]:
    """One place of each row that differs from others, and the number of each row among these."""
    _, number = torch.unique(rows, dim=0, return_inverse=True)
    first = number.new_zeros(int(number.max()) + 1 if len(number) else 0)
    first[number] = torch.arange(len(number), device=number.device)
    return first, number
