"""Pages of results of the experiments on graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fishnets.experiments.graph_study import ON_A_GPU, TO_THE_END
from fishnets.experiments.proteins import COMPARED, PAPER
from fishnets.experiments.records import Metric, Record
from fishnets.experiments.report import MADE, facts_of, format_metric, markdown_table, records_of
from fishnets.experiments.string_yeast import MEASURES
from fishnets.experiments.yeast import EQUAL_LOSS

__all__ = ["arxiv_page", "molhiv_page", "neighbourhoods_page", "proteins_page", "string_yeast_page", "yeast_page"]

CODE = (
    " As the authors' code does it: Fishnets with its fill of the triangle, dropout in the first epoch alone, "
    "predictions on 5 blocks of nodes, or 10 for the large Fishnets."
)
MEASURED = (
    " Edges are measured anew in every part, each direction on its own, and nodes sum what is in their part; `/mended` "
    "is the same with all networks on 5 blocks, edges measured once for both directions, and sums over the whole graph."
)
MEASURED_ONCE = (
    " Edges are measured once for both directions: anew in every epoch of training, once for validation and once for "
    "test nodes; nodes sum them over the whole graph."
)
AS_THE_CODE = {"proteins-focus": CODE, "noisy-proteins": CODE + MEASURED}  # what the published protocol of each does
AHEAD = {
    "difference": "on test nodes",
    "difference_valid": "on validation nodes",
    "difference_in_parts": "on test nodes in as many blocks as in training",
}
COSTS = ("epochs to best", "seconds to best", "weights", "rate")


def neighbourhoods_page(root: str | Path) -> str:
    """The page of noisy neighbourhoods."""
    folder = Path(root) / "noisy-neighbourhoods"
    records = records_of(folder)
    title = "# Noisy neighbourhoods: aggregations where the right answer is known"
    parts = [title, "", MADE, "", *facts_of(records), ""]
    for record in records:
        config, metrics = record.config, record.metrics
        rates = ", ".join(f"{rate:g}" for rate in config["learning_rates"])
        parts += [
            f"## {record.preset} preset, {record.protocol} protocol ({record.hardware})",
            "",
            "Squared error of a node's parameters over the least possible, 1 is optimal. Networks differ in their "
            f"aggregation alone; each had the learning rates {rates} in runs of {config['tuning_steps']:,} steps, and "
            f"{config['steps']:,} steps with the best. Seeds: {len(config['seeds'])}.",
            "",
        ]
        laws = ("train", "degree-x20", "noise-shift")
        rows = []
        for method in config["methods"]:
            cells = [format_metric(metrics[f"mse_over_bound/{method}/{law}"]) for law in laws]
            weights, seconds, rate = (
                metrics[f"{what}/{method}"].value for what in ("weights", "seconds/training", "learning-rate")
            )
            rows.append([method, *cells, f"{weights:,.0f}", f"{rate:g}", f"{seconds:.0f}"])
        header = ["aggregation", *laws, "weights", "rate", "seconds of training"]
        parts += [markdown_table(header, rows), ""]
        parts += _figures(folder, record)
    return "\n".join([*parts, "Notes on these records: [all records](../README.md).", ""])


def string_yeast_page(root: str | Path) -> str:
    """The page of string-yeast."""
    folder = Path(root) / "string-yeast"
    records = records_of(folder)
    parts = ["# Protein functions in yeast: aggregations on a real graph", "", MADE, "", *facts_of(records), ""]
    for record in records:
        config, metrics = record.config, record.metrics
        table, rates = config["table"], ", ".join(f"{rate:g}" for rate in config["learning_rates"])
        parts += [
            f"## {record.preset} preset, {record.protocol} protocol ({record.hardware})",
            "",
            f"`{table['name']}`, {table['num_nodes']:,} nodes (SHA-256 `{table['sha256'][:12]}…`); a DeeperGCN of "
            f"{config['num_layers']} layers of {config['hidden']}, of which the aggregation alone changes, and the "
            "number of weights with it. Each had "
            f"the learning rates {rates} in runs of {config['tuning_epochs']} epochs; the best on validation nodes was "
            f"used in long runs. Means over {len(config['seeds'])} seeds with their errors, weights of the last epoch; "
            "`naive` is the paper's form of Fishnets.",
            "",
        ]
        rows = []
        for kind in ("epochs", "time"):
            for method in config["methods"]:
                names = [f"{name}/{method}/equal-{kind}" for name in MEASURES]
                cost = [f"{metrics[f'{what}/{method}/equal-{kind}'].value:.0f}" for what in ("epochs", "seconds")]
                cost += [f"{metrics[f'weights/{method}'].value:,.0f}", f"{metrics[f'learning-rate/{method}'].value:g}"]
                rows.append([f"equal {kind}", method, *[format_metric(metrics[name]) for name in names], *cost])
        header = ["budget", "aggregation", "training loss", "with dropout", "validation ROC-AUC", "test ROC-AUC"]
        parts += [markdown_table([*header, "epochs", "seconds", "weights", "rate"], rows), ""]
        parts += _figures(folder, record)
    return "\n".join([*parts, "Notes on these records: [all records](../README.md).", ""])


def yeast_page(root: str | Path) -> str:
    """The page of yeast."""
    folder = Path(root) / "yeast"
    records = records_of(folder)
    title = "# Protein functions in yeast, trained to convergence: aggregations on edges as measured and noisy"
    parts = [title, "", MADE, "", *facts_of(records), ""]
    for record in records:
        config, metrics = record.config, record.metrics
        table = config["table"]
        used = [f"{method}/{condition}" for condition in config["conditions"] for method in config["methods"]]
        parts += [
            f"## {record.preset} preset, {record.protocol} protocol ({record.hardware})",
            "",
            f"`{table['name']}`, {table['num_nodes']:,} nodes (SHA-256 `{table['sha256'][:12]}…`); DeeperGCNs of "
            f"{config['num_layers']} layers that differ in their aggregation, and in width so that they have about as "
            f"many weights. {_schedule(config, metrics, used)} Each rate was tried with the first seed; the best on "
            "validation nodes was used with all. ROC-AUC of the test nodes where that of the validation nodes is best: "
            "mean and spread over seeds; differences with the error of their mean. The training loss, with dropout, is "
            f"the mean over the {config['every']} epochs before." + _scored(metrics),
            "",
        ]
        for condition in config["conditions"]:
            rows = []
            for method in config["methods"]:
                label = f"{method}/{condition}"
                scores = [format_metric(metrics[f"{what}/{label}"]) for what in ("rocauc", "valid", "loss")]
                ahead = [metrics.get(f"{what}/fishnets-{label}") for what in ("difference", "difference_valid")]
                cost = [f"{1e3 * metrics[f'seconds_per_epoch/{label}'].value:.1f}", *_costs(metrics, label)]
                rows.append([method, *scores, *(format_metric(one) if one else "" for one in ahead), *cost])
            header = ["aggregation", "test ROC-AUC", "validation", "training loss"]
            header += ["Fishnets ahead by", "on validation nodes", "ms per epoch", *COSTS]
            parts += [f"### {condition}", "", markdown_table(header, rows), ""]
            labels = [f"{method}/{condition}" for method in config["methods"]]
            parts += _tuning(metrics, labels, config["learning_rates"])
        lost = {method: metrics.get(f"difference/clean-noisy/{method}") for method in config["methods"]}
        if any(lost.values()):
            listed = ", ".join(f"{method} {format_metric(loss)}" for method, loss in lost.items() if loss)
            one = "with the error of the mean over seeds, for one realisation of the noise"
            rates = "where both conditions chose the same rate"
            parts += [f"Test ROC-AUC lost to noise, {one}, {rates}: {listed}.", ""]
        parts += _at_equal_loss(metrics, used)
        shares = {
            f"{what}, law of {law}": 100 * metrics[f"noise/{what}/{law}"].value
            for what in ("edges", "nodes")
            for law in ("train", "test")
            if f"noise/{what}/{law}" in metrics
        }
        if shares:
            listed = ", ".join(f"{name}: {share:.2f} %" for name, share in shares.items())
            parts += [f"Share of noise in the variance of scores on edges and of what nodes start from: {listed}.", ""]
        parts += _figures(folder, record)
    return "\n".join([*parts, "Notes on these records: [all records](../README.md).", ""])


def proteins_page(root: str | Path, name: str) -> str:
    """The page of a study of proteins."""
    folder = Path(root) / name
    records = records_of(folder)
    titles = {
        "proteins": "# ogbn-proteins: the networks of Table 1",
        "proteins-focus": "# Protein functions: the five networks of Table 4",
        "noisy-proteins": "# Protein functions from noisy edges: the two networks of Table 4",
    }
    parts = [titles[name], "", MADE, "", *facts_of(records), ""]
    for record in records:
        config, metrics = record.config, record.metrics
        table = config["table"]
        other = "" if table["name"] == "ogbn_proteins" else ", another graph"
        as_the_code = record.protocol == "published" and config["study"] != "proteins"
        last = (
            f"mean and spread over the last ten evaluations, one in {config['every']} epochs, as the paper has it; a "
            "network that overfits is past its best then, so the score where validation nodes are best is beside it"
        )
        scored = last if as_the_code else f"{_over(config['seeds'])}, where validation nodes are best"
        done = AS_THE_CODE[config["study"]] if as_the_code else _done_cleanly(config, record.protocol)
        names = [name.removeprefix("rocauc/") for name in metrics if name.startswith("rocauc/")]
        smaller = ", ".join(f"{name} {value}" for name, value in config["changes"])
        parts += [
            f"## {record.preset} preset, {record.protocol} protocol ({record.hardware})",
            "",
            f"On `{table['name']}`, {table['num_nodes']:,} nodes (SHA-256 `{table['sha256'][:12]}…`); the paper's "
            f"column is of ogbn-proteins{other}. {_schedule(config, metrics, names)} Graphs have {config['parts']} "
            f"parts in training.{done} Test ROC-AUC: {scored}."
            + (f" Networks are smaller than their names say: {smaller}." if smaller else "")
            + _scored(metrics),
            "",
        ]
        rows = []
        for model in names:
            shown = ("rocauc", "at_best", "valid") if as_the_code else ("rocauc", "valid")
            scores = [format_metric(metrics[f"{what}/{model}"]) for what in shown]
            cost = [f"{1e3 * metrics[f'seconds_per_epoch/{model}'].value:.0f}", *_costs(metrics, model)]
            paper = f"{PAPER[model]:.4f}" if model in PAPER else ""
            rows.append([model, *scores, paper, *cost])
        best = ["at the best validation"] if as_the_code else []
        header = ["network", "test ROC-AUC", *best, "best validation", "paper, on ogbn-proteins", "ms per epoch"]
        parts += [markdown_table([*header, *COSTS], rows), ""]
        parts += _tuning(metrics, names, config["learning_rates"])
        parts += _sweep(metrics, names)
        parts += _compared(metrics)
        for what, where in {"gap/": "", "gap_at_best/": " where validation nodes are best"}.items():
            gaps = [f"{key.removeprefix(what)} {gap.value:.4f}" for key, gap in metrics.items() if key.startswith(what)]
            parts += [f"Fishnets ahead{where} by: {', '.join(gaps)} (one seed: no error is known).", ""] if gaps else []
        parts += _figures(folder, record)
    return "\n".join([*parts, "Notes on these records: [all records](../README.md).", ""])


def _done_cleanly(config: Mapping[str, Any], protocol: str) -> str:
    """Sentences on how networks of proteins are trained and tested where that is not as the authors' code does it."""
    tried = " Each rate was tried with the first seed; the best on validation nodes was used with all."
    tested = f"{config['blocks']} random blocks of nodes" if config["blocks"] > 1 else "the whole graph"
    done = (tried if len(config["learning_rates"]) > 1 else "") + f" Parts are random; tests are on {tested}."
    if protocol == "clean":
        done += " Rates fall to zero at the last epoch. Fishnets are in the paper's form."
    return done + (MEASURED_ONCE if config["study"] == "noisy-proteins" else "")


