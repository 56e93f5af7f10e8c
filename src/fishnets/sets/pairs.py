r"""Pre-aggregated training in the style of PAIRS: embeddings learned on one or two data, a head on means of many.

After the description of Wehenkel, Kagan, Heinrich and Pollard, "It Just Takes Two: Scaling Amortized Inference to Large
Sets" (arXiv 2605.07972, 2026). This follows the description of the idea, not the authors' code, and takes the mean
squared error where they may take another loss:

1. A mean deep set :math:`\rho(\frac1n \sum_i \phi(d_i))` is trained on sets of one or two data.
2. :math:`\phi` is frozen. The mean embeddings of sets of the wanted size are computed once, and the head :math:`\rho`
   alone is trained further on them: a set has become one row, whatever its size.

The head is made for one size or range of sizes; another needs another second stage.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fishnets.errors import ConfigError
from fishnets.networks.deepsets import DeepSetNetwork
from fishnets.networks.pooling import with_values
from fishnets.ragged import Sets
from fishnets.sets.fitting import expect_sets, next_seed
from fishnets.sets.history import History
from fishnets.sets.regression import CHUNK, Regressor, squared_error
from fishnets.sets.sources import Batch, Simulator, StoredSource, size_range
from fishnets.sets.training import Schedule, Settings, train

__all__ = ["PairsHistory", "fit_pairs"]


@dataclass(frozen=True, eq=False, repr=False)
class PairsHistory:
    """What happened in the two stages, and how many rows were simulated for the second."""

    pairs: History
    head: History
    num_data: int

    def __repr__(self) -> str:
        return f"PairsHistory(\n  pairs: {self.pairs}\n  head: {self.head}\n  num_data: {self.num_data:,}\n)"


def fit_pairs(
    regressor: Regressor,
    simulator: Simulator,
    *,
    size: int | Sequence[int],
    steps: int = 5_000,
    head_steps: int = 5_000,
    num_sets: int = 10_000,
    batch_data: int = 3_200,
    batch_sets: int = 512,
    learning_rate: Schedule = 5e-3,
    head_learning_rate: Schedule = 1e-3,
    validation_fraction: float = 0.1,
    device: torch.device | str | None = None,
    progress: bool | None = None,
) -> PairsHistory:
    """Trains a mean deep set on sets of one and two data, then its head on pre-aggregated sets of the wanted size.

    Args:
        regressor: Regressor of a :class:`fishnets.networks.DeepSet` with a mean.
        simulator: Called as ``simulator(theta, size, generator)``.
        size: The wanted set size or range (low, high).
        steps: Updates of the first stage.
        head_steps: Updates of the second stage.
        num_sets: Sets simulated for the second stage.
        batch_data: Rows in a step of the first stage.
        batch_sets: Sets in a step of the second stage.
        learning_rate: Schedule of the first stage, as in :meth:`Regressor.fit`.
        head_learning_rate: Schedule of the second stage.
        validation_fraction: The share of the second stage's sets held out for validation.
        device: Where to train: by default where the model is.
        progress: Whether to show progress bars; by default when stderr is a terminal.

    Returns:
        The histories of both stages and the number of rows simulated for the second. Its own history counts a set as
        one row.

    Example:
        >>> from fishnets.simulators import LinearRegression
        >>> line = LinearRegression()
        >>> model = Regressor(3, line.prior)
        >>> history = fit_pairs(model, line, size=50, steps=5, head_steps=5, num_sets=100)
        >>> history.num_data, history.head.num_data
        (5000, 450)
    """
    network = regressor.networks
    if not isinstance(network, DeepSetNetwork) or network.temperature is not None:
        raise ConfigError(
            f"`regressor` is one of {regressor.recipe.network!r} but only means of embeddings can be taken in advance: "
            'give `Regressor(..., network=DeepSet("mean"))`.'
        )
    size_range(size)  # what is wrong with the second stage is better said before the first
    if num_sets < 2 or batch_sets < 1:
        raise ConfigError(f"`num_sets` is {num_sets} and `batch_sets` {batch_sets}; at least 2 and 1 were expected.")
    if not 0 <= validation_fraction < 1:
        raise ConfigError(f"`validation_fraction` is {validation_fraction} but 0 <= fraction < 1 was expected.")
    settings = Settings(head_steps, head_learning_rate, max(1, head_steps // 100), None, 1.0, True, 0, 0)
    pairs = regressor.fit(
        simulator,
        size=(1, 2),
        steps=steps,
        batch_data=batch_data,
        learning_rate=learning_rate,
        device=device,
        progress=progress,
    )
    seed = next_seed(regressor)
    batch, num_data = _pre_aggregated(regressor, network, simulator, size, num_sets, seed)
    head = _Head(network.readout, regressor.recipe.members)
    losses = squared_error(head, regressor.theta_shift, regressor.theta_scale)
    held = min(num_sets - 1, max(1, math.ceil(validation_fraction * num_sets)))
    train_on, validation = (Batch(batch.sets[part], batch.theta[part]) for part in (slice(held, None), slice(held)))
    source = StoredSource(train_on, validation, min(batch_sets, num_sets - held), seed, "pre-aggregated")
    shown = sys.stderr.isatty() if progress is None else progress
    history = train(head, losses, losses, source, settings, None, "head", shown, lambda _: None)
    regressor.num_fits += 1
    return PairsHistory(pairs, history, num_data)


class _Head(nn.Module):
    """The readout of K members on sets of one row, which holds the members' embeddings side by side."""

    def __init__(self, readout: nn.Module, members: int) -> None:
        super().__init__()
        self.readout, self.members = readout, members

    def forward(self, sets: Sets) -> Tensor:
        """Maps embeddings (B, K c) to parameters (K, B, p); the mean over one row is the row."""
        return self.readout(sets.values.unflatten(1, (self.members, -1)).transpose(0, 1))  # type: ignore[no-any-return]


@torch.no_grad()
def _pre_aggregated(
    regressor: Regressor,
    network: DeepSetNetwork,
    simulator: Simulator,
    size: int | Sequence[int],
    num_sets: int,
    seed: int,
) -> tuple[Batch, int]:
    """Simulates sets and replaces each by one row, its mean embeddings (K c); with the number of rows there were."""
    (low, high), device = size_range(size), regressor.theta_shift.device
    generator = torch.Generator(device).manual_seed(seed + 2)
    rows, thetas, num_data, at_once = [], [], 0, max(1, CHUNK // high)
    for first in range(0, num_sets, at_once):
        theta = regressor.prior.sample(min(at_once, num_sets - first), generator).to(torch.float32)
        share = torch.rand(len(theta), generator=generator, device=device)
        sizes = (low * (high / low) ** share).round().long()
        sets = expect_sets(simulator(theta, sizes, generator), regressor.recipe.num_features).check_finite()
        seen = regressor.standardised(sets)
        means = network.aggregate(with_values(seen, seen.values.to(torch.float32)))  # (K, B, c)
        rows.append(means.transpose(0, 1).flatten(1))
        thetas.append(theta)
        num_data += sets.num_data
    return Batch(Sets.from_block(torch.cat(rows).unsqueeze(1)), torch.cat(thetas)), num_data
