"""The paper's results and ours: one module each, a config in, a record out."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fishnets.experiments import (
    gamma_figures,
    gamma_population,
    linear_figures,
    linear_scaling,
    robustness,
    robustness_figures,
)
from fishnets.experiments.records import Metric, Record, read_record, write_record

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Metric",
    "Record",
    "gamma_figures",
    "gamma_population",
    "linear_figures",
    "linear_scaling",
    "read_record",
    "robustness",
    "robustness_figures",
    "write_record",
]


@dataclass(frozen=True)
class Experiment:
    """What the command line needs of an experiment.

    Args:
        config_for: Preset, protocol, seed and device to a config, which has ``to_dict``.
        run: Config, folder for checkpoints and whether to show progress to a result with ``metrics`` and ``seconds``.
        draw: Result and the stem of its figures' names to figures in files.
    """

    config_for: Callable[..., Any]
    run: Callable[..., Any]
    draw: Callable[..., None]


EXPERIMENTS = {
    "linear-scaling": Experiment(linear_scaling.config_for, linear_scaling.run, linear_figures.draw),
    "gamma-population": Experiment(gamma_population.config_for, gamma_population.run, gamma_figures.draw),
    "gamma-censored": Experiment(
        partial(gamma_population.config_for, threshold=gamma_population.THRESHOLD),
        gamma_population.run,
        gamma_figures.draw,
    ),
    "robustness": Experiment(robustness.config_for, robustness.run, robustness_figures.draw),
}
