"""Figures of the studies of proteins: curves of training, and test scores beside the paper's."""

from __future__ import annotations

from pathlib import Path

from fishnets.experiments.graph_study import StudyResult
from fishnets.experiments.graph_study_figures import draw_networks

__all__ = ["draw"]


def draw(result: StudyResult, stem: Path) -> None:
    """Draws the figures beside their record."""
    draw_networks(result, f"{result.config.table.name}, {result.config.study}, {result.config.protocol}", stem)
