"""From summaries to trusted posteriors, and how much information they hold."""

from fishnets.inference.c2st import c2st
from fishnets.inference.calibration import coverage_levels, pit, ranks, tarp_levels
from fishnets.inference.efficiency import Measured, efficiency, excess
from fishnets.inference.files import load_posterior
from fishnets.inference.hmc import Chains, HierarchicalModel, gamma_population_model, hmc
from fishnets.inference.information import SummaryInformation, information
from fishnets.inference.plots import corner_plot, coverage_plot, ecdf_plot, rank_plot
from fishnets.inference.posterior import Posterior
from fishnets.inference.summaries import Summaries, load_summaries, save_summaries, summarize
from fishnets.inference.uniformity import (
    Uniformity,
    expected_coverage,
    rank_histogram_band,
    simultaneous_band,
    uniformity,
)

__all__ = [
    "Chains",
    "HierarchicalModel",
    "Measured",
    "Posterior",
    "Summaries",
    "SummaryInformation",
    "Uniformity",
    "c2st",
    "corner_plot",
    "coverage_levels",
    "coverage_plot",
    "ecdf_plot",
    "efficiency",
    "excess",
    "expected_coverage",
    "gamma_population_model",
    "hmc",
    "information",
    "load_posterior",
    "load_summaries",
    "pit",
    "rank_histogram_band",
    "rank_plot",
    "ranks",
    "save_summaries",
    "simultaneous_band",
    "summarize",
    "tarp_levels",
    "uniformity",
]
