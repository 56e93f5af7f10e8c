"""Studies of graph networks: learning rates tried on validation data, then runs over seeds.

Every network of a study has the same budget: a run at each learning rate, the best of which, on validation data, is
used with all seeds. A run is scored by the test data where it is best on validation data. How long an epoch takes is
measured after all runs of a network, which may thus share a machine; it should have nothing else to do then. On a GPU,
sums in no fixed order make runs of one seed differ; on a CPU they agree to the last bit, also where one was
interrupted. A study may be continued on another device: runs are kept whatever they ran on, which is recorded, and
epochs are timed where the record is made.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fishnets.errors import ConfigError, DataError, NonFiniteError, NonFiniteLossError, ShapeError
from fishnets.experiments.parts import Parts
from fishnets.experiments.records import Metric, hardware_name, metric
from fishnets.inference.efficiency import mean_with_error

if TYPE_CHECKING:
    from fishnets.graphs.selection import Task

__all__ = [
    "AT_END",
    "CURVE",
    "DIVERGED",
    "ON_A_GPU",
    "TO_THE_END",
    "Curve",
    "GraphStudy",
    "NamedGraph",
    "Runs",
    "StudyConfig",
    "StudyResult",
    "naming",
    "paired_difference",
    "spread",
]

AT_END, CURVE, DIVERGED = "at_end/", "curve/", "diverged"  # names of what a run measured, or how they begin
ON_A_GPU = "on_a_gpu"  # which runs were
TO_THE_END = "trained_to_the_end"  # which runs went on to the last epoch they were allowed: they may not have converged
TIMED = 10  # epochs at most, after as many that load what is needed
LONG = 30.0  # seconds, for which as many as fit are timed
LAST = 10  # evaluations, whose spread the paper reports


@dataclass(frozen=True, eq=False)
class NamedGraph:
    """A graph with its name and a hash of what is in it."""

    name: str
    sha256: str
    data: Any

    def to_dict(self) -> dict[str, Any]:
        """What identifies the graph, in plain JSON values."""
        return {"name": self.name, "sha256": self.sha256, "num_nodes": int(self.data.num_nodes)}


class StudyConfig:
    """A config of which ``table`` holds data, or several: what identifies them is recorded in their place."""

    table: Any

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        data = [one.to_dict() for one in self.table] if isinstance(self.table, tuple) else self.table.to_dict()
        return vars(self) | {"table": data}


@dataclass(frozen=True)
class Curve:
    """One run: epochs of its evaluations, and its loss and scores there."""

    epochs: list[float]
    loss: list[float]
    valid: list[float]
    test: list[float]


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs of a network: measures by name, a value for each seed, and their curves.

    Also the learning rate, validation scores of those that were tried, those that diverged, and how many tasks were
    scored, by the part of the split.
    """

    seeds: tuple[int, ...]
    rate: float
    tried: dict[float, float]
    diverged: tuple[float, ...]
    scored: dict[str, int]
    seconds_per_epoch: float
    measures: dict[str, Tensor]
    curves: tuple[Curve, ...]

    @property
    def curve(self) -> Curve:
        """That of the first seed."""
        return self.curves[0]

    def metrics(self, label: str, score: str = "rocauc") -> dict[str, Metric]:
        """All that is recorded of them; ``label`` says which network this is, ``score`` what test data measured."""
        found = {f"{score}/{label}": spread(self.measures["test"]), f"valid/{label}": spread(self.measures["valid"])}
        found |= {f"loss/{label}": spread(self.measures["loss"])}
        epochs = self.measures["epochs_to_best"]
        found |= {f"{name}/{label}": spread(self.measures[name]) for name in ("epochs_to_best", "epochs_trained")}
        found |= {f"{name}/{label}": spread(self.measures[name]) for name in (TO_THE_END, ON_A_GPU)}
        found[f"runs/{label}"] = Metric(float(len(self.seeds)), 0.0)
        found |= {f"seconds_to_best/{label}": spread(self.seconds_per_epoch * epochs)}
        found |= {f"seconds_per_epoch/{label}": Metric(self.seconds_per_epoch, 0.0)}
        found[f"last_evaluations/{label}"] = Metric(
            float(self.measures["last"].mean()), float(self.measures["last_spread"].mean())
        )
        found |= {f"tuning/{label}/{rate:g}": Metric(valid, 0.0) for rate, valid in self.tried.items()}
        found |= {f"diverged/{label}/{rate:g}": Metric(1.0, 0.0) for rate in self.diverged}
        found |= {f"{name}/{label}": spread(more) for name, more in self.measures.items() if name.startswith(AT_END)}
        found |= {f"tasks_scored/{part}": Metric(float(tasks), 0.0) for part, tasks in self.scored.items()}
        return found | {
            f"learning-rate/{label}": Metric(self.rate, 0.0),
            f"weights/{label}": Metric(float(self.measures["weights"][0]), 0.0),
        }


