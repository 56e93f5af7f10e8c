"""Training with selection: the weights that are best on validation data, and how long it took to get there.

An evaluation after every so many epochs draws the curves; the test score belongs to the epoch that is best on
validation data, and nothing is chosen on the test score.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fishnets.arrays import fingerprint
from fishnets.errors import (
    CheckpointError,
    CheckpointWarning,
    ConfigError,
    FileFormatError,
    NonFiniteError,
    NonFiniteLossError,
    expect_positive,
)
from fishnets.ops.replay import ReplayedStep, own_stream

__all__ = ["Curves", "Recipe", "Task", "fit"]


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Args:
        epochs: Most epochs.
        learning_rate: Step size of Adam.
        patience: Epochs without a better validation score after which training ends; None to go on to the last.
        every: Epochs between evaluations.
        warm_up: Epochs over which the step size rises to its value.
        decay: Whether the step size then falls to zero at the last epoch, along half a cosine.
        clip: Largest norm of a gradient; None for no limit.
        replay: Whether updates are replayed as a CUDA graph, on a GPU and for tasks that train on one whole graph; one
            that is drawn for every epoch has the same edges in all. The network must not wait for the device then, nor
            recompute layers for gradients; aggregations without kernels, such as ``backend="reference"``, do wait.
    """

    epochs: int
    learning_rate: float
    patience: int | None = None
    every: int = 1
    warm_up: int = 0
    decay: bool = False
    clip: float | None = 1.0
    replay: bool = False

    def __post_init__(self) -> None:
        expect_positive(epochs=self.epochs, every=self.every)
        for name in ("learning_rate", "patience", "clip"):
            value = getattr(self, name)
            optional = name != "learning_rate" and value is None
            if not optional and not (isinstance(value, int | float) and value > 0):
                raise ConfigError(f"`{name}` is {value} but a positive number was expected.")
        if self.patience is not None and self.patience < self.every:
            raise ConfigError(
                f"`patience` is {self.patience} epochs, but scores are known every {self.every} epochs: at least as "
                "many were expected."
            )
        if not 0 <= self.warm_up <= self.epochs:
            raise ConfigError(f"`warm_up` is {self.warm_up} but 0 to {self.epochs} epochs were expected.")

    def rate(self, epoch: int) -> float:
        """The step size in an epoch, counted from 0.

        Example:
            >>> Recipe(epochs=10, learning_rate=1.0, warm_up=2).rate(0)
            0.5
        """
        rising = min(1.0, (epoch + 1) / self.warm_up) if self.warm_up else 1.0
        falling = 0.5 * (1 + math.cos(math.pi * epoch / self.epochs)) if self.decay else 1.0
        return self.learning_rate * rising * falling


@dataclass
class Curves:
    """What evaluations found, one entry each: epochs and seconds of training so far, mean loss, and scores by name."""

    epochs: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    scores: dict[str, list[float]] = field(default_factory=dict)

    @property
    def best(self) -> int:
        """Which evaluation had the best validation score, the first where several had."""
        valid = self.scores["valid"]
        return valid.index(max(valid))

    @property
    def epochs_to_best(self) -> int:
        """Epochs until then."""
        return self.epochs[self.best]

    @property
    def seconds_to_best(self) -> float:
        """Seconds of training until then, without those of evaluations."""
        return self.seconds[self.best]

    @property
    def seconds_per_epoch(self) -> float:
        """Mean over the whole training."""
        return self.seconds[-1] / self.epochs[-1]

    @property
    def seconds_per_later_epoch(self) -> float:
        """Mean between the first evaluation and the last: without what is loaded before the first."""
        if len(self.epochs) < 2:
            raise ConfigError(f"There are {len(self.epochs)} evaluations, but two or more were expected.")
        return (self.seconds[-1] - self.seconds[0]) / (self.epochs[-1] - self.epochs[0])

    def at_best(self, name: str) -> float:
        """A score where the validation score was best."""
        return self.scores[name][self.best]

    def add(self, epoch: int, seconds: float, loss: float, scores: Mapping[str, float]) -> None:
        """Adds an evaluation."""
        if "valid" not in scores or (self.scores and set(scores) != set(self.scores)):
            expected = sorted(self.scores) or '"valid" among them'
            raise ConfigError(f"`evaluate` returned the scores {sorted(scores)} but {expected} was expected.")
        if math.isnan(scores["valid"]):
            raise NonFiniteError(f"The validation score is NaN in epoch {epoch}: nothing can be chosen by it.")
        self.epochs.append(epoch)
        self.seconds.append(seconds)
        self.loss.append(loss)
        for name, value in scores.items():
            self.scores.setdefault(name, []).append(float(value))