def molhiv_page(root: str | Path) -> str:
    """The page of molhiv."""
    folder = Path(root) / "molhiv"
    records = records_of(folder)
    parts = ["# Molecules against HIV (ogbg-molhiv)", "", MADE, "", *facts_of(records), ""]
    for record in records:
        config, metrics = record.config, record.metrics
        table = config["table"]
        parts += [
            f"## {record.preset} preset, {record.protocol} protocol ({record.hardware})",
            "",
            f"`{table['name']}`, {table['num_graphs']:,} molecules (SHA-256 `{table['sha256'][:12]}…`), batches of "
            f"{config['batch_size']}. {_schedule(config, metrics, config['models'])} Test ROC-AUC where that of "
            f"validation molecules is best: {_over(config['seeds'])}. DeeperGCN's authors "
            "report 0.7858 ± 0.0117 for their 7 layers."
            + (f" Networks have {config['layers']} layers here." if config["layers"] else "")
            + _scored(metrics),
            "",
        ]
        rows = []
        for model in config["models"]:
            score, ahead = metrics[f"rocauc/{model}"], metrics.get(f"difference/{model}-gcn-7")
            paper = "" if score.paper is None else f"{score.paper:.2f}"
            cost = [f"{metrics[f'seconds_per_epoch/{model}'].value:.2f}", *_costs(metrics, model)]
            scores = [format_metric(score), format_metric(metrics[f"valid/{model}"]), paper]
            rows.append([model, *scores, format_metric(ahead) if ahead else "", *cost])
        header = ["network", "test ROC-AUC", "best validation", "paper", "ahead of gcn-7 by", "seconds per epoch"]
        parts += [markdown_table([*header, *COSTS], rows), ""]
        parts += _tuning(metrics, config["models"], config["learning_rates"])
        parts += _figures(folder, record)
    return "\n".join([*parts, "Notes on these records: [all records](../README.md).", ""])


