"""From summaries to trusted posteriors, and how much information they hold."""

from fishnets.inference.efficiency import Measured, efficiency, excess
from fishnets.inference.files import load_posterior
from fishnets.inference.posterior import Posterior
from fishnets.inference.summaries import Summaries, load_summaries, save_summaries, summarize

__all__ = [
    "Measured",
    "Posterior",
    "Summaries",
    "efficiency",
    "excess",
    "load_posterior",
    "load_summaries",
    "save_summaries",
    "summarize",
]