class Task(Protocol):
    """What a network is trained for; see :mod:`fishnets.graphs.tasks`.

    Where a recipe asks for replays, ``still()`` gives the loss of an update from tensors that stay where they are
    (:class:`fishnets.graphs.tasks.StillLoss`), or None. Where a task has ``identity()``, a text, a checkpoint of a task
    with another one is refused. Studies also ask for ``at_end(model)``, further scores of the
    best weights, and ``tasks_scored()``, how many tasks count in scores, where a task has them.
    """

    def losses(self, model: Any, epoch: int) -> Iterable[Tensor]:
        """Losses of an epoch, counted from 0, each followed by an update: one for a full batch, several for parts of a
        graph or batches of graphs, computed as they are asked for. What an epoch draws should depend on its number, or
        on PyTorch's global generators, alone: training then continues as if it had not stopped."""
        ...

    def evaluate(self, model: Any) -> Mapping[str, float]:
        """Scores by name; the larger ``"valid"``, the better."""
        ...


def fit(model: nn.Module, task: Task, recipe: Recipe, checkpoint: str | Path | None = None) -> Curves:
    """Trains a network with Adam, and leaves it with the weights that were best on validation data.

    Args:
        model: What is trained: in training mode for losses, in evaluation mode, without gradients, for scores.
        task: What for.
        recipe: How.
        checkpoint: File in which training is kept at every evaluation, and from which it continues. One for each run,
            named by its seed too: that of another network, task or recipe is refused. One that was begun with other
            initial weights continues with those, with a :class:`~fishnets.errors.CheckpointWarning`, and is refused
            where it is finished.

    Returns:
        The curves.

    Example:
        >>> class Zero:
        ...     def losses(self, model, epoch):
        ...         yield model(torch.ones(1, 1)).square().sum()
        ...     def evaluate(self, model):
        ...         return {"valid": -float(model(torch.ones(1, 1)).square().sum())}
        >>> _ = torch.manual_seed(0)
        >>> curves = fit(nn.Linear(1, 1), Zero(), Recipe(epochs=100, learning_rate=0.05, every=10))
        >>> curves.epochs_to_best, len(curves.loss)
        (100, 10)
    """
    if not callable(getattr(task, "losses", None)) or not isinstance(recipe, Recipe):
        raise ConfigError(
            f"`task` is a {type(task).__name__} and `recipe` a {type(recipe).__name__}, but a task, such as "
            "`NodeTask(graph)` or `GraphTask(graphs, batch_size)`, and a `Recipe` were expected."
        )
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ConfigError(f"No parameter of the {type(model).__name__} requires a gradient: there is nothing to train.")
    training = _Training(model, task, recipe, None if checkpoint is None else Path(checkpoint))
    try:
        with nullcontext() if training.still is None else own_stream(training.device):
            while not training.done:
                training.run_epoch(task)
                if training.epoch % recipe.every == 0 or training.epoch == recipe.epochs:
                    training.look(task)
    finally:
        training.release()
    model.load_state_dict(training.best)
    model.eval()
    return training.curves