def arxiv_page(root: str | Path) -> str:
    """The page of arXiv."""
    folder = Path(root) / "arxiv"
    records = records_of(folder)
    title = "# Fields of papers that cite each other: three layers of Fishnets against a deep DeeperGCN (Table 1)"
    parts = [title, "", MADE, "", *facts_of(records), ""]
    if not any(graph["name"] == "ogbn-arxiv" for record in records for graph in record.config["table"]):
        parts += ["ogbn-arxiv: not run: data not at hand.", ""]
    for record in records:
        config = record.config
        used = [f"{model}/{graph['name']}" for graph in config["table"] for model in config["models"]]
        parts += [
            f"## {record.preset} preset, {record.protocol} protocol ({record.hardware})",
            "",
            f"`gcn-28` has {config['deep_layers']} layers here, Fishnets have {config['num_layers']} with p = "
            f"{config['num_params']}; all are {config['hidden']} wide. {_schedule(config, record.metrics, used)} "
            f"Accuracy of the test nodes where that of the validation nodes is best: {_over(config['seeds'])}; the "
            "difference with the error of its mean. A seed draws weights and split "
            "(that of ogbn-arxiv is its own); splits of one graph overlap, which these errors leave out.",
            "",
        ]
        for graph in config["table"]:
            size = f"{graph['num_nodes']:,} nodes (SHA-256 `{graph['sha256'][:12]}…`)"
            parts += [f"### {graph['name']}", "", f"{size}.", "", _arxiv_table(record, graph["name"]), ""]
            labels = [f"{model}/{graph['name']}" for model in config["models"]]
            parts += _tuning(record.metrics, labels, config["learning_rates"])
        parts += _figures(folder, record)
    return "\n".join([*parts, "Notes on these records: [all records](../README.md).", ""])


