"""Times the stacked networks, forward and backward, fused and in plain and compiled PyTorch with bfloat16 products.

Run as ``python benchmarks/stacked_mlp.py`` on a GPU the fused backend supports; it takes under a minute. Errors against
float64 come first, and nothing is timed where they are too large. Then whole steps and every kernel alone. The record
goes under ``results``, the table is printed last. Throughput counts data per second and member, a member being a twin
of two networks; TFLOP/s count what the definition needs, nothing that is computed twice.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
import triton
from torch import Tensor

from fishnets.experiments.records import Metric, Record, hardware_name, refuse_overwrite, versions, write_record
from fishnets.ops.stacked_mlp import fused_triton, reference, stacked_mlp

__all__ = ["Config", "main", "run"]

Network = Callable[[Tensor, list[Tensor], list[Tensor]], Tensor]
Metrics = dict[str, Metric]

SEEDS = (0, 1, 2)  # of the errors; times are taken with the first
TOLERANCE = 1e-2  # the contract of the fused backend


@dataclass(frozen=True)
class Config:
    """The paper's networks, ten twins of 3 x 256 units, on one of its batches, 512 sets of 500 data."""

    num_rows: int = 256_000
    num_networks: int = 20
    num_inputs: int = 3
    num_outputs: int = 3
    width: int = 256
    repeats: int = 20

    @property
    def widths(self) -> tuple[int, ...]:
        return self.num_inputs, self.width, self.width, self.width, self.num_outputs

    @property
    def teraflops(self) -> float:
        """Of one step: two per parameter, network and row forward, four backward."""
        return 6e-12 * sum(a * b + b for a, b in pairwise(self.widths)) * self.num_networks * self.num_rows


def make_case(config: Config, seed: int) -> tuple[Tensor, list[Tensor], Tensor]:
    """Input, parameters (four weights, four biases) and gradient of the output, float32."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    pairs = list(pairwise(config.widths))
    weights = [draw(config.num_networks, a, b) * (1.5 / a**0.5) for a, b in pairs]
    biases = [0.3 * draw(config.num_networks, b) for _, b in pairs]
    x, grad = draw(config.num_rows, config.num_inputs), draw(config.num_networks, config.num_rows, config.num_outputs)
    return x, [parameter.requires_grad_() for parameter in (*weights, *biases)], grad


def step(network: Network, x: Tensor, parameters: list[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    """Output and the gradient of every parameter."""
    out = network(x, parameters[:4], parameters[4:])
    return out.detach(), *torch.autograd.grad(out, parameters, grad.to(out.dtype))


def eager(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
    """The reference with bfloat16 products."""
    with torch.autocast("cuda", torch.bfloat16):
        return reference.stacked_mlp(x, weights, biases)


def fused(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
    return stacked_mlp(x, weights, biases, backend="fused")


def relative_errors(network: Network, config: Config, seed: int) -> list[float]:
    """Of the output and of every gradient against float64."""
    x, parameters, grad = make_case(config, seed)
    given = step(network, x, parameters, grad)
    exact = [parameter.detach().double().requires_grad_() for parameter in parameters]
    wanted = step(reference.stacked_mlp, x.double(), exact, grad.double())
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(given, wanted, strict=True)]


def check(config: Config) -> Metrics:
    """Errors over a few seeds; ends the run where the fused ones are too large or reruns differ."""
    small = replace(config, num_rows=3001, num_networks=4)  # an odd number of rows; float64 fits and is quick
    metrics: Metrics = {}
    for name, network in (("eager", eager), ("fused", fused)):
        errors = [relative_errors(network, small, seed) for seed in SEEDS]
        if network is fused and not all(error < TOLERANCE for found in errors for error in found):  # NaN fails too
            raise SystemExit(f"fused: relative errors {errors} but less than {TOLERANCE} was expected.")
        metrics[f"relative-error/{name}/output"] = summarise([found[0] for found in errors])
        metrics[f"relative-error/{name}/gradients"] = summarise([max(found[1:]) for found in errors])
    case = make_case(small, SEEDS[0])
    if not all(torch.equal(a, b) for a, b in zip(step(fused, *case), step(fused, *case), strict=True)):
        raise SystemExit("fused: two runs gave different bits.")
    return metrics


def summarise(values: Sequence[float]) -> Metric:
    """The median and half the spread."""
    return Metric(statistics.median(values), (max(values) - min(values)) / 2)


def milliseconds(call: Callable[[], object], repeats: int) -> list[float]:
    """Times by device events, after a warm-up."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)))
    return times


