"""Pages of results, one per experiment, from its records: ``python -m fishnets.experiments.pages results``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from fishnets.experiments.graph_pages import (
    arxiv_page,
    molhiv_page,
    neighbourhoods_page,
    proteins_page,
    string_yeast_page,
    yeast_page,
)
from fishnets.experiments.records import Metric, Record, read_record
from fishnets.experiments.report import MADE, comparison_table, facts_of, format_metric, markdown_table, records_of
from fishnets.experiments.unfinished import runs_so_far

__all__ = [
    "gamma_page",
    "linear_scaling_page",
    "main",
    "pages_of",
    "robustness_page",
    "saturation_page",
    "supernovae_page",
]

SUPERNOVA_MODELS = {"": "flat, w = −1", "w/": "flat, w free"}


def linear_scaling_page(root: str | Path) -> str:
    """The page of the linear-regression study."""
    folder = Path(root) / "linear-scaling"
    records = records_of(folder)
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
    return "\n".join(
        [
            "# Linear regression: trained on small sets, used on large ones",
            "",
            MADE,
            "",
            *facts_of(records),
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


def gamma_page(root: str | Path, name: str) -> str:
    """The page of a gamma-population study."""
    folder = Path(root) / name
    records = records_of(folder)
    title = "Gamma population" if name == "gamma-population" else "Gamma population, censored below 25 counts"
    parts = [f"# {title}: learned posteriors beside exact ones", "", MADE, "", *facts_of(records), ""]
    for record in records:
        parts += [f"## {record.preset} preset, {record.protocol} protocol ({record.hardware})", ""]
        parts += _target_section(record) + _calibration_section(record) + _loss_section(record)
        parts += [f"![{path.name}]({path.name})" for path in sorted(folder.glob(f"{record.stem}-*.png"))] + [""]
    return "\n".join([*parts, "Notes on these records: [all records](../README.md).", ""])


def robustness_page(root: str | Path) -> str:
    """The page of the robustness study."""
    folder = Path(root) / "robustness"
    records = records_of(folder)
    parts = ["# Robustness: trained on one law of the noise, tested on another", "", MADE, "", *facts_of(records), ""]
    for record in records:
        metrics = record.metrics
        networks = [key.split("/")[1] for key in metrics if key.startswith("weights/")]
        parts += [f"## {record.preset} preset, {record.protocol} protocol ({record.hardware})", ""]
        parts += ["Squared error over that of the exact posterior mean on the same sets: 1 is optimal.", ""]
        columns = [(law, p) for law in ("training", "A", "C") for p in "mc"]
        header = ["network", "weights", *[f"{p}, {law}" for law, p in columns], "seconds"]
        rows = []
        for network in networks:
            ratios = [format_metric(metrics[f"mse_over_floor/{network}/{p}/{law}"]) for law, p in columns]
            weights = f"{metrics[f'weights/{network}'].value:,.0f}"
            rows.append([network, weights, *ratios, f"{metrics[f'seconds/{network}'].value:.0f}"])
        parts += [markdown_table(header, rows), ""]
        parts += ["Squared errors themselves, mean ± spread over sets, as in the paper's Table 2:", ""]
        rows = [[network, *_table_two(metrics, network)] for network in ["exact", *networks]]
        header = ["network", *[f"{p}, {law}" for law in ("A", "C") for p in "mc"], "paper, m", "paper, c"]
        parts += [markdown_table(header, rows), "", "The toy of a shifted prior:", ""]
        shift = {key: entry for key, entry in metrics.items() if key.startswith("prior-shift/")}
        parts += [comparison_table({"": shift}, list(shift)), ""]
        parts += [f"![{path.name}]({path.name})" for path in sorted(folder.glob(f"{record.stem}-*.png"))] + [""]
    return "\n".join([*parts, "Notes on these records: [all records](../README.md).", ""])


def saturation_page(root: str | Path) -> str:
    """The page of the study of saturation."""
    folder = Path(root) / "saturation"
    records = [read_record(path) for path in sorted(folder.glob("*.json"))]
    parts = ["# Saturation: information kept as sets grow", "", MADE, "", *facts_of(records), ""]
    parts += [
        "χ² is the squared error over the Cramér–Rao bound, paired with the exact score on the same sets: 1 is the "
        "bound, and at small n a prior can push it below. *worst* is the largest of the sixteen parameters. Efficiency "
        "is against the exact posterior mean, or the exact step in sets of more than 500. Coverage is of the "
        "estimates' own intervals; *learned* ones rest on the networks' Fisher matrices, *centred* ones on "
        "simulations.",
        "",
    ]
    for record in records:
        metrics = record.metrics
        parts += [f"## {record.preset} preset, {record.protocol} protocol ({record.hardware})", ""]
        labels = list(dict.fromkeys(key.split("/")[1] for key in metrics if key.startswith("chi2/")))
        for label in labels:
            parts += [f"### {label}", "", *_training_lines(record, label), *_saturation_tables(metrics, label), ""]
        parts += [f"![{path.name}]({path.name})" for path in sorted(folder.glob(f"{record.stem}-*.png"))] + [""]
    return "\n".join([*parts, "Notes on these records: [all records](../README.md).", ""])


def _training_lines(record: Record, label: str) -> list[str]:
    lines = []
    for problem in record.config["problems"]:
        for kind, sizes in (("refined", problem["size"]), ("plain", problem["plain_size"])):
            if problem["name"] == label:
                seconds, data, weights = (
                    record.metrics[f"{what}/{label}/{kind}"].value
                    for what in ("seconds/training", "data/training", "weights")
                )
                size = " to ".join(f"{n:,}" for n in dict.fromkeys(sizes))
                lines.append(
                    f"- {kind}: {weights:,.0f} weights a member, trained on sets of {size}, {data:.3g} data in "
                    f"{seconds:.0f} s"
                )
    return [*lines, ""] if lines else []


def _saturation_tables(metrics: Mapping[str, Metric], label: str) -> list[str]:
    sizes = sorted(int(key.split("n=")[1]) for key in metrics if key.startswith(f"chi2/{label}/centred/"))
    methods = [m for m in ("exact", "plain", "onestep", "centred") if any(f"chi2/{label}/{m}/" in k for k in metrics)]

    def cell(name: str) -> str:
        return format_metric(metrics[name]) if name in metrics else "–"

    rows = [[f"{n:,}", *[cell(f"chi2/{label}/{m}/n={n}") for m in methods]] for n in sizes]
    for row, n in zip(rows, sizes, strict=True):
        row += [cell(f"{what}/{label}/centred/n={n}") for what in ("chi2-worst", "efficiency")]
    header = ["n", *[f"χ², {method}" for method in methods], "worst, centred", "efficiency, centred"]
    tables = [markdown_table(header, rows), ""]
    rows = []
    for n in sizes:
        name = f"{label}/centred/n={n}"
        shares = [cell(f"coverage{c}/{label}/{kind}/n={n}") for c in (68, 95) for kind in ("centred", "learned")]
        cost = f"{metrics[f'simulated-per-estimate/{name}'].value:.3g}"
        seconds = f"{metrics[f'seconds-per-estimate/{name}'].value:.2g}"
        rows.append([f"{n:,}", *shares, cost, f"{metrics[f'added-noise/{name}'].value:.3f}", seconds])
    header = ["n", "68 %, centred", "68 %, learned", "95 %, centred", "95 %, learned"]
    return [*tables, markdown_table([*header, "simulated data", "added noise", "seconds"], rows)]


def supernovae_page(root: str | Path) -> str:
    """The page of the supernovae."""
    folder = Path(root) / "supernovae"
    records = records_of(folder)
    title = "# Supernovae: a network trained on simulated surveys reads Union2.1"
    parts = [title, "", MADE, "", *facts_of(records), ""]
    for record in records:
        parts += [f"## {record.preset} preset, {record.protocol} protocol ({record.hardware})", ""]
        parts += _supernova_fits(record) + _supernova_surveys(record)
        parts += [f"![{path.name}]({path.name})" for path in sorted(folder.glob(f"{record.stem}-*.png"))] + [""]
    return "\n".join([*parts, "Notes on these records: [all records](../README.md).", ""])


def _supernova_fits(record: Record) -> list[str]:
    """What both networks and the exact posterior say of the real table."""
    table, rows = record.config["table"], []
    for prefix, model in SUPERNOVA_MODELS.items():
        for name in ("omega_m", "w", "offset"):
            entry, spread = (record.metrics.get(f"{prefix}{name}{kind}") for kind in ("", "_sigma"))
            if entry is None or spread is None:
                continue
            exact = [f"{x:.4f}" for x in (entry.bound, spread.bound)]
            apart = [record.metrics[f"{prefix}{kind}/{name}"] for kind in ("distance-in-sigma", "sigma-ratio")]
            rows.append([model, f"`{name}`", *map(format_metric, (entry, spread)), *exact, *map(format_metric, apart)])
    text = (
        f"Fits of the {table['num_data']} supernovae of `{table['name']}` (SHA-256 `{table['sha256'][:12]}…`): "
        "estimate and its standard deviation, with the Monte Carlo error of the simulations behind them, beside mean "
        "and standard deviation of the exact posterior; distances are in exact standard deviations."
    )
    header = ["universe", "parameter", "estimate", "its σ", "exact mean", "exact σ", "distance", "σ over exact σ"]
    return [text, "", markdown_table(header, rows), ""]


def _supernova_surveys(record: Record) -> list[str]:
    """How both networks do on simulated surveys."""
    names = [name for name in record.metrics if "union21" in name or "seconds/" in name]
    shared = list(dict.fromkeys(name.removeprefix("w/") for name in names))
    rows = []
    for name in shared:
        entries = [record.metrics.get(prefix + name) for prefix in SUPERNOVA_MODELS]
        bounds = ["–" if e is None or e.bound is None else f"{e.bound:.4f}" for e in entries]
        rows.append([f"`{name}`", *[x for pair in zip(map(format_metric, entries), bounds, strict=True) for x in pair]])
    text = (
        f"Over simulated surveys with the table's redshifts and errors ({record.config['surveys']}, and "
        f"{record.config['surveys_with_w']} where w is free). The excess is the "
        "squared distance from the exact posterior mean, in units of the exact Fisher matrix and per parameter; its "
        "optimum is that of the root of the exact score, from which `excess-to-root` is measured."
    )
    header = ["metric", *[x for model in SUPERNOVA_MODELS.values() for x in (model, "optimum")]]
    return [text, "", markdown_table(header, rows), ""]


def _table_two(metrics: Mapping[str, Metric], network: str) -> list[str]:
    cells, paper = [], []
    for law in ("A", "C"):
        for p in "mc":
            if network == "exact":
                cells.append(f"{metrics[f'floor/{p}/{law}'].value:.4f}")
                continue
            entry, spread = metrics[f"mse/{network}/{p}/{law}"], metrics[f"mse-std-over-sets/{network}/{p}/{law}"]
            cells.append(f"{entry.value:.4f} ± {spread.value:.4f}")
            if law == "A":
                paper.append("–" if entry.paper is None else f"{entry.paper:.3f} ± {spread.paper:.3f}")
    return cells + (paper or ["–", "–"])


def _target_section(record: Record) -> list[str]:
    """The table of posteriors of every target."""
    names = sorted({tuple(key.split("/")[1:4]) for key in record.metrics if key.startswith("target/")})
    order = {"exact": 0, "hmc": 1}
    names.sort(key=lambda name: (name[0], int(name[2][2:]), order.get(name[1], 2), name[1]))
    quantities = ("mean-mu", "sd-mu", "mean-Theta", "sd-Theta", "correlation", "log-det")
    rows = []
    for target, method, size in names:
        found = [record.metrics[f"target/{target}/{method}/{size}/{quantity}"] for quantity in quantities]
        seconds = record.metrics[f"target/{target}/{method}/{size}/seconds"].value
        rows.append([f"({target})", size, method, *[format_metric(entry) for entry in found], f"{seconds:.2f}"])
    header = ["target", "n", "posterior", "mean μ", "sd μ", "mean Θ", "sd Θ", "correlation", "log det", "seconds"]
    text = "Posteriors of single data sets; seconds are of one posterior, training and fitting aside."
    return [text, "", markdown_table(header, rows), ""]


def _calibration_section(record: Record) -> list[str]:
    """Calibration against the set size, of every network."""
    prefixes = sorted({key.split("/")[0][2:] for key in record.metrics if key.startswith("ks") and "_p" not in key})
    sizes = sorted({int(key.split("n=")[1]) for key in record.metrics if key.startswith("tarp_p")})
    rows = []
    for prefix in prefixes:
        label = prefix.removeprefix("-") or record.config["candidates"][0]["label"]
        for n in sizes:
            get = record.metrics
            cells = [get[f"ks{prefix}/{p}/n={n}"].value for p in ("mu", "Theta")]
            tests = [get[f"{what}_p{prefix}/n={n}"].value for what in ("tarp", "coverage")]
            inside = "yes" if get[f"tarp_in_band{prefix}/n={n}"].value else "no"
            shares = [get[f"coverage{level}{prefix}/n={n}"].value for level in (68, 95)]
            numbers = [f"{x:.4f}" for x in cells] + [f"{x:.3f}" for x in tests]
            rows.append([label, f"{n:,}", *numbers, inside, *[f"{x:.3f}" for x in shares]])
    number = record.config["test_sets"]
    text = (
        f"Calibration over {number:,} fresh sets of each size: Kolmogorov–Smirnov distances (a calibrated posterior "
        f"passes {1.63 / number**0.5:.4f} in 1 % of cases), p-values of TARP and of joint coverage, whether TARP stays "
        "in its simultaneous 95 % band, and the empirical content of 68 and 95 % regions."
    )
    header = ["network", "n", "KS μ", "KS Θ", "TARP p", "coverage p", "TARP in band", "68 %", "95 %"]
    return [text, "", markdown_table(header, rows), ""]


def _loss_section(record: Record) -> list[str]:
    """Distance from the exact posterior, and bias of the estimates."""
    names = [key for key in record.metrics if key.startswith(("area_ratio/", "efficiency", "chi2/", "bias/", "hmc/"))]
    text = "Against the exact posterior of the same sets; efficiency and bias are of the networks' own estimates."
    return [text, "", comparison_table({record.protocol: record.metrics}, names), ""]


def pages_of(root: str | Path) -> dict[Path, str]:
    """Every page for which there is a record, or the runs of a study that is not over, by its file."""
    pages: dict[str, Callable[[str | Path], str]] = {
        "linear-scaling": linear_scaling_page,
        "gamma-population": lambda root: gamma_page(root, "gamma-population"),
        "gamma-censored": lambda root: gamma_page(root, "gamma-censored"),
        "robustness": robustness_page,
        "saturation": saturation_page,
        "supernovae": supernovae_page,
        "noisy-neighbourhoods": neighbourhoods_page,
        "string-yeast": string_yeast_page,
        "yeast": yeast_page,
        "arxiv": arxiv_page,
        "molhiv": molhiv_page,
        **{name: partial(proteins_page, name=name) for name in ("proteins", "proteins-focus", "noisy-proteins")},
    }
    found = {}
    for name, page in pages.items():
        folder = Path(root) / name
        so_far = "\n".join(runs_so_far(folder))
        if so_far or any(folder.glob("*.json")):
            found[folder / "README.md"] = page(root) + ("\n" + so_far if so_far else "")
    return found


def main(root: str | Path) -> None:
    """Writes the pages."""
    for path, text in pages_of(root).items():
        path.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
