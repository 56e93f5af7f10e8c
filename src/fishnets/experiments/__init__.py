"""The paper's results and ours: one module each, a config in, a record out."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fishnets.experiments import (
    arxiv,
    arxiv_figures,
    gamma_figures,
    gamma_population,
    linear_figures,
    linear_scaling,
    molhiv,
    molhiv_figures,
    noisy_neighbourhoods,
    noisy_neighbourhoods_figures,
    protein_graph,
    proteins,
    proteins_figures,
    robustness,
    robustness_figures,
    saturation,
    saturation_figures,
    string_yeast,
    string_yeast_figures,
    supernovae,
    supernovae_figures,
    union21,
    yeast,
    yeast_figures,
)
from fishnets.experiments.records import Metric, Record, read_record, write_record

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Metric",
    "Record",
    "arxiv",
    "arxiv_figures",
    "gamma_figures",
    "gamma_population",
    "linear_figures",
    "linear_scaling",
    "molhiv",
    "molhiv_figures",
    "noisy_neighbourhoods",
    "noisy_neighbourhoods_figures",
    "protein_graph",
    "proteins",
    "proteins_figures",
    "read_record",
    "robustness",
    "robustness_figures",
    "saturation",
    "saturation_figures",
    "string_yeast",
    "string_yeast_figures",
    "supernovae",
    "supernovae_figures",
    "union21",
    "write_record",
    "yeast",
    "yeast_figures",
]


@dataclass(frozen=True)
class Experiment:
    """What the command line needs of an experiment.

    Args:
        config_for: Preset, protocol, seed and device to a config, which has ``to_dict``.
        run: Config, folder for checkpoints and whether to show progress to a result with ``metrics`` and ``seconds``.
        draw: Result and the stem of its figures' names to figures in files.
        read: Path of a data file, or None where none was given, to what ``config_for`` takes as ``table``; None for
            experiments that need no file.
        anywhere: Whether what one device has finished may be continued on another.
    """

    config_for: Callable[..., Any]
    run: Callable[..., Any]
    draw: Callable[..., None]
    read: Callable[[Path | None], Any] | None = None
    anywhere: bool = False


EXPERIMENTS = {
    "linear-scaling": Experiment(linear_scaling.config_for, linear_scaling.run, linear_figures.draw),
    "gamma-population": Experiment(gamma_population.config_for, gamma_population.run, gamma_figures.draw),
    "gamma-censored": Experiment(
        partial(gamma_population.config_for, threshold=gamma_population.THRESHOLD),
        gamma_population.run,
        gamma_figures.draw,
    ),
    "robustness": Experiment(robustness.config_for, robustness.run, robustness_figures.draw),
    "saturation": Experiment(saturation.config_for, saturation.run, saturation_figures.draw),
    "supernovae": Experiment(
        supernovae.config_for, supernovae.run, supernovae_figures.draw, read=union21.read_union21
    ),
    "noisy-neighbourhoods": Experiment(
        noisy_neighbourhoods.config_for, noisy_neighbourhoods.run, noisy_neighbourhoods_figures.draw
    ),
    "string-yeast": Experiment(
        string_yeast.config_for, string_yeast.run, string_yeast_figures.draw, read=protein_graph.read_graph
    ),
    "molhiv": Experiment(
        molhiv.config_for, molhiv.run, molhiv_figures.draw, read=molhiv.read_molecules, anywhere=True
    ),
    "yeast": Experiment(yeast.config_for, yeast.run, yeast_figures.draw, read=protein_graph.read_graph, anywhere=True),
    "arxiv": Experiment(arxiv.config_for, arxiv.run, arxiv_figures.draw, read=arxiv.read_graphs, anywhere=True),
    **{
        study: Experiment(
            partial(proteins.config_for, study=study),
            proteins.run,
            proteins_figures.draw,
            read=protein_graph.read_graph,
            anywhere=True,
        )
        for study in proteins.STUDIES
    },
}
