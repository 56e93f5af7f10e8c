"""From summaries to trusted posteriors, and how much information they hold."""

from fishnets.inference.efficiency import Measured, efficiency, excess

__all__ = ["Measured", "efficiency", "excess"]