def _arxiv_table(record: Record, graph: str) -> str:
    """Networks on one graph; the paper's column is empty for graphs it does not have."""
    metrics, rows = record.metrics, []
    for model in record.config["models"]:
        label = f"{model}/{graph}"
        score, ahead = metrics[f"accuracy/{label}"], metrics.get(f"difference/{model}-gcn-28/{graph}")
        paper = "" if score.paper is None else f"{score.paper:.4f}"
        cells = [format_metric(score), format_metric(metrics[f"valid/{label}"]), paper]
        cost = [f"{1e3 * metrics[f'seconds_per_epoch/{label}'].value:.1f}", *_costs(metrics, label)]
        rows.append([model, *cells, format_metric(ahead) if ahead else "", *cost])
    header = ["network", "test accuracy", "validation", "paper", "ahead of gcn-28 by", "ms per epoch"]
    return markdown_table([*header, *COSTS], rows)


def _schedule(config: Mapping[str, Any], metrics: Mapping[str, Metric], labels: Sequence[str]) -> str:
    """A sentence on learning rates, how they were tried where not in runs of full length, and when training ends."""
    tried, patience = config.get("tuning_epochs"), config.get("patience")
    several = len(config["learning_rates"]) > 1
    rates = config["learning_rates"] if several else {metrics[f"learning-rate/{label}"].value for label in labels}
    listed = ", ".join(f"{rate:g}" for rate in sorted(rates))
    shorter = f" tried in runs of {min(tried, config['epochs'])} epochs" if tried and several else ""
    until = f" or until validation data had not improved for {patience}" if patience else ""
    runs = {label: metrics[f"runs/{label}"].value for label in labels if f"runs/{label}" in metrics}
    to_the_end = sum(metrics[f"{TO_THE_END}/{label}"].value * count for label, count in runs.items())
    some = f"; {to_the_end:.0f} of {sum(runs.values()):.0f} runs went on to the last" if runs else ""
    shares = {label: metrics.get(f"{ON_A_GPU}/{label}", Metric(0.0, 0.0)).value for label in runs}
    on_a_gpu = sum(shares[label] * count for label, count in runs.items())
    both = f" {on_a_gpu:.0f} of them ran on a GPU and the others on a CPU; times are of the hardware named above."
    rate = "Learning rates" if len(rates) > 1 else "Learning rate"
    mixed = both if 0 < on_a_gpu < sum(runs.values()) else ""
    return f"{rate} {listed}{shorter}, up to {config['epochs']:,} epochs{until}{some}.{mixed}"


