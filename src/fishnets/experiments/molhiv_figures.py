"""Figures of molhiv: curves of training, and test scores beside the paper's."""

from __future__ import annotations

from pathlib import Path

from fishnets.experiments.graph_study_figures import curves_figure, scores_figure
from fishnets.experiments.molhiv import Result

__all__ = ["draw"]


def draw(result: Result, stem: Path) -> None:
    """Draws the figures beside their record."""
    title = f"{result.config.table.name}, {result.config.protocol}"
    curves_figure({title: result.runs}).savefig(stem.with_name(f"{stem.name}-curves.png"), dpi=150)
    scores = {title: {name: result.metrics[f"rocauc/{name}"] for name in result.config.models}}
    scores_figure(scores).savefig(stem.with_name(f"{stem.name}-scores.png"), dpi=150)
