"""The training loop of conditional densities: all pairs resident on the device, batches by index, best weights kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fishnets.errors import ConfigError, NonFiniteLossError
from fishnets.inference.densities import Density
from fishnets.ops.replay import ReplayedStep, own_stream
from fishnets.sets.history import History
from fishnets.sets.progress import progress_bar
from fishnets.sets.training import Settings

__all__ = ["Pairs", "fit_density"]

ROWS = 2**15  # looked at together in a validation
CHECK_EVERY = 50  # steps between looks at the loss on a GPU, which wait for it


@dataclass(frozen=True, eq=False)
class Pairs:
    """Variables (N, d), conditions (N, c), both float32, and the log-determinants (N,) that complete a density."""

    variables: Tensor
    conditions: Tensor
    log_det: Tensor

    def __len__(self) -> int:
        return len(self.variables)

    def __getitem__(self, key: Tensor | slice) -> Pairs:
        return Pairs(self.variables[key], self.conditions[key], self.log_det[key])

    def losses(self, density: Density) -> Tensor:
        """Negative log-densities, shape (N,)."""
        return -(density.log_prob(self.variables, self.conditions) + self.log_det)


def fit_density(
    density: Density, pairs: Pairs, settings: Settings, batch_size: int, validation_fraction: float, progress: bool
) -> History:
    """Maximises the mean log-density of the pairs and leaves the best weights in ``density``.

    Adam with a warm-up and a cosine, gradients clipped. Of the weights whose validation loss is within one standard
    error of the lowest, the newest are kept, as in :mod:`fishnets.sets.training`.

    Args:
        density: The module to train.
        pairs: The pairs, on the device of the module.
        settings: Steps, rates, clipping and patience.
        batch_size: Pairs in a step, drawn with replacement.
        validation_fraction: Share of the pairs held out.
        progress: Whether to show a progress bar on stderr.

    Returns:
        What happened; losses are mean negative log-densities, in nats.
    """
    held_out = round(validation_fraction * len(pairs))
    if not 0 < held_out < len(pairs) or batch_size < 1:
        raise ConfigError(
            f"{len(pairs)} pairs with `validation_fraction` {validation_fraction} leave {held_out} for validation, and "
            f"`batch_size` is {batch_size}; at least one pair for each, and a batch of at least 1, were expected."
        )
    device = pairs.variables.device
    generator = torch.Generator(device).manual_seed(settings.seed)
    order = torch.randperm(len(pairs), generator=generator, device=device)
    run = _Run(density, pairs[order[held_out:]], pairs[order[:held_out]], settings, generator, batch_size)
    try:
        with progress_bar(progress, settings.steps, 1) as show, own_stream(device):
            run.loop(show)
    finally:
        run.take_best()
    return run.history


class _Run:
    """What changes during training."""

    def __init__(
        self,
        density: Density,
        train: Pairs,
        validation: Pairs,
        settings: Settings,
        generator: torch.Generator,
        batch_size: int,
    ) -> None:
        assert isinstance(density, nn.Module)
        device = generator.device
        on_gpu = device.type == "cuda"
        self.density, self.parameters = density, list(density.parameters())
        self.train, self.validation, self.settings, self.generator = train, validation, settings, generator
        rate = torch.zeros((), device=device) if on_gpu else 0.0  # a captured update sees a tensor change
        self.optimizer = torch.optim.Adam(self.parameters, lr=rate, fused=True, capturable=on_gpu)
        self.chosen = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self.apply = ReplayedStep(self.update) if on_gpu else self.update
        self.best = [p.detach().clone() for p in self.parameters]
        self.lowest: Tensor | None = None
        self.loss, self.loss_sum, self.steps_since = torch.zeros((), device=device), torch.zeros((), device=device), 0
        self.clipped = torch.zeros((), dtype=torch.int64, device=device)
        self.history = History(best_step=[0], best_loss=[math.inf], lowest_step=[0], clipped=[0])

    def loop(self, show: Callable[[History], None]) -> None:
        """Steps until done or out of patience."""
        settings, history, start = self.settings, self.history, time.monotonic()
        self.validate(start)
        while history.num_steps < settings.steps and history.stopped == "running":
            self.step()
            history.seconds = time.monotonic() - start
            if history.num_steps % settings.validate_every == 0 or history.num_steps == settings.steps:
                self.validate(start)
                show(history)
                waited = history.num_steps - history.lowest_step[0]
                if settings.patience is not None and waited >= settings.patience * settings.validate_every:
                    history.stopped = "patience"
        history.stopped = "finished" if history.stopped == "running" else history.stopped

    def step(self) -> None:
        """One update on the next batch; on a GPU its loss is looked at now and then only, since that waits for it."""
        step = self.history.num_steps
        torch.randint(len(self.train), self.chosen.shape, generator=self.generator, out=self.chosen)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(self.settings.rate_at(step))
            else:
                group["lr"] = self.settings.rate_at(step)
        self.apply()
        if self.chosen.device.type == "cpu" or step % CHECK_EVERY == 0:
            self.expect_finite(float(self.loss))
        self.steps_since += 1
        self.history.num_steps += 1
        self.history.num_data += len(self.chosen)

    def update(self) -> None:
        """Loss, gradients, clipping and optimiser on the chosen pairs; nothing is read back from the device."""
        loss = self.train[self.chosen].losses(self.density).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        self.clipped += norm > self.settings.clip
        self.optimizer.step()
        self.loss.copy_(loss.detach())
        self.loss_sum += loss.detach()

    @torch.no_grad()
    def validate(self, start: float) -> None:
        """Looks at the validation pairs and keeps the weights if they did well."""
        history, parts = self.history, range(0, len(self.validation), ROWS)
        losses = torch.cat([self.validation[i : i + ROWS].losses(self.density) for i in parts])
        value = float(losses.mean())
        self.expect_finite(value)
        history.steps.append(history.num_steps)
        history.train_loss.append([float(self.loss_sum) / max(1, self.steps_since)])
        history.validation_loss.append([value])
        history.learning_rate.append(self.settings.rate_at(history.num_steps))
        history.elapsed.append(time.monotonic() - start)
        history.data_seen.append(history.num_data)
        history.clipped = [int(self.clipped)]
        self.loss_sum.zero_()
        self.steps_since = 0
        if self.as_good_as_lowest(losses) or not self.settings.keep_best:
            history.best_step, history.best_loss = [history.num_steps], [value]
            self.best = [p.detach().clone() for p in self.parameters]

    def as_good_as_lowest(self, losses: Tensor) -> bool:
        """Whether the losses (N,) exceed the lowest so far by no more than one standard error of the difference."""
        if self.lowest is None:
            self.lowest = losses
        difference = losses - self.lowest
        mean, error = float(difference.mean()), float(difference.std(correction=0)) / math.sqrt(len(losses))
        if mean < 0:
            self.lowest, self.history.lowest_step = losses, [self.history.num_steps]
        return mean <= error

    def expect_finite(self, loss: float) -> None:
        """Raises where a loss is NaN or infinite."""
        if not math.isfinite(loss):
            self.history.stopped = "failed"
            raise NonFiniteLossError(
                f"The loss is {loss} at step {self.history.num_steps}, so the fit has failed. Try a smaller "
                "`learning_rate`, or look for extreme summaries."
            )

    @torch.no_grad()
    def take_best(self) -> None:
        """Puts the best weights into the density."""
        for parameter, best in zip(self.parameters, self.best, strict=True):
            parameter.copy_(best)
