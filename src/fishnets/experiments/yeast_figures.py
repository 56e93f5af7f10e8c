"""Figures of yeast: curves of training and test scores, by aggregation and condition."""

from __future__ import annotations

from pathlib import Path

from fishnets.experiments.graph_study import StudyResult
from fishnets.experiments.graph_study_figures import curves_figure, scores_figure

__all__ = ["draw"]


def draw(result: StudyResult, stem: Path) -> None:
    """Draws the figures beside their record."""
    config = result.config
    panels = {
        condition: {method: result.runs[f"{method}/{condition}"] for method in config.methods}
        for condition in config.conditions
    }
    curves_figure(panels).savefig(stem.with_name(f"{stem.name}-curves.png"), dpi=150)
    scores = {
        condition: {method: result.metrics[f"rocauc/{method}/{condition}"] for method in config.methods}
        for condition in config.conditions
    }
    scores_figure(scores).savefig(stem.with_name(f"{stem.name}-scores.png"), dpi=150)
