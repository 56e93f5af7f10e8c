r"""The toy of the paper's appendix on deep sets: the parameters of the tests follow another law than in training.

Data :math:`x_i \sim \mathcal N(\mu, 1)`; training with :math:`\mu \sim \mathcal U(0, 2)`, tests with :math:`\mu \sim
\mathcal N(0.5, 0.1)`. A deep set with the identity as embedding sees the mean of the data and learns a function of it,

.. math:: \hat\mu = \rho\left(\tfrac1n \sum_i x_i\right),

which is the posterior mean *under the training prior*, and so does a Fishnet. Both are compared with the sample mean,
which knows no prior, and with that posterior mean, which is exact here.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fishnets.experiments.records import Metric, metric
from fishnets.inference.efficiency import mean_with_error, ratio_of_means
from fishnets.networks import DeepSet, Gated
from fishnets.priors import Box
from fishnets.ragged import Sets
from fishnets.sets import Fishnet, Regressor

__all__ = ["posterior_mean", "prior_shift"]

NUM_DATA = 10
PRIOR = Box([0.0], [2.0])


def prior_shift(steps: int, seed: int, device: str, progress: bool | None = None) -> dict[str, Metric]:
    """Trains both networks and measures them under the training law and the shifted one.

    Args:
        steps: Updates of each network.
        seed: Seed of everything random.
        device: Where to compute.
        progress: Whether to show progress bars.

    Returns:
        Mean squared error over that of the sample mean, and bias, of each network and of the exact posterior mean.
    """
    deepset = Regressor(1, PRIOR, DeepSet(embedding=32, hidden=32), seed=seed).to(device)
    deepset.fit(_means, size=NUM_DATA, steps=steps, batch_data=5_120, learning_rate=2e-3, progress=progress)
    fishnet = Fishnet(1, PRIOR, Gated(16, 1), seed=seed).to(device)
    fishnet.fit(_data, size=NUM_DATA, steps=steps, batch_data=5_120, progress=progress)
    found: dict[str, Metric] = {}
    generator = torch.Generator(device).manual_seed(10**6 + seed)
    noise = torch.randn((20_000, 1), generator=generator, device=device, dtype=torch.float64)
    laws = {"training": PRIOR.sample(20_000, generator), "shifted": 0.5 + 0.1 * noise}
    for law, theta in laws.items():
        sizes = torch.full((len(theta),), NUM_DATA, device=device)
        sets = _data(theta.to(torch.float32), sizes, generator)
        average = sets.values.view(-1, NUM_DATA).mean(1).to(torch.float64)
        single = Sets.from_block(average.to(torch.float32).view(-1, 1, 1))
        estimates = {
            "deepset": deepset.estimate(single)[:, 0],
            "fishnets": fishnet.estimate(sets).mean[:, 0],
            "exact-under-training-prior": posterior_mean(average, NUM_DATA),
        }
        own = (average - theta[:, 0]).square()
        for name, estimate in estimates.items():
            error = estimate - theta[:, 0]
            found[f"prior-shift/mse-over-sample-mean/{name}/{law}"] = metric(ratio_of_means(error.square(), own))
            found[f"prior-shift/bias/{name}/{law}"] = metric(mean_with_error(error), bound=0.0)
    return found


def posterior_mean(average: Tensor, num_data: int) -> Tensor:
    """Exact posterior mean under the uniform prior on (0, 2) from the average of unit-variance data, shape (T,).

    Example:
        >>> posterior_mean(torch.tensor([1.0]).double(), 10)
        tensor([1.], dtype=torch.float64)
    """
    spread = 1 / math.sqrt(num_data)
    low, high = (0.0 - average) / spread, (2.0 - average) / spread
    density = [torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi) for z in (low, high)]
    mass: Tensor = torch.special.ndtr(high) - torch.special.ndtr(low)
    return average + spread * (density[0] - density[1]) / mass


def _data(theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
    """Sets of data with unit variance around theta (B, 1)."""
    number = int(size[0])
    noise = torch.randn((len(theta), number, 1), generator=generator, device=theta.device, dtype=theta.dtype)
    return Sets.from_block(theta.unsqueeze(1) + noise)


def _means(theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
    """Sets of one row, the mean of as many data as asked for: what an identity embedding hands on."""
    noise = torch.randn(theta.shape, generator=generator, device=theta.device, dtype=theta.dtype)
    return Sets.from_block((theta + noise / size.unsqueeze(1).sqrt()).unsqueeze(1))
