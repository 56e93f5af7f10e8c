"""What aggregations cost, forward and back: milliseconds, memory and bandwidth, on a GPU or a CPU.

A layer of ours maps messages to information, sums it over the messages of each node, solves and maps to channels;
softmax, mean and sum are PyTorch Geometric's, ``softmax-kernels`` is the same softmax on kernels of ours. A time is
the median of repeats, its error the standard error of their mean. GiB are what a pass needs at its peak beyond its
inputs and their gradients, with what stays remembered about an index, without what sorting it once took.
``speedup/x`` is the time of x over that of ours, ``node_level_ratio/x`` that of the node-level path over that of x.
On a GPU all matrix products may use TF32, except where the name says otherwise.
Run with ``python benchmarks/aggregation_speed.py``; ``--device cuda`` measures a GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from costs import GIB, Found, Makers, Way, measure, peak, ratio
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.nn.aggr import MeanAggregation, SoftmaxAggregation, SumAggregation

from fishnets import graphs
from fishnets.experiments.records import Metric, hardware_name, refuse_overwrite, write_benchmark
from fishnets.experiments.report import format_metric, markdown_table
from fishnets.graphs import FishnetsAggregation, FishnetsConv
from fishnets.inference.plots import COLOURS, new_figure
from fishnets.ops.estimate_messages.fused_triton import MAX_PARAMS
from fishnets.ops.segment_information import fused

BACKENDS = {"reference": "reference", "fused": "separate", "fused-linear": "fused"}
FIXED = ("softmax", "softmax-ptr", "softmax-kernels", "mean", "sum")  # do not depend on the number of latent parameters
PRECISION = {"cuda": "high", "cpu": "highest"}
POWER = 0.79  # of a node's share of messages in its rank: the first of 120,000 has about 78,000 of 4 million


@dataclass(frozen=True)
class Case:
    """A graph's sizes and what its messages are; degrees are ``"uniform"``, ``"power-law"``, or all one node's."""

    messages: int
    nodes: int
    channels: int = 64
    num_params: int = 8
    degrees: str = "uniform"
    dtype: str = "float32"
    in_order: bool = True


@dataclass(frozen=True)
class Plan:
    """Sizes of what is measured; the second sweep is over numbers of latent parameters, at so many messages."""

    main: Case
    num_params: tuple[int, ...]
    swept_messages: tuple[int, ...]
    swept_params: tuple[int, ...] = (2, 4, 6, 8, 10, 12, 16)
    swept_at: int = 1_000_000
    proteins: Case = Case(79_122_504, 132_534)
    citation: Case = Case(1_166_243, 169_343, 128, degrees="power-law")


SWEPT = (10_000, 100_000, 1_000_000, 4_000_000, 10_000_000, 40_000_000)
HALF = Case(583_121, 84_671, 128, degrees="power-law")  # of the citations: all take a CPU too long
TINY = Case(4_000, 96, 16, 2, "power-law")
PLANS = {
    "cuda": Plan(Case(4_000_000, 120_000), (8, 10), SWEPT),
    "cpu": Plan(Case(200_000, 5_000), (8,), (10_000, 50_000, 200_000), swept_at=50_000, citation=HALF),
    "quick": Plan(Case(4_000, 96, num_params=2), (2,), (1_000, 2_000), (2, 3), 1_000, TINY, TINY),
}


def targets(case: Case, device: str) -> tuple[Tensor, Tensor]:
    """Sorted node of each message (E,) and bounds of the nodes' messages (N + 1,)."""
    options: dict[str, Any] = {"generator": torch.Generator(device).manual_seed(0), "device": device}
    if case.degrees == "hub":
        index = torch.full((case.messages,), case.nodes // 2, device=device)
    elif case.degrees == "power-law":
        share = torch.arange(1, case.nodes + 1, dtype=torch.float64, device=device).pow(-POWER)
        bounds = share[torch.randperm(case.nodes, **options)].cumsum(0)
        draws = bounds[-1] * torch.rand(case.messages, dtype=torch.float64, **options)
        index = torch.searchsorted(bounds, draws).clamp(max=case.nodes - 1).sort().values
    else:
        index = torch.randint(case.nodes, (case.messages,), **options).sort().values
    return index, torch.searchsorted(index, torch.arange(case.nodes + 1, device=device))


def layers(names: Sequence[str], case: Case, device: str) -> Makers:
    """Makers of aggregations by name, all of the same messages."""
    options: dict[str, Any] = {"dtype": getattr(torch, case.dtype), "device": device}
    index, ptr = targets(case, device)
    index = index if case.in_order else index[torch.randperm(case.messages, device=device)]
    x = torch.randn(case.messages, case.channels, **options).requires_grad_()
    grad = torch.randn(case.nodes, case.channels, **options)

    def make(name: str) -> Way:
        layer: Any
        if name in BACKENDS:
            layer = FishnetsAggregation(case.channels, num_params=case.num_params, backend=BACKENDS[name], **options)
        elif name in ("mean", "sum"):
            layer = MeanAggregation() if name == "mean" else SumAggregation()
        else:
            kind = graphs.SoftmaxAggregation if name == "softmax-kernels" else SoftmaxAggregation
            layer = kind(learn=True).to(**options)
        # every layer has an index of its own, so that what is remembered about it counts for all alike
        where = {"ptr": ptr} if name == "softmax-ptr" else {"index": index.clone()}
        return Way(partial(layer, x, **where, dim_size=case.nodes), [x, *layer.parameters()], grad)

    return {name: partial(make, name) for name in names}


def ours(device: str, num_params: int = 1) -> list[str]:
    """Names of our fused implementations, the best last."""
    return ["fused", "fused-linear"] if device == "cpu" or num_params <= MAX_PARAMS else ["fused"]


def measure_layers(names: Sequence[str], case: Case, device: str) -> tuple[Found, Found]:
    """What aggregations cost, by name."""
    print(case, file=sys.stderr)
    return measure(layers(names, case, device), device)


def cpu_gib(name: str, num_params: int, quick: bool) -> Metric:
    """GiB of a pass on a CPU, in a fresh process."""
    command = [sys.executable, __file__, "--peak", name, str(num_params), *["--quick"] * quick]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Metric(max(0, int(done.stdout)) / GIB, 2**20 / GIB)  # the kernel counts to about a MiB


def cpu_peak(name: str, case: Case) -> int:
    """Bytes of a pass beyond its inputs and their gradients, after a small pass that compiles kernels."""
    layers([name], replace(case, messages=64, nodes=4), "cpu")[name]()()
    return peak(layers([name], case, "cpu")[name]())


def main_case(device: str, plan: Plan) -> Found:
    """Every implementation, in time and memory."""
    found, fixed, fixed_gib = Found(), Found(), Found()
    for p in plan.num_params:
        names = ["reference", *ours(device, p), *(() if fixed else FIXED)]
        times, gib = measure_layers(names, replace(plan.main, num_params=p), device)
        if device == "cpu":  # a process takes seconds to start
            quick = plan is PLANS["quick"]
            gib = {name: cpu_gib(name, p, quick) for name in (["fused"] if quick else names)}
        times, gib = times | fixed, gib | fixed_gib
        fixed, fixed_gib = ({name: costs[name] for name in FIXED if name in costs} for costs in (times, gib))
        found |= {f"milliseconds/{name}/np={p}": one for name, one in times.items()}
        found |= {f"gib/{name}/np={p}": one for name, one in gib.items()}
        for name in ("reference", "softmax", "softmax-ptr"):
            found[f"speedup/{name}/np={p}"] = ratio(times[name], times[ours(device, p)[-1]])
    return found


def bandwidth(device: str, plan: Plan) -> Found:
    """How fast the kernels of the sum read and write, over how fast the device copies the messages."""
    x = torch.randn(plan.main.messages, plan.main.channels, device=device)
    copy, (_, ptr) = torch.empty_like(x), targets(plan.main, device)
    taken = measure({"copy": lambda: Way(lambda: copy.copy_(x))}, device)[0]["copy"]
    speed = ratio(Metric(2e-9 * x.nbytes, 0.0), taken)  # terabytes in a second: 1e9 bytes in a millisecond
    found: Found = {"milliseconds/copy": taken, "copy_terabytes_per_second": speed}
    for p in plan.num_params:
        columns = torch.randn(1, p + p * (p + 1) // 2, len(x), device=device)
        raw = columns.mT.requires_grad_()
        call = partial(fused.sum_information, raw, p, ptr, "full", "regression", None, None)
        total = call()
        back = partial(torch.autograd.grad, total, raw, torch.randn_like(total), retain_graph=True)
        times, _ = measure({"sum": partial(Way, call), "sum-backward": partial(Way, back)}, device)
        for (kernel, one), passes in zip(times.items(), (1, 2), strict=True):
            rate = ratio(Metric(1e-9 * passes * raw.nbytes, 0.0), one)
            found[f"bandwidth_fraction/{kernel}/np={p}"] = ratio(rate, speed)
    return found


def variants(device: str, plan: Plan, cases: Mapping[str, Case]) -> Found:
    """Times of our fused implementations, by label, at the most latent parameters."""
    p, found = plan.num_params[-1], Found()
    for label, case in cases.items():
        times, _ = measure_layers(ours(device, p), replace(case, num_params=p), device)
        found |= {f"milliseconds/{name}/np={p}/{label}": one for name, one in times.items()}
    return found


def degrees(device: str, plan: Plan) -> Found:
    """Degrees that follow a power law, and one node with all messages, beside uniform ones."""
    kinds, p = ("uniform", "power-law", "hub"), plan.num_params[-1]
    found = variants(device, plan, {f"degrees={kind}": replace(plan.main, degrees=kind) for kind in kinds})
    for name in ours(device, p):
        uniform, *others = (found[f"milliseconds/{name}/np={p}/degrees={kind}"] for kind in kinds)
        found |= {
            f"degree_ratio/{name}/{kind}": ratio(one, uniform) for kind, one in zip(kinds[1:], others, strict=True)
        }
    return found


def dtypes(device: str, plan: Plan) -> Found:
    """Messages in half precision, or out of order, and products in full precision."""
    cases = {"dtype=bfloat16": replace(plan.main, dtype="bfloat16"), "unsorted": replace(plan.main, in_order=False)}
    found = variants(device, plan, cases)
    torch.set_float32_matmul_precision("highest")
    found |= variants(device, plan, {"precision=highest": plan.main})
    torch.set_float32_matmul_precision(PRECISION[device])
    return found


def sweeps(device: str, plan: Plan) -> Found:
    """Cost against the number of messages, and against the number of latent parameters."""
    found = Found()
    for messages in plan.swept_messages:
        names = ["reference", *ours(device), "softmax-ptr", "mean"]
        times, _ = measure_layers(names, _swept(plan, messages), device)
        found |= {f"sweep/messages/{name}/{messages}": one for name, one in times.items()}
    for p in plan.swept_params:
        case = replace(_swept(plan, plan.swept_at), num_params=p)
        times, _ = measure_layers(["reference", *ours(device, p)], case, device)
        found |= {f"sweep/np/{name}/{p}": one for name, one in times.items()}
    return found


def _swept(plan: Plan, messages: int) -> Case:
    """About 33 messages a node, and a multiple of 16 nodes, for which Triton compiles the same kernels."""
    return replace(plan.main, messages=messages, nodes=max(16, messages // 33 // 16 * 16))


def proteins(device: str, plan: Plan) -> Found:
    """A graph as large as ogbn-proteins."""
    times, gib = measure_layers([*reversed(ours(device)), "reference"], plan.proteins, device)
    found: Found = {f"milliseconds/{name}/proteins": one for name, one in times.items()}
    return found | {f"gib/{name}/proteins": one for name, one in gib.items()}


def citation(device: str, plan: Plan) -> Found:
    """Messages that are their sources, on a graph of ogbn-arxiv's sizes: information once per node, or per edge."""
    n, channels, p = plan.citation.nodes, plan.citation.channels, plan.citation.num_params
    index, _ = targets(plan.citation, device)
    source = torch.randint(n, index.shape, device=device)
    edges = EdgeIndex(torch.stack([source, index]), sparse_size=(n, n), sort_order="col")
    x, grad = (torch.randn(n, channels, device=device) for _ in range(2))
    x.requires_grad_()
    conv, softmax = FishnetsConv(channels, channels, p).to(device), SoftmaxAggregation(learn=True).to(device)
    layer = FishnetsAggregation(channels, num_params=p, device=device)
    calls: dict[str, Callable[[], Any]] = {
        "node-level": lambda: conv((x, None), edges, size=(n, n)),
        "per-edge": lambda: layer(x.index_select(0, source), index, dim_size=n),
        "softmax": lambda: softmax(x.index_select(0, source), index, dim_size=n),
    }
    leaves = [x, *conv.parameters(), *layer.parameters(), *softmax.parameters()]
    times, _ = measure({name: partial(Way, call, leaves, grad) for name, call in calls.items()}, device)
    found: Found = {f"milliseconds/{name}/citation": one for name, one in times.items()}
    return found | {f"node_level_ratio/{name}": ratio(times["node-level"], times[name]) for name in list(times)[1:]}


SECTIONS = {"main": main_case} | {f.__name__: f for f in (bandwidth, degrees, dtypes, citation, sweeps, proteins)}
ON_CPU = ("main", "citation", "sweeps")


def sweep_figure(found: Found) -> Any:
    """Cost against messages and against latent parameters, a line for each implementation."""
    figure = new_figure(8, 3.4)
    names = list(dict.fromkeys(key.split("/")[2] for key in found if key.startswith("sweep/")))
    labels = {"messages": "messages", "np": "latent parameters"}
    for axis, (sweep, label) in zip(figure.subplots(1, 2), labels.items(), strict=True):
        for name, colour in zip(names, COLOURS, strict=False):
            swept = [(key, one) for key, one in found.items() if key.startswith(f"sweep/{sweep}/{name}/")]
            line = [(int(key.split("/")[-1]), one.value) for key, one in swept if one is not None]
            if line:
                axis.plot(*zip(*line, strict=True), color=colour, marker="o", markersize=3, label=name)
        axis.set(xlabel=label, ylabel="milliseconds, forward and back", yscale="log")
        axis.grid(linewidth=0.4)
    figure.axes[0].set_xscale("log")
    figure.axes[1].set_xticks(sorted({int(key.split("/")[-1]) for key in found if key.startswith("sweep/np/")}))
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


def table(found: Found) -> str:
    """The main case as a Markdown table, and the bandwidths as lines."""
    rows = []
    for key, one in found.items():
        if match := re.fullmatch(r"milliseconds/(.*)/np=(\d+)", key):
            gib = found.get(key.replace("milliseconds", "gib"))
            over = ratio(one, found[f"milliseconds/softmax/np={match[2]}"])
            cells = [format_metric(one) if one else "out of memory", f"{gib.value:.3f}" if gib else "–"]
            rows.append([match[1], match[2], *cells, f"{over.value:.3f}" if over else "–"])
    lines = [f"{key}: {format_metric(one)}" for key, one in found.items() if key.startswith(("copy_", "bandwidth_"))]
    return "\n".join([markdown_table(["implementation", "n_p", "ms", "GiB", "over softmax"], rows), *lines])


def record(found: Found, options: argparse.Namespace, plan: Plan, seconds: float) -> Path:
    """Writes the record and its figure."""
    degree = int(targets(replace(plan.main, degrees="power-law"), options.device)[1].diff().max())
    config = asdict(plan) | {"sections": options.sections, "power_law": POWER, "largest_power_law_degree": degree}
    config |= {"precision": PRECISION[options.device], "out_of_memory": [key for key in found if found[key] is None]}
    metrics = {key: one for key, one in found.items() if one is not None}
    where = (options.device, options.out, options.overwrite, options.preset)
    path = write_benchmark(options.name, config, metrics, seconds, *where)
    sweep_figure(found).savefig(path.with_name(f"{path.stem}-sweeps.png"), dpi=150)
    return path


def parse() -> argparse.Namespace:
    """The options, with what follows from them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=list(PRECISION))
    parser.add_argument("--out", type=Path, help="folder of the record; results by default")
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to test the script")
    parser.add_argument("--sections", help=f"some of {','.join(SECTIONS)}; their numbers go to partial.json")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    on_cpu = tuple(name for name in SECTIONS if name != "dtypes") if options.quick else ON_CPU
    every = on_cpu if options.device == "cpu" else tuple(SECTIONS)
    options.sections = options.sections.split(",") if options.sections else list(every)
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"there is no section {','.join(unknown)}; there are {','.join(SECTIONS)}")
    if options.quick and not (options.out or options.peak):
        parser.error("--quick measures nothing worth keeping; say where it goes with --out")
    options.whole = set(options.sections) >= set(every)
    options.name = "aggregation-speed" if options.device == "cuda" else "aggregation-speed-cpu"
    options.out, options.preset = options.out or Path("results"), "quick" if options.quick else "paper"
    return options


def main() -> None:
    options = parse()
    device, plan = options.device, PLANS["quick" if options.quick else options.device]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision(PRECISION[device])
    if options.peak:
        print(cpu_peak(options.peak[0], replace(plan.main, num_params=int(options.peak[1]))))
        return
    path = options.out / options.name / f"{options.preset}-clean-{hardware_name(device)}.json"
    refuse_overwrite(path, options.overwrite or not options.whole)  # now rather than after the run
    nn.Linear(64, 64, device=device)(torch.ones(64, 64, device=device)).sum().backward()  # allocates workspaces
    started, found, part = time.monotonic(), Found(), options.out / "partial.json"
    part.parent.mkdir(parents=True, exist_ok=True)
    for section in options.sections:
        found |= SECTIONS[section](device, plan)
        text = json.dumps({key: one and asdict(one) for key, one in found.items()}, indent=1)
        part.write_text(text + "\n")  # a failure later on does not lose it
    print(table(found))
    if options.whole:
        print(f"recorded in {record(found, options, plan, time.monotonic() - started)}")
        part.unlink()
    else:
        print(f"written to {part}")


if __name__ == "__main__":
    main()
