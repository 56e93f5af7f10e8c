"""Studies of graph networks: learning rates tried on validation data, then runs over seeds.

Every network of a study has the same budget: a short run at each learning rate, the best of which, on validation data,
is used in the long runs. A long run is scored by the test data where it is best on validation data. How long an epoch
takes is measured in a run of its own, so that long runs may share a machine. A task with a method ``at_end`` has the
weights that were best measured once more, by the scores it returns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fishnets.errors import ConfigError, NonFiniteError, NonFiniteLossError
from fishnets.experiments.parts import Parts
from fishnets.experiments.records import Metric, metric
from fishnets.inference.efficiency import mean_with_error

if TYPE_CHECKING:
    from fishnets.graphs.selection import Task

__all__ = ["Curve", "GraphStudy", "Runs", "StudyResult", "fingerprint", "paired_difference", "spread"]

MEASURES = ("test", "valid", "epochs_to_best", "last")
AT_END, DIVERGED = "at_end/", "diverged"
TIMED = 10  # epochs
LAST = 10  # evaluations, whose spread the paper reports


@dataclass(frozen=True)
class Curve:
    """One run: epochs of its evaluations, and its loss and scores there."""

    epochs: list[float]
    loss: list[float]
    valid: list[float]
    test: list[float]


@dataclass(frozen=True, eq=False)
class Runs:
    """Long runs of a network: measures by name, a value for each seed, and the curve of the first.

    Also the learning rate, the validation scores of all rates that were tried, and how many tasks were scored, by the
    part of the split.
    """

    seeds: tuple[int, ...]
    rate: float
    tried: dict[float, float]
    scored: dict[str, int]
    weights: int
    seconds_per_epoch: float
    measures: dict[str, Tensor]
    curve: Curve

    def metrics(self, label: str, score: str = "rocauc") -> dict[str, Metric]:
        """All that is recorded of them; ``label`` says which network this is, ``score`` what test data measured."""
        found = {f"{score}/{label}": spread(self.measures["test"]), f"valid/{label}": spread(self.measures["valid"])}
        epochs = self.measures["epochs_to_best"]
        found |= {f"epochs_to_best/{label}": spread(epochs)}
        found |= {f"seconds_to_best/{label}": spread(self.seconds_per_epoch * epochs)}
        found |= {f"seconds_per_epoch/{label}": Metric(self.seconds_per_epoch, 0.0)}
        found[f"last_evaluations/{label}"] = Metric(
            float(self.measures["last"].mean()), float(self.measures["last_spread"].mean())
        )
        found |= {f"tuning/{label}/{rate:g}": Metric(valid, 0.0) for rate, valid in self.tried.items()}
        found |= {f"{name}/{label}": spread(more) for name, more in self.measures.items() if name.startswith(AT_END)}
        found |= {f"tasks_scored/{part}": Metric(float(tasks), 0.0) for part, tasks in self.scored.items()}
        return found | {
            f"learning-rate/{label}": Metric(self.rate, 0.0),
            f"weights/{label}": Metric(float(self.weights), 0.0),
        }


@dataclass(frozen=True, eq=False)
class StudyResult:
    """Metrics by name, and the runs of each network."""

    config: Any
    metrics: dict[str, Metric]
    seconds: float
    runs: dict[str, Runs]


def spread(values: Tensor) -> Metric:
    """Mean over seeds, with their standard deviation; 0 for a single one.

    Example:
        >>> spread(torch.tensor([1.0, 3.0]))
        Metric(value=2.0, error=1.4142135623730951, paper=None, bound=None)
    """
    values = values.double()
    return Metric(float(values.mean()), float(values.std()) if len(values) > 1 else 0.0)


def paired_difference(one: Runs, other: Runs) -> Metric:
    """How much better one network is on test data than another with the same seeds.

    With the error of the mean; 0, which is none, for a single seed.
    """
    both = [seed for seed in one.seeds if seed in other.seeds]
    if not both:
        raise ConfigError(f"Runs with the seeds {one.seeds} and {other.seeds} have none in common to be paired by.")
    scores = [[runs.measures["test"][runs.seeds.index(seed)] for seed in both] for runs in (one, other)]
    ahead = torch.stack(scores[0]) - torch.stack(scores[1])
    return metric(mean_with_error(ahead)) if len(both) > 1 else Metric(float(ahead.mean()), 0.0)


def fingerprint(**tensors: Tensor | None) -> str:
    """A hash of tensors, their names, kinds and shapes.

    Example:
        >>> fingerprint(x=torch.zeros(2)) == fingerprint(x=torch.zeros(2, 1))
        False
    """
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        if tensor is not None:
            total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


class GraphStudy:
    """Tunes and trains networks, part by part.

    Args:
        depends: All that a run depends on besides its name, rate and seed, in plain JSON values.
        checkpoints: Folder for finished runs, from which an interrupted study continues.
        seed: Seed of the study.
        device: Where to train.
    """

    def __init__(self, depends: Mapping[str, Any], checkpoints: Path | None, seed: int, device: str) -> None:
        self.depends, self.parts, self.seed, self.device = dict(depends), Parts(checkpoints), seed, device

    @staticmethod
    def of(config: Any, checkpoints: Path | None, choice: Sequence[str]) -> GraphStudy:
        """The study of a config whose runs depend on all of its fields but those that choose among runs."""
        depends = {name: value for name, value in config.to_dict().items() if name not in choice}
        return GraphStudy(depends, checkpoints, config.seed, config.device)

    def runs(
        self,
        label: str,
        make: Callable[[], Any],
        task: Task | Callable[[int], Task],
        short: Any,
        long: Any,
        rates: Sequence[float],
        seeds: Sequence[int],
    ) -> Runs:
        """Long runs at the learning rate that is best in short ones.

        Args:
            label: Name of the network, in the names of its parts.
            make: Makes it, with PyTorch's global generator.
            task: What it is trained for, or a seed to that, where it changes from seed to seed.
            short: Recipe of a short run.
            long: Recipe of a long run.
            rates: Learning rates to try; a single one is used untried.
            seeds: Seeds of the long runs; the first is also that of the short ones.
        """
        task_of = task if callable(task) else lambda _: task
        first, tried = task_of(seeds[0]), {}
        if len(rates) > 1:
            tried = self.tried(label, make, first, short, rates, seeds[0])
        rate = max(tried, key=lambda one: tried[one]) if tried else rates[0]
        found = [self.run(label, make, task_of(seed), replace(long, learning_rate=rate), seed) for seed in seeds]
        for seed, one in zip(seeds, found, strict=True):
            if DIVERGED in one:
                raise NonFiniteLossError(f"{label} diverges at the rate {rate:g} with seed {seed}; try smaller ones.")
        names = [*MEASURES, *(name for name in found[0] if name.startswith(AT_END))]
        measures = {name: torch.tensor([one[name].value for one in found], dtype=torch.float64) for name in names}
        measures["last_spread"] = torch.tensor([one["last"].error for one in found], dtype=torch.float64)
        depends = self.depends | {"label": label, "timed": TIMED}
        timed = partial(self._time, make, first, replace(long, learning_rate=rate))
        seconds = self.parts.measured(f"{_name(label)}-time", depends, timed)
        scored: dict[str, int] = getattr(first, "tasks_scored", dict)()
        weights, curve = int(found[0]["weights"].value), _curve(found[0])
        return Runs(tuple(seeds), rate, tried, scored, weights, seconds["epoch"].value, measures, curve)

    def tried(
        self, label: str, make: Callable[[], Any], task: Task, recipe: Any, rates: Sequence[float], seed: int
    ) -> dict[float, float]:
        """Validation scores of learning rates; one at which training diverges is left out."""
        runs = {rate: self.run(label, make, task, replace(recipe, learning_rate=rate), seed) for rate in rates}
        found = {rate: one["valid"].value for rate, one in runs.items() if DIVERGED not in one}
        if not found:
            raise NonFiniteLossError(f"{label} diverges at every rate of {list(rates)}.")
        return found

    def run(self, label: str, make: Callable[[], Any], task: Task, recipe: Any, seed: int) -> dict[str, Metric]:
        """What one run measured, now or before; :data:`DIVERGED` alone where its loss did not stay finite."""
        depends = self.depends | {"label": label, "recipe": asdict(recipe), "run": seed}
        name = f"{_name(label)}-{recipe.learning_rate:g}-{recipe.epochs}-{seed}"
        # an interrupted run continues: its file is named by all that it depends on, and goes when the run is over
        digest = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()[:12]
        unfinished = None if self.parts.folder is None else self.parts.folder / f"{name}-{digest}.pt"
        found = self.parts.measured(name, depends, partial(self._measure, make, task, recipe, seed, unfinished))
        if unfinished is not None:
            unfinished.unlink(missing_ok=True)
        return found

    def _measure(
        self, make: Callable[[], Any], task: Task, recipe: Any, seed: int, unfinished: Path | None
    ) -> dict[str, Metric]:
        from fishnets.graphs.selection import fit

        with self._seeded(seed):
            model = make().to(self.device)
            try:
                curves = fit(model, task, recipe, unfinished)
            except (NonFiniteLossError, NonFiniteError):  # of the loss or of scores
                return {DIVERGED: Metric(1.0, 0.0)}
            more: Mapping[str, float] = getattr(task, "at_end", lambda _: {})(model)
        last = torch.tensor(curves.scores["test"][-LAST:], dtype=torch.float64)
        found = {name: Metric(curves.at_best(name), 0.0) for name in ("test", "valid")}
        found["epochs_to_best"] = Metric(float(curves.epochs_to_best), 0.0)
        found["last"] = spread(last)
        found["weights"] = Metric(float(sum(p.numel() for p in model.parameters())), 0.0)
        found |= {AT_END + name: Metric(score, 0.0) for name, score in more.items()}
        for i, epoch in enumerate(curves.epochs):
            found[f"curve/{epoch}/loss"] = Metric(curves.loss[i], 0.0)
            found |= {f"curve/{epoch}/{part}": Metric(curves.scores[part][i], 0.0) for part in ("valid", "test")}
        return found

    def _time(self, make: Callable[[], Any], task: Task, recipe: Any) -> dict[str, Metric]:
        """Seconds of an epoch of training, without evaluation, after some that load what is needed."""
        from fishnets.graphs.selection import fit

        with self._seeded(0):
            model = make().to(self.device)
            timed = min(TIMED, recipe.epochs)
            for epochs in (max(1, timed // 3), timed):  # with steps that cannot diverge
                some = replace(recipe, epochs=epochs, every=epochs, patience=None, warm_up=0, learning_rate=1e-9)
                curves = fit(model, task, some)
        return {"epoch": Metric(curves.seconds_per_epoch, 0.0)}

    @contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        """Seeds PyTorch's generators, of weights and dropout, and lets a GPU round products to TF32, for a while."""
        where, precision = torch.device(self.device), torch.get_float32_matmul_precision()
        with torch.random.fork_rng(devices=[where.index or 0] if where.type == "cuda" else []):
            torch.manual_seed(1_000 * self.seed + seed)
            torch.set_float32_matmul_precision("high")
            try:
                yield
            finally:
                torch.set_float32_matmul_precision(precision)


def _name(label: str) -> str:
    """A label in the name of a file."""
    return label.replace("/", "-")


def _curve(found: Mapping[str, Metric]) -> Curve:
    """The curve among what a run measured."""
    epochs = [int(name.split("/")[1]) for name in found if name.startswith("curve/") and name.endswith("/loss")]
    lines = {what: [found[f"curve/{epoch}/{what}"].value for epoch in epochs] for what in ("loss", "valid", "test")}
    return Curve([float(epoch) for epoch in epochs], **lines)
