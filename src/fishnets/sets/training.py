"""The one training loop for sets.

Adam with a warm-up and a cosine (or a given staircase) of learning rates, gradients clipped member by member, a fixed
validation set looked at regularly, the best weights of each member kept (the newest within one standard error of the
lowest validation loss). The loop can be interrupted at any step and resumed from its checkpoint with identical results.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from fishnets.errors import CheckpointError, ConfigError, NonFiniteError, NonFiniteLossError
from fishnets.ops.replay import own_stream
from fishnets.sets.container import read_container, write_container
from fishnets.sets.history import History
from fishnets.sets.interruption import leave, noted_signals
from fishnets.sets.progress import progress_bar
from fishnets.sets.replay import DrawnAhead, Replayed
from fishnets.sets.sources import Batch, Source

__all__ = ["Schedule", "Settings", "train"]

Schedule = float | Sequence[tuple[int, float]]
Losses = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class Settings:
    """How to train; :meth:`fishnets.Fishnet.fit` says what each field means, except for the last two.

    ``fast_steps`` is the number of updates, the first ones, taken in lower precision; ``seed`` is that of the batches.
    """

    steps: int
    learning_rate: Schedule
    validate_every: int
    patience: int | None
    clip: float
    keep_best: bool
    fast_steps: int
    seed: int

    def __post_init__(self) -> None:
        if self.steps < 1 or self.validate_every < 1:
            raise ConfigError(
                f"`steps` is {self.steps} and `validate_every` {self.validate_every}; both must be at least 1."
            )
        if not self.clip > 0:
            raise ConfigError(f"`clip` is {self.clip} but a positive gradient norm was expected.")
        if self.patience is not None and self.patience < 1:
            raise ConfigError(f"`patience` is {self.patience} but at least 1, or None, was expected.")
        rate = self.learning_rate
        try:
            rates = [rate] if isinstance(rate, int | float) else [value for _, value in rate]
        except TypeError:
            rates = []
        if not rates or not all(0 <= r < math.inf for r in rates):
            raise ConfigError(f"`learning_rate` is {rate} but a rate or stairs [(steps, rate), ...] were expected.")

    def rate_at(self, step: int) -> float:
        """Learning rate of a step: warm-up and cosine, or the staircase that was given."""
        if isinstance(self.learning_rate, int | float):
            warm_up = min(1.0, (step + 1) / min(100, max(1, self.steps // 10)))
            return self.learning_rate * warm_up * 0.5 * (1 + math.cos(math.pi * step / self.steps))
        for length, rate in self.learning_rate:
            if step < length:
                return rate
            step -= length
        return self.learning_rate[-1][1]


def train(
    network: nn.Module,
    losses: Losses,
    fast_losses: Losses,
    source: Source,
    settings: Settings,
    checkpoint: Path | None,
    description: str,
    progress: bool,
    finish: Callable[[History], None],
) -> History:
    """Trains stacked members and leaves the best weights of each in ``network``.

    Args:
        network: The stacked networks; every parameter has the members as its first dimension.
        losses: Batch to losses per member and set, shape (K, B), differentiable.
        fast_losses: The same in lower precision, used for the first ``settings.fast_steps`` updates.
        source: Where batches come from.
        settings: How to train.
        checkpoint: File to write to and, where it exists, to resume from.
        description: What is trained and how, compared when resuming.
        progress: Whether to show a progress bar on stderr.
        finish: Called once the best weights are in place, however training ended.

    Returns:
        What happened.
    """
    run = _Run(network, losses, fast_losses, source, settings, f"{description} {settings} {source.digest}")
    if checkpoint is not None and not checkpoint.parent.is_dir():
        raise ConfigError(f"`checkpoint` is {checkpoint} but there is no folder {checkpoint.parent}; create it first.")
    if checkpoint is not None and checkpoint.exists():
        run.restore(checkpoint)
    if run.history.stopped in ("finished", "patience"):
        run.take_best()
        finish(run.history)
        return run.history
    run.history.stopped = "running"
    bar = progress_bar(progress, settings.steps, run.members)
    with noted_signals() as caught, bar as show, own_stream(run.device):
        try:
            _loop(run, caught, checkpoint, show)
        finally:
            # any other exception may have struck in the middle of a step, from which no exact resume is possible
            if checkpoint is not None and run.history.stopped in ("finished", "patience", "interrupted"):
                run.store(checkpoint)
            run.take_best()
            finish(run.history)
    if caught:
        leave(caught[0], checkpoint, run.history.num_steps)
    return run.history


def _loop(run: _Run, caught: list[int], checkpoint: Path | None, show: Callable[[History], None]) -> None:
    """Steps until the run is finished, out of patience or told to end."""
    settings, history = run.settings, run.history
    run.tick(start=True)
    if history.num_steps == 0 and not history.steps:
        run.validate()
    last_store = time.monotonic()
    while history.stopped == "running":
        run.step()
        run.tick()
        if history.num_steps % settings.validate_every == 0 or history.num_steps == settings.steps:
            run.validate()
            show(history)
            if checkpoint is not None and time.monotonic() - last_store > 60:
                run.store(checkpoint)
                last_store = time.monotonic()
        if history.num_steps >= settings.steps:
            history.stopped = "finished"
        elif run.out_of_patience():
            history.stopped = "patience"
        elif caught:
            history.stopped = "interrupted"


class _Run:
    """Everything that changes during training, so that it can be stored and restored as one."""

    def __init__(
        self,
        network: nn.Module,
        losses: Losses,
        fast_losses: Losses,
        source: Source,
        settings: Settings,
        identity: str,
    ) -> None:
        self.network, self.losses, self.source, self.settings = network, losses, source, settings
        self.identity = identity
        self.parameters = dict(network.named_parameters())
        first = next(iter(self.parameters.values()))
        self.members, self.device = len(first), first.device
        self.generator = torch.Generator(self.device).manual_seed(settings.seed)
        on_gpu = self.device.type == "cuda"
        rate = torch.zeros((), device=self.device) if on_gpu else 0.0  # a captured update sees a tensor change
        self.optimizer = torch.optim.Adam(self.parameters.values(), lr=rate, fused=True, capturable=on_gpu)
        self.ahead = DrawnAhead(source, self.generator) if on_gpu else None
        self.apply_fast, self.apply = (self.updates_with(f, on_gpu) for f in (fast_losses, losses))
        self.best = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.history = History(
            best_step=[0] * self.members,
            best_loss=[math.inf] * self.members,
            lowest_step=[0] * self.members,
            clipped=[0] * self.members,
        )
        self.loss = torch.zeros(self.members, device=self.device)
        self.loss_sum = torch.zeros(self.members, device=self.device)
        self.clipped = torch.zeros(self.members, dtype=torch.int64, device=self.device)
        self.lowest: Tensor | None = None  # validation losses per set at each member's lowest mean, (K, B)
        self.steps_since = 0
        self.clock = time.monotonic()

    def tick(self, start: bool = False) -> None:
        """Adds the time since the last tick to the history."""
        now = time.monotonic()
        self.history.seconds += 0.0 if start else now - self.clock
        self.clock = now

    def step(self) -> None:
        """One update on the next batch."""
        step = self.history.num_steps
        batch = self.source.batch(step, self.generator) if self.ahead is None else self.ahead.batch(step)
        self.set_rate(self.settings.rate_at(step))
        (self.apply_fast if step < self.settings.fast_steps else self.apply)(batch)
        if self.ahead is not None:
            # reading the loss waits for the device, so a GPU is asked only now and then
            if step % 50 == 0 and not bool(torch.isfinite(self.loss).all()):
                self.fail(self.loss, batch)
            if step + 1 < self.settings.steps:
                self.ahead.draw(step + 1)
        self.steps_since += 1
        self.history.num_steps += 1
        self.history.num_data += batch.sets.num_data

    def updates_with(self, losses: Losses, on_gpu: bool) -> Callable[[Batch], None]:
        """The update with these losses, on a GPU replayed as CUDA graphs."""
        update = partial(self.update, losses)
        return Replayed(update) if on_gpu else update

    def update(self, losses: Losses, batch: Batch) -> None:
        """Loss, gradients, clipping and optimiser; on a GPU nothing is read back from the device."""
        loss = losses(batch).mean(1)  # (K,)
        if self.ahead is None and not bool(torch.isfinite(loss).all()):
            self.fail(loss, batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.sum().backward()
        self.clip()
        self.optimizer.step()
        self.loss.copy_(loss.detach())
        self.loss_sum += loss.detach()

    def set_rate(self, rate: float) -> None:
        """Sets the learning rate, in place where captured updates read it."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    @torch.no_grad()
    def clip(self) -> None:
        """Scales each member's gradient to at most the allowed norm, counting how often."""
        grads = [p.grad for p in self.parameters.values() if p.grad is not None]
        norm = torch.stack([g.flatten(1).square().sum(1) for g in grads]).sum(0).sqrt()  # (K,)
        scale = (self.settings.clip / norm).clamp(max=1.0)
        self.clipped += norm > self.settings.clip
        for grad in grads:
            grad.mul_(scale.view(-1, *[1] * (grad.ndim - 1)))

    def fail(self, loss: Tensor, batch: Batch) -> None:
        """Raises an error that says which members (K,) have no finite loss, and whether the data are at fault."""
        self.history.stopped = "failed"
        members = (~torch.isfinite(loss)).nonzero().flatten().tolist()
        try:
            batch.sets.check_finite()
            cause = "The data of that step are finite; try a smaller `learning_rate` or standardised inputs."
            if self.ahead is not None:
                cause = "On a GPU the loss is read at every 50th step: the fault may lie in a step before. " + cause
        except NonFiniteError as error:
            cause = f"The data of that step are at fault: {error}"
        raise NonFiniteLossError(
            f"The loss is {loss[members[0]].item()} at step {self.history.num_steps} (member {members[0]}, "
            f"{len(members)} of {self.members}). Training has stopped; the model keeps its best "
            f"weights (step {self.history.best_step[members[0]]}). {cause}"
        )

    @torch.no_grad()
    def validate(self) -> None:
        """Looks at the validation sets and keeps the weights of the members that did well."""
        history = self.history
        losses = torch.cat([self.losses(part) for part in _pieces(self.source.validation)], dim=1)  # (K, B)
        values = losses.mean(1).tolist()
        if not all(math.isfinite(v) for v in values) and history.num_steps:
            self.fail(torch.tensor(values), self.source.validation)
        history.steps.append(history.num_steps)
        history.train_loss.append((self.loss_sum / max(1, self.steps_since)).tolist())
        history.validation_loss.append(values)
        history.learning_rate.append(self.settings.rate_at(history.num_steps))
        history.elapsed.append(history.seconds + time.monotonic() - self.clock)
        history.data_seen.append(history.num_data)
        history.clipped = self.clipped.tolist()
        self.loss_sum.zero_()
        self.steps_since = 0
        for k, good in enumerate(self.as_good_as_lowest(losses)):
            if good or not self.settings.keep_best:
                history.best_loss[k], history.best_step[k] = values[k], history.num_steps
                for name, parameter in self.parameters.items():
                    self.best[name][k] = parameter[k]

    def as_good_as_lowest(self, losses: Tensor) -> list[bool]:
        """Whether each member's losses (K, B) exceed its lowest so far by no more than one standard error.

        The same sets are compared, so the error is that of the differences. Of weights that validation cannot tell
        apart the newest are the best trained; taking the lowest mean instead would pick the luckiest.
        """
        if self.lowest is None:
            self.lowest = losses.clone()
        difference = losses - self.lowest
        mean, error = difference.mean(1), difference.std(1, correction=0) / math.sqrt(difference.shape[1])
        lower = (mean < 0) | ~torch.isfinite(self.lowest).all(1)  # an untrained member may start without a finite loss
        self.lowest = torch.where(lower.unsqueeze(1), losses, self.lowest)
        for k in lower.nonzero().flatten().tolist():
            self.history.lowest_step[k] = self.history.num_steps
        return (lower | (mean <= error)).tolist()

    def out_of_patience(self) -> bool:
        """Whether this step was a look, and no member has been at its lowest for as many looks as allowed."""
        patience = self.settings.patience
        if patience is None or self.history.steps[-1] != self.history.num_steps:
            return False
        return self.history.num_steps - max(self.history.lowest_step) >= patience * self.settings.validate_every

    @torch.no_grad()
    def take_best(self) -> None:
        """Puts each member's best weights into the network."""
        for name, parameter in self.parameters.items():
            parameter.copy_(self.best[name])

    def store(self, path: Path) -> None:
        """Writes everything an exact resume needs."""
        tensors: dict[str, Tensor] = {f"weight.{name}": p for name, p in self.parameters.items()}
        tensors |= {f"best.{name}": p for name, p in self.best.items()}
        for name, parameter in self.parameters.items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"adam.{key}.{name}"] = value
        tensors |= {"generator": self.generator_state(), "loss_sum": self.loss_sum, "clipped": self.clipped}
        if self.lowest is not None:
            tensors["lowest"] = self.lowest
        header = {"identity": self.identity, "history": self.history.to_dict(), "steps_since": self.steps_since}
        write_container(path, "checkpoint", header, tensors)

    def generator_state(self) -> Tensor:
        """The generator as it was before a batch was drawn ahead, if one was."""
        ahead = self.ahead
        return self.generator.get_state() if ahead is None or ahead.waiting is None else ahead.state

    @torch.no_grad()
    def restore(self, path: Path) -> None:
        """Reads what :meth:`store` wrote, refusing the checkpoint of another run."""
        header, tensors = read_container(path, "checkpoint")
        if header["identity"] != self.identity:
            raise CheckpointError(
                f"The checkpoint {path} belongs to another run, so training cannot resume from it. It was written by\n"
                f"  {header['identity']}\nand this run is\n  {self.identity}\nDelete it or give another `checkpoint`."
            )
        for name, parameter in self.parameters.items():
            parameter.copy_(tensors[f"weight.{name}"])
            self.best[name].copy_(tensors[f"best.{name}"])
            state = {
                key: tensors[f"adam.{key}.{name}"].to(self.device)
                for key in ("step", "exp_avg", "exp_avg_sq")
                if f"adam.{key}.{name}" in tensors
            }
            if state:
                self.optimizer.state[parameter] = state
        self.generator.set_state(tensors["generator"])
        self.loss_sum.copy_(tensors["loss_sum"])
        self.clipped.copy_(tensors["clipped"])
        self.lowest = tensors["lowest"].to(self.device) if "lowest" in tensors else None
        self.history, self.steps_since = History(**header["history"]), header["steps_since"]


def _pieces(batch: Batch, max_data: int = 2**20) -> Iterator[Batch]:
    """Cuts a batch into whole sets of at most about ``max_data`` rows together."""
    bounds = batch.sets.offsets.tolist()
    start = 0
    for i in range(1, len(bounds)):
        if i == len(bounds) - 1 or bounds[i + 1] - bounds[start] > max_data:
            noise = None if batch.noise is None else batch.noise[start:i]
            yield Batch(batch.sets[start:i], batch.theta[start:i], noise)
            start = i
