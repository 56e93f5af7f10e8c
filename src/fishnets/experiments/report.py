"""Tables and figures of results: what a reader sees."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fishnets.errors import MissingExtraError
from fishnets.experiments.records import Metric, read_record
from fishnets.ragged import Sets
from fishnets.simulators import LinearRegression

if TYPE_CHECKING:
    from fishnets.experiments.linear_scaling import Trained

__all__ = [
    "comparison_table",
    "draw",
    "format_metric",
    "linear_scaling_page",
    "loss_figure",
    "markdown_table",
    "residual_figure",
    "slice_figure",
]

DARK, PINK, GREY = "#1f2430", "#d6336c", "#9aa0a6"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table.

    Example:
        >>> print(markdown_table(["a"], [["1"]]))
        | a |
        | --- |
        | 1 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def format_metric(entry: Metric | None) -> str:
    """A metric with its error, in as many digits as the error supports."""
    if entry is None:
        return "–"
    if abs(entry.value) >= 1e4:
        return f"{entry.value:,.0f}"
    digits = 4 if not entry.error > 0 else min(6, max(2, 1 - math.floor(math.log10(entry.error))))
    return f"{entry.value:.{digits}f} ± {entry.error:.{digits}f}"


def comparison_table(columns: Mapping[str, Mapping[str, Metric]], names: Sequence[str]) -> str:
    """Metrics of several records between the paper's value and the exact bound, where they exist."""
    rows = []
    for name in names:
        entries = [metrics.get(name) for metrics in columns.values()]
        given = [e for e in entries if e is not None]
        paper = next((f"{e.paper:.4f}" for e in given if e.paper is not None), "–")
        optimum = next((f"{e.bound:.4f}" for e in given if e.bound is not None), "–")
        rows.append([f"`{name}`", paper, *[format_metric(e) for e in entries], optimum])
    return markdown_table(["metric", "paper", *columns, "optimum"], rows)


def linear_scaling_page(root: str | Path) -> str:
    """The page of the linear-regression study, made from its records on a GPU."""
    folder = Path(root) / "linear-scaling"
    records = [read_record(path) for path in sorted(folder.glob("paper-*.json"))]
    columns: dict[str, dict[str, Metric]] = {}
    for record in records:
        for candidate in record.config["candidates"]:
            label = candidate["label"]
            columns[f"{record.protocol}, {label} network"] = {
                name.replace(f"/{label}", ""): entry
                for name, entry in record.metrics.items()
                if f"/{label}/" in name or name.endswith(f"/{label}")
            }
    names = list(dict.fromkeys(name for metrics in columns.values() for name in metrics))
    figures = sorted(path.name for path in folder.glob("paper-*.png"))
    facts = [f"`{r.command}` ({r.hardware}, {r.seconds:.0f} s, torch {r.versions['torch']})" for r in records]
    return "\n".join(
        [
            "# Linear regression: trained on small sets, used on large ones",
            "",
            "Made by `python -m fishnets.experiments.report results` from the records beside it:",
            "",
            *[f"- {fact}" for fact in facts],
            "",
            "The paper shows this experiment as histograms (its Fig. 2a) and quotes no number for it. A plot committed "
            "with its authors' code, read by eye, puts the excess ratio of single networks at 0.05 to 0.08 for n = 500 "
            "(on training sets) and at 0.13 to 0.70 for n = 10,000.",
            "",
            comparison_table(columns, names),
            "",
            "What the protocols are, and notes on these records: [all records](../README.md).",
            "",
            *[f"![{name}]({name})" for name in figures],
            "",
        ]
    )


def draw(trained: Sequence[Trained], size: int, stem: Path) -> None:
    """Draws every figure of the linear-regression study beside its record."""
    for one in trained:
        residual_figure(one, size, stem.with_name(f"{stem.name}-{one.candidate.label}-residuals.png"))
        slice_figure(one, stem.with_name(f"{stem.name}-{one.candidate.label}-sites.png"))
    loss_figure(trained, stem.with_name(f"{stem.name}-loss.png"))


