r"""Classifier two-sample test: how well can a network tell two sets of samples apart?

.. math:: \text{C2ST} = \tfrac12 \left( P[c(\theta) = 1 \,|\, \theta \sim q] + P[c(\theta) = 0 \,|\, \theta \sim p]
    \right) \in [\tfrac12, 1]

for the best classifier *c*: 1/2 where *q* and *p* agree, 1 where they share no mass; in general one half plus half of
their total-variation distance. A trained classifier is a lower bound to that, up to noise. The recipe is that of
sbibm (Lopez-Paz and Oquab 2017, arXiv:1610.06545; Lueckmann et al. 2021, arXiv:2101.04653): parameters standardised by
the reference, a perceptron with two hidden layers of 10 p units, accuracy on held-out folds.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fishnets.arrays import ArrayLike, as_float
from fishnets.errors import ConfigError, DataError, NonFiniteError, ShapeError, describe_rows
from fishnets.inference.efficiency import Measured
from fishnets.networks import StackedLinear

__all__ = ["c2st"]

STEPS, CHECK_EVERY, BATCH_SIZE, LEARNING_RATE = 800, 20, 256, 1e-2
MIN_SAMPLES = 50


def c2st(
    samples: ArrayLike, reference: ArrayLike, generator: torch.Generator | None = None, folds: int = 5
) -> Measured:
    """Accuracy of a small network at telling samples from reference samples; 0.5 is indistinguishable.

    Both sides count the same, however many samples they have. The networks of all folds train together on the CPU, each
    keeping the weights that did best on a tenth of its training data.

    Args:
        samples: Samples under test, shape (N, p), N at least 50.
        reference: Samples of the law they should follow, shape (M, p). Its mean and spread standardise both.
        generator: Source of folds, first weights and mini-batches; the same fixed seed each time when absent.
        folds: Number of parts, each held out once.

    Returns:
        Accuracy on held-out samples, with the binomial error of N and M samples (training noise is not in it).

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> samples, reference = torch.randn(2, 200, 1, generator=generator)
        >>> c2st(samples + 10, reference).value > 0.98
        True
    """
    ours, theirs = _checked(samples, reference, folds)
    source = torch.Generator().manual_seed(0) if generator is None else generator
    centre, spread = theirs.mean(0), theirs.std(0)
    spread = torch.where(spread > 0, spread, 1)  # a parameter that never varies tells by its value alone
    x = ((torch.cat([ours, theirs]) - centre) / spread).to(torch.float32)
    label = torch.cat([torch.ones(len(ours)), torch.zeros(len(theirs))])
    fold = torch.cat([_folds(len(ours), folds, source), _folds(len(theirs), folds, source)])
    logits = _held_out_logits(x, label, fold, folds, source)
    hit = (logits > 0) == (label > 0)
    rates = [hit[label == side].double().mean().item() for side in (1, 0)]
    variance = sum(r * (1 - r) / n for r, n in zip(rates, (len(ours), len(theirs)), strict=True))
    return Measured(sum(rates) / 2, math.sqrt(variance) / 2)


def _folds(count: int, folds: int, source: torch.Generator) -> Tensor:
    """A fold for each sample (count,), all nearly the same size."""
    return _shuffle(torch.arange(count) % folds, source)


def _shuffle(values: Tensor, source: torch.Generator) -> Tensor:
    return values[torch.randperm(len(values), generator=source, device=source.device).cpu()]


def _held_out_logits(x: Tensor, label: Tensor, fold: Tensor, folds: int, source: torch.Generator) -> Tensor:
    """Logit of each sample (n,), from the network that was not trained on it."""
    parts = [_shuffle((fold != k).nonzero().flatten(), source) for k in range(folds)]
    size = min(len(part) for part in parts)
    rows = torch.stack([part[:size] for part in parts])  # (K, size); folds differ by a sample or two
    network = _train(x, label, rows[:, size // 10 :], rows[:, : size // 10], source)
    with torch.no_grad():
        logits: Tensor = network(x.unsqueeze(0)).squeeze(-1)  # (K, n)
        return logits.gather(0, fold.unsqueeze(0)).squeeze(0)


@torch.enable_grad()
def _train(x: Tensor, label: Tensor, training: Tensor, validation: Tensor, source: torch.Generator) -> nn.Sequential:
    """Trains one network per row of indices, and keeps for each the weights of the lowest validation loss."""
    network = _network(len(training), x.shape[1], source)
    optimiser = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    best = torch.full((len(training),), torch.inf)
    kept = [p.detach().clone() for p in network.parameters()]
    balance = (label == 0).sum() / (label == 1).sum()

    def loss(rows: Tensor) -> Tensor:
        target = label[rows]
        each = binary_cross_entropy_with_logits(network(x[rows]).squeeze(-1), target, reduction="none")
        return (each * torch.where(target == 1, balance, 1)).mean(1)  # (K,)

    for step in range(STEPS):
        optimiser.param_groups[0]["lr"] = LEARNING_RATE * (1 + math.cos(math.pi * step / STEPS)) / 2
        pick = torch.randint(training.shape[1], (BATCH_SIZE,), generator=source, device=source.device).cpu()
        optimiser.zero_grad()
        loss(training[:, pick]).sum().backward()
        optimiser.step()
        if (step + 1) % CHECK_EVERY == 0:
            with torch.no_grad():
                now = loss(validation)
                better = now < best
                best = torch.where(better, now, best)
                for keep, p in zip(kept, network.parameters(), strict=True):
                    keep[better] = p[better]
    with torch.no_grad():
        for keep, p in zip(kept, network.parameters(), strict=True):
            p.copy_(keep)
    return network


def _network(members: int, num_params: int, source: torch.Generator) -> nn.Sequential:
    width = 10 * num_params
    return nn.Sequential(
        StackedLinear(members, num_params, width, source),
        nn.ReLU(),
        StackedLinear(members, width, width, source),
        nn.ReLU(),
        StackedLinear(members, width, 1, source),
    )


def _checked(samples: ArrayLike, reference: ArrayLike, folds: int) -> tuple[Tensor, Tensor]:
    ours = as_float(samples, "samples").detach().cpu().to(torch.float64)
    theirs = as_float(reference, "reference").detach().cpu().to(torch.float64)
    if ours.ndim != 2 or theirs.ndim != 2 or ours.shape[1:] != theirs.shape[1:] or ours.shape[-1] == 0:
        raise ShapeError(
            f"`samples` has shape {tuple(ours.shape)} and `reference` {tuple(theirs.shape)} but (N, p) and (M, p) were "
            "expected, with the same parameters. One parameter still needs its axis: (N, 1)."
        )
    for name, values in (("samples", ours), ("reference", theirs)):
        if len(values) < MIN_SAMPLES:
            raise DataError(f"`{name}` holds {len(values)} samples but at least {MIN_SAMPLES} were expected.")
        wrong = (~values.isfinite().all(1)).nonzero().flatten().tolist()
        if wrong:
            raise NonFiniteError(f"`{name}` is NaN or infinite in {len(wrong)} rows: {describe_rows(wrong)}.")
    if not 2 <= folds <= MIN_SAMPLES // 2:
        raise ConfigError(f"`folds` is {folds} but 2 to {MIN_SAMPLES // 2} were expected; 5 is usual.")
    return ours, theirs