class _Training:
    """A training, as far as it is."""

    def __init__(self, model: nn.Module, task: Any, recipe: Recipe, checkpoint: Path | None) -> None:
        self.model, self.recipe, self.checkpoint = model, recipe, checkpoint
        self.device = next(model.parameters()).device
        on_gpu = self.device.type == "cuda"
        self.still: Any = getattr(task, "still", lambda: None)() if recipe.replay else None
        captured = on_gpu and self.still is not None
        # a captured update sees a tensor change
        self.rate = torch.zeros((), device=self.device) if captured else recipe.learning_rate
        self.optimizer = torch.optim.Adam(model.parameters(), lr=self.rate, fused=True, capturable=captured)
        self.loss = torch.zeros((), device=self.device)
        self.replay = ReplayedStep(self.update_still) if captured else None
        self.curves, self.epoch, self.seconds = Curves(), 0, 0.0
        self.began: float | None = None
        self.best: dict[str, Any] = {}
        self.recent: list[Tensor] = []
        self.identity: dict[str, list[str]] = {}
        if checkpoint is not None:
            self.identity = {
                "recipe": [f"{name}={value}" for name, value in vars(recipe).items()],
                "network": list(_described(model)),
                "task": [getattr(task, "identity", lambda: "")()],
            }
            self.start = fingerprint(**model.state_dict())
            if checkpoint.exists():
                self._restore(checkpoint)

    @property
    def done(self) -> bool:
        """Whether the last epoch is over, or the validation score has not improved for too long."""
        waited = self.curves.epochs[-1] - self.curves.epochs_to_best if self.curves.epochs else 0
        return self.epoch >= self.recipe.epochs or (self.recipe.patience is not None and waited >= self.recipe.patience)

    def run_epoch(self, task: Task) -> None:
        """One epoch of updates, which a GPU may still be busy with."""
        self.began = self._now() if self.began is None else self.began
        rate = self.recipe.rate(self.epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate.fill_(rate) if isinstance(self.rate, Tensor) else rate
        self.model.train()
        if self.still is not None:
            self.still.refresh(self.epoch)
            (self.replay or self.update_still)()
            self.recent.append(self.loss.clone())
        for loss in task.losses(self.model, self.epoch) if self.still is None else ():
            self.step(loss)
            self.recent.append(loss.detach())
        self.epoch += 1

    def update_still(self) -> None:
        """The update of an epoch from tensors that stay where they are."""
        loss = self.still(self.model)
        self.step(loss)
        self.loss.copy_(loss.detach())

    def step(self, loss: Tensor) -> None:
        """Gradients, clipping and optimiser."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.recipe.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimizer.step()

    def release(self) -> None:
        """Gives back what was captured, and gradients, which lie in its memory."""
        self.replay = None
        self.optimizer.zero_grad(set_to_none=True)

    def look(self, task: Task) -> None:
        """Evaluates, remembers the best weights and writes the checkpoint."""
        assert self.began is not None  # by an epoch
        self.seconds += self._now() - self.began
        self.began = None
        loss = float(torch.stack(self.recent).mean())
        if not math.isfinite(loss):
            raise NonFiniteLossError(f"The loss became {loss} in epoch {self.epoch}; use a smaller `learning_rate`.")
        if not all(bool(weight.isfinite().all()) for weight in self.model.parameters()):
            raise NonFiniteLossError(f"Weights are not finite in epoch {self.epoch}; use a smaller `learning_rate`.")
        self.model.eval()
        try:
            with torch.no_grad():
                scores = task.evaluate(self.model)
        except NonFiniteError as error:
            raise NonFiniteLossError(
                f"Nothing can be scored in epoch {self.epoch}; use a smaller `learning_rate`. {error}"
            ) from error
        self.curves.add(self.epoch, self.seconds, loss, scores)
        self.recent = []
        if self.curves.best == len(self.curves.epochs) - 1:
            self.best = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        if self.checkpoint is not None:
            self._save(self.checkpoint)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.monotonic()

    def _save(self, path: Path) -> None:
        state = {
            "identity": self.identity,
            "start": self.start,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best": self.best,
            "curves": vars(self.curves),
            "progress": [self.epoch, self.seconds],
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(path.name + ".part")
        torch.save(state, beside)
        beside.replace(path)  # an interrupted write leaves the last checkpoint whole

    def _restore(self, path: Path) -> None:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            identity = {what: list(state["identity"][what]) for what in self.identity}
            curves, (epoch, seconds) = Curves(**state["curves"]), state["progress"]
            saved = [state[name] for name in ("model", "optimizer", "best", "random", "random_cuda")]
            start = state["start"]
        except (RuntimeError, OSError, EOFError, LookupError, TypeError, ValueError, UnpicklingError) as error:
            raise FileFormatError(f"{path} is no checkpoint of `fit`, or damaged. Remove it to begin anew.") from error
        for what, expected in self.identity.items():
            for found, wanted in zip_longest(identity[what], expected, fillvalue="nothing"):
                if found != wanted:
                    raise CheckpointError(
                        f"{path} is of another {what}: it has {found} where {wanted} was asked for. Name another file, "
                        "one for each run, or remove this one to begin anew."
                    )
        model, optimizer, self.best, random, random_cuda = saved
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        for group in self.optimizer.param_groups:  # where training goes on now, not where it was
            group["capturable"] = self.replay is not None
        self.curves, self.epoch, self.seconds = curves, epoch, seconds
        if start != self.start:
            self._say_other_weights(path)
            self.start = start
        torch.set_rng_state(random.cpu())
        if random_cuda is not None and self.device.type == "cuda":  # else it goes on elsewhere, with other numbers
            torch.cuda.set_rng_state(random_cuda.cpu(), self.device)

    def _say_other_weights(self, path: Path) -> None:
        """Warns that a run begun with other initial weights continues; raises where it is over."""
        hint = "If it is of another seed, name another file, one for each run"
        if self.done:
            raise CheckpointError(
                f"{path} is of a finished run with other initial weights than those given: nothing would be trained. "
                f"{hint}, or remove this one to begin anew."
            )
        warnings.warn(
            f"{path} was begun with other initial weights, and continues with those in place of those given. {hint}.",
            CheckpointWarning,
            stacklevel=5,
        )


def _described(model: nn.Module) -> Iterator[str]:
    """What tells a network from others: its modules with their settings, and the shapes of what they hold."""
    for name, module in model.named_modules():
        settings = {key: value for key, value in vars(module).items() if isinstance(value, bool | int | float | str)}
        listed = ", ".join(f"{key}={value}" for key, value in settings.items() if key != "training" and key[0] != "_")
        yield f"{name or 'the network'}: {type(module).__name__}({listed})"
    for name, value in model.state_dict().items():
        yield f"{name} of shape {tuple(value.shape)}"