def residual_figure(trained: Trained, size: int, path: Path) -> None:
    """Fig. 2a: histograms of the estimates' residuals at one set size, network beside exact."""
    ours, exact = trained.residuals[size]
    figure = _figure(8, 3.2)
    axes = figure.subplots(1, 2)
    for i, (axis, label) in enumerate(zip(axes, (r"slope $\hat m - m$", r"intercept $\hat c - c$"), strict=True)):
        reach = 1.05 * float(torch.cat([ours[:, i], exact[:, i]]).abs().max())
        edges = torch.linspace(-reach, reach, 41).tolist()
        axis.hist(exact[:, i].tolist(), edges, color=GREY, alpha=0.7, label="exact posterior mean")
        axis.hist(ours[:, i].tolist(), edges, color=PINK, histtype="step", linewidth=1.8, label="Fishnets")
        axis.axvline(0, color=DARK, linewidth=0.8)
        axis.set_xlabel(label)
    axes[0].set_ylabel("test sets")
    axes[0].legend(frameon=False, fontsize=8)
    figure.suptitle(f"{trained.candidate.label} network, {len(ours)} test sets of n = {size:,}", fontsize=10)
    figure.savefig(path, dpi=150)


def slice_figure(trained: Trained, path: Path, num_data: int = 1500, seed: int = 7) -> None:
    """Fig. 2b: score and Fisher matrix of each datum against its inputs, true (dark) and learned (pink).

    Scores are compared in the natural gauge, t + F theta*, which does not depend on the fiducial.
    """
    rows, true, learned = _sites(trained, num_data, seed)
    labels = ("score $m$", "score $c$", "$F_{mm}$", "$F_{mc}$", "$F_{cc}$")
    figure = _figure(9, 11)
    axes = figure.subplots(5, 3, sharex="col", sharey="row")
    for i, label in enumerate(labels):
        for j, name in enumerate(("$y$", "$x$", r"$\sigma$")):
            axis = axes[i][j]
            axis.scatter(rows[j], true[:, i], s=5, color=DARK, label="exact", linewidths=0)
            axis.scatter(rows[j], learned[:, i], s=3, color=PINK, label="Fishnets", linewidths=0, alpha=0.7)
            if j == 0:
                axis.set_ylabel(label)
            if i == len(labels) - 1:
                axis.set_xlabel(name)
    axes[0][0].legend(frameon=False, fontsize=8, markerscale=2)
    figure.suptitle(f"{trained.candidate.label} network: what each datum contributes", fontsize=10)
    figure.savefig(path, dpi=130)


def loss_figure(trained: Sequence[Trained], path: Path) -> None:
    """Loss of every member against the step, on validation sets or, where none are held out, on training sets."""
    figure = _figure(4.5 * len(trained), 3.2)
    axes = figure.subplots(1, len(trained), squeeze=False)
    for axis, one in zip(axes[0], trained, strict=True):
        curves = torch.tensor(one.history.validation_loss)
        for k in range(curves.shape[1]):
            axis.plot(one.history.steps, curves[:, k].tolist(), color=PINK, linewidth=0.9, alpha=0.8)
        low, high = float(curves.min()), float(curves[len(curves) // 10 :].max())
        axis.set_ylim(low - 0.05 * (high - low + 0.1), high + 0.05 * (high - low + 0.1))
        what = "validation loss" if one.candidate.stored_sets is None else "loss on training sets"
        axis.set(xlabel="step", ylabel=what, title=f"{one.candidate.label}, members apart")
    figure.savefig(path, dpi=130)


@torch.no_grad()
def _sites(trained: Trained, num_data: int, seed: int) -> tuple[list[Any], Any, Any]:
    """Inputs (3 columns), exact and learned contributions (n, 5) of data from the test law."""
    model = trained.model
    simulator = LinearRegression(features=trained.candidate.features)
    generator = torch.Generator().manual_seed(seed)
    theta = simulator.prior.sample(num_data, generator)
    values = simulator(theta, torch.ones(num_data, dtype=torch.int64), generator).values
    score, fisher = simulator.sites(values, torch.zeros(2, dtype=torch.float64))
    alone = model.compress(Sets(values, torch.arange(num_data + 1)))  # every datum a set of its own
    learned = torch.cat([alone.natural, alone.fisher.flatten(1)[:, [0, 1, 3]]], dim=1)
    columns = [column.numpy() for column in simulator.columns(values)]
    return columns, torch.cat([score, fisher], dim=1).numpy(), learned.numpy()


def _figure(width: float, height: float) -> Any:
    """An empty figure, drawn without pyplot and its global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots", "Drawing figures") from error
    return Figure(figsize=(width, height), layout="constrained")


if __name__ == "__main__":
    (Path(sys.argv[1]) / "linear-scaling" / "README.md").write_text(linear_scaling_page(sys.argv[1]))