@dataclass(frozen=True, eq=False)
class StudyResult:
    """Metrics by name, and the runs of each network."""

    config: Any
    metrics: dict[str, Metric]
    seconds: float
    runs: dict[str, Runs]


@contextmanager
def naming(folder: Path | str | None) -> Iterator[None]:
    """Says which folder, where what was read from it is refused."""
    try:
        yield
    except (DataError, ShapeError) as error:
        raise type(error)(f"{folder}: {error}") from error


def spread(values: Tensor) -> Metric:
    """Mean over seeds, with their standard deviation; 0 for a single one.

    Example:
        >>> spread(torch.tensor([1.0, 3.0]))
        Metric(value=2.0, error=1.4142135623730951, paper=None, bound=None)
    """
    values = values.double()
    return Metric(float(values.mean()), float(values.std()) if len(values) > 1 else 0.0)


def paired_difference(one: Runs, other: Runs, *, part: str = "test") -> Metric:
    """How much better some runs are on test data, or on another part, than others with the same seeds.

    With the error of the mean; 0, which is none, for a single seed.
    """
    both = [seed for seed in one.seeds if seed in other.seeds]
    if not both:
        raise ConfigError(f"Runs with the seeds {one.seeds} and {other.seeds} have none in common to be paired by.")
    scores = [[runs.measures[part][runs.seeds.index(seed)] for seed in both] for runs in (one, other)]
    ahead = torch.stack(scores[0]) - torch.stack(scores[1])
    return metric(mean_with_error(ahead)) if len(both) > 1 else Metric(float(ahead.mean()), 0.0)


