"""Figures of arXiv: curves of training and test scores, by network and graph."""

from __future__ import annotations

from pathlib import Path

from fishnets.experiments.graph_study import StudyResult
from fishnets.experiments.graph_study_figures import curves_figure, scores_figure

__all__ = ["draw"]


def draw(result: StudyResult, stem: Path) -> None:
    """Draws the figures beside their record."""
    models, graphs = result.config.models, [graph.name for graph in result.config.table]
    curves = {graph: {name: result.runs[f"{name}/{graph}"] for name in models} for graph in graphs}
    curves_figure(curves, "accuracy").savefig(stem.with_name(f"{stem.name}-curves.png"), dpi=150)
    scores = {graph: {name: result.metrics[f"accuracy/{name}/{graph}"] for name in models} for graph in graphs}
    scores_figure(scores, "accuracy").savefig(stem.with_name(f"{stem.name}-scores.png"), dpi=150)