def _over(seeds: Sequence[int]) -> str:
    """What a score is over seeds."""
    return f"mean and spread over {len(seeds)} seeds" if len(seeds) > 1 else "a single seed"


def _tuning(metrics: Mapping[str, Metric], labels: Sequence[str], rates: Sequence[float]) -> list[str]:
    """Validation scores of the rates that were tried."""
    rows = []
    for label in labels:
        cells = {rate: metrics.get(f"tuning/{label}/{rate:g}") for rate in rates}
        known = [f"{cell.value:.4f}" if cell else "diverged" for cell in cells.values()]
        rows += [[label, *known]] if any(cells.values()) else []
    header = ["validation score at the rate", *(f"{rate:g}" for rate in rates)]
    return [markdown_table(header, rows), ""] if rows else []


def _at_equal_loss(metrics: Mapping[str, Metric], labels: Sequence[str]) -> list[str]:
    """Scores of networks that have learned the training nodes equally well."""
    names = [f"at_loss/{what}" for what in ("epochs", "valid", "test")]
    rows = [
        [label, f"{metrics[f'{names[0]}/{label}'].value:.0f}"]
        + [format_metric(metrics[f"{name}/{label}"]) for name in names[1:]]
        for label in labels
        if f"{names[0]}/{label}" in metrics
    ]
    header = [f"when the training loss is {EQUAL_LOSS:g}", "epochs", "validation", "test ROC-AUC"]
    return [markdown_table(header, rows), ""] if rows else []


def _sweep(metrics: Mapping[str, Metric], labels: Sequence[str]) -> list[str]:
    """Test scores of the weights that were best, as they depend on the number of blocks they are predicted on.

    Mean and spread over seeds; a single seed has none.
    """
    blocks = list(dict.fromkeys(name.split("/")[1] for name in metrics if name.startswith("at_end/")))
    rows = []
    for label in labels:
        scores = [metrics[f"at_end/{some}/{label}"] for some in blocks]
        rows.append([label, *(format_metric(one) if one.error else f"{one.value:.4f}" for one in scores)])
    header = ["test ROC-AUC at the best validation", *(some.replace("-", " ") for some in blocks)]
    return [markdown_table(header, rows), ""] if blocks else []


def _compared(metrics: Mapping[str, Metric]) -> list[str]:
    """How far Fishnets are ahead of the networks that the paper sets them against."""
    pairs = {f"{ours}, of {theirs}": f"{ours}-{theirs}" for ours, theirs in COMPARED.items()}
    pairs = {name: pair for name, pair in pairs.items() if f"difference/{pair}" in metrics}
    shown = [what for what in AHEAD if any(f"{what}/{pair}" in metrics for pair in pairs.values())]
    rows = [[name, *(format_metric(metrics[f"{what}/{pair}"]) for what in shown)] for name, pair in pairs.items()]
    return [markdown_table(["ahead, between equal seeds", *(AHEAD[what] for what in shown)], rows), ""] if rows else []


def _scored(metrics: Mapping[str, Metric]) -> str:
    """How many tasks count in the scores; others have no positive, or no negative, to be told apart."""
    parts = {name.split("/")[1]: entry.value for name, entry in metrics.items() if name.startswith("tasks_scored/")}
    counts = ", ".join(f"{count:.0f} ({part})" for part, count in parts.items())
    return f" Tasks that count: {counts}." if counts else ""


def _costs(metrics: Mapping[str, Metric], label: str) -> list[str]:
    """What a network took and has, in the order of :data:`COSTS`."""
    epochs, seconds, weights, rate = (
        metrics[f"{what}/{label}"].value for what in ("epochs_to_best", "seconds_to_best", "weights", "learning-rate")
    )
    return [f"{epochs:.0f}", f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}", f"{weights:,.0f}", f"{rate:g}"]


def _figures(folder: Path, record: Record) -> list[str]:
    """Figures beside a record."""
    return [f"![{path.name}]({path.name})" for path in sorted(folder.glob(f"{record.stem}-*.png"))] + [""]