class GraphStudy:
    """Tunes and trains networks, part by part.

    Args:
        depends: All that a run depends on besides its name, rate and seed, in plain JSON values.
        checkpoints: Folder for finished runs, from which an interrupted study continues.
        seed: Seed of the study.
        device: Where to train.
        progress: Whether to print a line on stderr for every run; by default when that is a terminal.
    """

    def __init__(
        self,
        depends: Mapping[str, Any],
        checkpoints: Path | None,
        seed: int,
        device: str,
        progress: bool | None = None,
    ) -> None:
        self.depends, self.parts, self.seed, self.device = dict(depends), Parts(checkpoints), seed, device
        self.shown = sys.stderr.isatty() if progress is None else progress
        self.known: dict[str, dict[str, Metric]] = {}

    @staticmethod
    def of(config: Any, checkpoints: Path | None, choice: Sequence[str], progress: bool | None = None) -> GraphStudy:
        """The study of a config; its runs depend on all fields but the device and those that choose among runs."""
        depends = {name: value for name, value in config.to_dict().items() if name not in (*choice, "device")}
        return GraphStudy(depends, checkpoints, config.seed, config.device, progress)

    def runs(
        self,
        label: str,
        make: Callable[[], Any],
        task: Callable[[int], Task],
        recipe: Any,
        rates: Sequence[float],
        seeds: Sequence[int],
        tuning_seeds: int = 1,
        tuning_recipe: Any = None,
    ) -> Runs:
        """Runs with all seeds, at the learning rate that is best on validation data with the first of them.

        Args:
            label: Name of the network, in the names of its parts.
            make: Makes it, with PyTorch's global generator.
            task: From a seed to what it is trained for.
            recipe: How, at a learning rate of which nothing is kept.
            rates: Learning rates to try; a single one is used untried.
            seeds: Seeds of the runs.
            tuning_seeds: With how many of them every rate is tried.
            tuning_recipe: How it is tried; as all runs are by default.
        """
        run, attempt = (partial(self._run, label, make, task, how) for how in (recipe, tuning_recipe or recipe))
        tried = {rate: [attempt(rate, seed) for seed in seeds[:tuning_seeds]] for rate in rates if len(rates) > 1}
        valid = {
            rate: float(spread(_values(some, "valid")).value)
            for rate, some in tried.items()
            if not any(DIVERGED in one for one in some)
        }
        if tried and not valid:
            raise NonFiniteLossError(f"{label} diverges at every rate of {list(rates)}.")
        rate = max(valid, key=lambda one: valid[one]) if valid else rates[0]
        found = [run(rate, seed) for seed in seeds]
        for seed, one in zip(seeds, found, strict=True):
            if DIVERGED in one:
                raise NonFiniteLossError(f"{label} diverges at the rate {rate:g} with seed {seed}; try smaller ones.")
        measures = {name: _values(found, name) for name in found[0] if not name.startswith(CURVE)}
        measures["last_spread"] = torch.tensor([one["last"].error for one in found], dtype=torch.float64)
        first, curves = task(seeds[0]), tuple(_curve(one) for one in found)
        measures["epochs_trained"] = torch.tensor([curve.epochs[-1] for curve in curves], dtype=torch.float64)
        measures[TO_THE_END] = (measures["epochs_trained"] >= recipe.epochs).double()
        timed = partial(self._time, make, first, replace(recipe, learning_rate=rate))
        where = {"hardware": hardware_name(self.device)}
        depends = self.depends | {"label": label, "timed": TIMED, "replay": recipe.replay} | where
        seconds = self.parts.measured(f"{_name(label)}-time", depends, timed)
        scored: dict[str, int] = getattr(first, "tasks_scored", dict)()
        diverged = tuple(one for one in tried if one not in valid)
        return Runs(tuple(seeds), rate, valid, diverged, scored, seconds["epoch"].value, measures, curves)

    def _run(
        self, label: str, make: Callable[[], Any], task: Callable[[int], Task], recipe: Any, rate: float, seed: int
    ) -> dict[str, Metric]:
        """What one run measured, now or before; :data:`DIVERGED` alone where loss or scores did not stay finite."""
        recipe = replace(recipe, learning_rate=rate)
        depends = self.depends | {"label": label, "recipe": asdict(recipe), "run": seed}
        name = f"{_name(label)}-{rate:g}-{recipe.epochs}-{seed}"
        key = json.dumps(depends, sort_keys=True)
        if key in self.known:
            return self.known[key]
        path = self.parts.path(name, depends)
        unfinished = None if path is None else path.with_suffix(".pt")  # an interrupted run continues from there
        found = self.parts.measured(name, depends, partial(self._measure, make, task, recipe, seed, unfinished))
        if unfinished is not None:
            unfinished.unlink(missing_ok=True)
        if self.shown:
            print(f"{label}, rate {rate:g}, seed {seed}: {_in_words(found)}", file=sys.stderr)
        self.known[key] = found
        return found

    def _measure(
        self, make: Callable[[], Any], task: Callable[[int], Task], recipe: Any, seed: int, unfinished: Path | None
    ) -> dict[str, Metric]:
        from fishnets.graphs.selection import fit

        with self._seeded(seed):
            model, one = make().to(self.device), task(seed)
            try:
                curves = fit(model, one, recipe, unfinished)
            except (NonFiniteLossError, NonFiniteError):
                return {DIVERGED: Metric(1.0, 0.0)}
            more: Mapping[str, float] = getattr(one, "at_end", lambda _: {})(model)
        last = torch.tensor(curves.scores["test"][-LAST:], dtype=torch.float64)
        found = {name: Metric(curves.at_best(name), 0.0) for name in ("test", "valid")}
        found["epochs_to_best"] = Metric(float(curves.epochs_to_best), 0.0)
        found["last"], found["loss"] = spread(last), Metric(curves.loss[curves.best], 0.0)
        found["weights"] = Metric(float(sum(p.numel() for p in model.parameters())), 0.0)
        found[ON_A_GPU] = Metric(float(torch.device(self.device).type == "cuda"), 0.0)
        found |= {AT_END + name: Metric(score, 0.0) for name, score in more.items()}
        for i, epoch in enumerate(curves.epochs):
            found[f"{CURVE}{epoch}/loss"] = Metric(curves.loss[i], 0.0)
            found |= {f"{CURVE}{epoch}/{part}": Metric(curves.scores[part][i], 0.0) for part in ("valid", "test")}
        return found

    def _time(self, make: Callable[[], Any], task: Task, recipe: Any) -> dict[str, Metric]:
        """Seconds of an epoch of training, without evaluation, after as many that load, or capture, what is needed."""
        from fishnets.graphs.selection import fit
        from fishnets.ops.replay import WARM_UP

        with self._seeded(0):
            model = make().to(self.device)
            some = replace(recipe, patience=None, warm_up=0, learning_rate=1e-9)  # with steps that cannot diverge
            few = WARM_UP + 1 if recipe.replay else 1
            one = fit(model, task, replace(some, epochs=2 * few, every=few)).seconds_per_later_epoch
            timed = min(TIMED, recipe.epochs, int(LONG / max(one, 1e-6)))
            if timed > few:
                one = fit(model, task, replace(some, epochs=2 * timed, every=timed)).seconds_per_later_epoch
        return {"epoch": Metric(one, 0.0)}

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


def _values(found: Sequence[Mapping[str, Metric]], name: str) -> Tensor:
    """One measure of several runs."""
    return torch.tensor([one[name].value for one in found], dtype=torch.float64)


def _in_words(found: Mapping[str, Metric]) -> str:
    """What a run measured, for who waits."""
    if DIVERGED in found:
        return DIVERGED
    valid, test, best = (found[name].value for name in ("valid", "test", "epochs_to_best"))
    return f"validation {valid:.4f}, test {test:.4f}, best after {best:.0f} of {_curve(found).epochs[-1]:.0f} epochs"


def _name(label: str) -> str:
    """A label in the name of a file."""
    return label.replace("/", "-")


def _curve(found: Mapping[str, Metric]) -> Curve:
    """The curve among what a run measured."""
    epochs = [int(name.split("/")[1]) for name in found if name.startswith(CURVE) and name.endswith("/loss")]
    lines = {what: [found[f"{CURVE}{epoch}/{what}"].value for epoch in epochs] for what in ("loss", "valid", "test")}
    return Curve([float(epoch) for epoch in epochs], **lines)