def matrix_rate(repeats: int) -> list[float]:
    """TFLOP/s of a large square product in bfloat16, the practical ceiling."""
    a = torch.randn((8192, 8192), device="cuda", dtype=torch.bfloat16)
    return [2e-9 * 8192**3 / ms for ms in milliseconds(partial(torch.matmul, a, a), repeats)]


def time_steps(name: str, network: Network, config: Config, rate: float) -> Metrics:
    """Metrics of whole steps, ``rate`` being the TFLOP/s of a large product."""
    x, parameters, grad = make_case(config, SEEDS[0])
    forward = milliseconds(partial(network, x, parameters[:4], parameters[4:]), config.repeats)
    both = milliseconds(partial(step, network, x, parameters, grad), config.repeats)
    torch.cuda.empty_cache()
    members = config.num_networks / 2
    return {
        f"milliseconds/{name}/forward": summarise(forward),
        f"milliseconds/{name}/forward-backward": summarise(both),
        f"throughput/{name}": summarise([1e3 * config.num_rows * members / ms for ms in both]),
        f"tflops/{name}": summarise([1e3 * config.teraflops / ms for ms in both]),
        f"fraction-of-matrix-rate/{name}": summarise([1e3 * config.teraflops / ms / rate for ms in both]),
    }


def time_kernels(config: Config) -> Metrics:
    """Milliseconds of every kernel alone, its second step (the sum over parts) included."""
    x, parameters, grad = make_case(config, SEEDS[0])
    *weights, b1, b2, b3, b4 = (parameter.detach() for parameter in parameters)
    operands = fused_triton.pad_operands(x, weights, b1)
    g = fused_triton.pad_last(grad, len(operands.u))
    plan = fused_triton.default_plan(config.width)
    h2 = fused_triton.launch_second(operands, b2, plan.second)
    _, h3 = fused_triton.launch_third(operands, h2, b3, b4, len(x), True, plan.third)
    assert h3 is not None
    d2, *_ = fused_triton.launch_upper(operands, g, h3, h2, plan.upper)
    calls: Mapping[str, Callable[[], object]] = {
        "second": partial(fused_triton.launch_second, operands, b2, plan.second),
        "third": partial(fused_triton.launch_third, operands, h2, b3, b4, len(x), True, plan.third),
        "upper": partial(fused_triton.launch_upper, operands, g, h3, h2, plan.upper),
        "lower": partial(fused_triton.launch_lower, operands, d2, plan.lower),
    }
    return {
        f"milliseconds/kernel/{name}": summarise(milliseconds(call, config.repeats)) for name, call in calls.items()
    }


def run(config: Config) -> Metrics:
    """Checks, then times."""
    metrics = check(config)
    metrics["tflops/matrix-product"] = product = summarise(matrix_rate(config.repeats))
    networks: Mapping[str, Network] = {"eager": eager, "compiled": torch.compile(eager), "fused": fused}
    for name, network in networks.items():
        metrics |= time_steps(name, network, config, product.value)
    return metrics | time_kernels(config)


def table(metrics: Mapping[str, Metric]) -> str:
    width = max(map(len, metrics))
    return "\n".join(f"{name:{width}s} {found.value:12.4g} ± {found.error:.1g}" for name, found in metrics.items())


def main() -> None:
    """Runs, writes the record and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the records")
    parser.add_argument("--overwrite", action="store_true", help="replace the record of an earlier run")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("No CUDA device was found, and this benchmark times one.")
    started, config = time.monotonic(), Config()
    record = Record(
        name="stacked-mlp",
        preset="paper",
        protocol="clean",
        command=" ".join(["python", *sys.argv]),
        config=asdict(config),
        seeds=list(SEEDS),
        versions=versions() | {"triton": triton.__version__, "cuda": str(torch.version.cuda)},
        hardware=hardware_name("cuda"),
        seconds=0.0,
        metrics={},
    )
    refuse_overwrite(record.path_in(arguments.out), arguments.overwrite)  # before the work, not after it
    metrics = run(config)
    record = replace(record, metrics=metrics, seconds=time.monotonic() - started)
    path = write_record(record, arguments.out, arguments.overwrite)
    print(f"written to {path} after {record.seconds:.0f} s", file=sys.stderr)
    print(table(metrics))


if __name__ == "__main__":
    main()
