"""Times the stacked networks, forward and backward, against a plain and a compiled PyTorch version.

Run as ``python benchmarks/stacked_mlp.py --out FILE.json``. Errors against float64 come first; then every kernel alone
under a few launches; then whole steps, the fastest launches included. The table is printed last. A member is a twin:
two networks.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fishnets.ops.stacked_mlp import fused_triton, layerwise_triton, reference
from fishnets.ops.stacked_mlp.fused_triton import Launch, LaunchPlan, default_plan

__all__ = ["main"]

Network = Callable[[Tensor, list[Tensor], list[Tensor]], Tensor]

SWEEP: Mapping[str, tuple[Launch, ...]] = {
    "second": (Launch(128, 8, 3), Launch(128, 8, 4), Launch(64, 4, 3)),
    "third": (Launch(64, 8, 3), Launch(64, 16, 3), Launch(64, 4, 3)),
    "upper": (Launch(64, 8, 3), Launch(32, 8, 3), Launch(32, 8, 4)),
    "lower": (Launch(64, 8, 3), Launch(64, 8, 4), Launch(32, 8, 4)),
    "streamed": (Launch(128, 8, 3, chunk=64), Launch(128, 8, 4, chunk=32), Launch(64, 4, 3, chunk=32)),
}


def make_case(num_rows: int, num_networks: int, widths: tuple[int, ...]) -> tuple[Tensor, list[Tensor]]:
    """Input and parameters (four weights, four biases) on the device, float32."""
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    pairs = list(itertools.pairwise(widths))
    weights = [draw(num_networks, a, b) * (1.5 / a**0.5) for a, b in pairs]
    return draw(num_rows, widths[0]), weights + [0.3 * draw(num_networks, b) for _, b in pairs]


def step(network: Network, x: Tensor, parameters: list[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    """Output and the gradient of every parameter."""
    out = network(x, parameters[:4], parameters[4:])
    return out, *torch.autograd.grad(out, parameters, grad.to(out.dtype))


def milliseconds(run: Callable[[], object], repeats: int = 10) -> float:
    """Median time by device events, after a warm-up."""
    for _ in range(2):
        run()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)))
    return statistics.median(times)


def eager(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
    """The reference with bfloat16 products."""
    with torch.autocast("cuda", torch.bfloat16):
        return reference.stacked_mlp(x, weights, biases)


def fused_with(plan: LaunchPlan) -> Network:
    return lambda x, weights, biases: fused_triton.stacked_mlp(x, weights, biases, plan)


def relative_errors(network: Network, widths: tuple[int, ...], num_rows: int = 3001) -> list[float]:
    """Of the output and of every gradient against float64; infinite where reruns differ or something is NaN."""
    x, parameters = make_case(num_rows, 4, widths)
    grad = torch.randn((4, num_rows, widths[-1]), device="cuda")
    leaves = [p.requires_grad_() for p in parameters]
    given, again = step(network, x, leaves, grad), step(network, x, leaves, grad)
    exact = [p.detach().double().requires_grad_() for p in parameters]
    wanted = step(reference.stacked_mlp, x.double(), exact, grad.double())
    errors = []
    for one, other, truth in zip(given, again, wanted, strict=True):
        error = float((one.double() - truth).norm() / truth.norm())
        errors.append(error if error == error and torch.equal(one, other) else float("inf"))
    return errors


def kernel_runs(x: Tensor, parameters: list[Tensor], grad: Tensor) -> Mapping[str, Callable[[Launch], object]]:
    """One call per kernel that launches it alone on the full problem."""
    w1, w2, w3, w4, b1, b2, b3, b4 = (p.detach() for p in parameters)
    width = w2.shape[2]
    u, v1 = fused_triton._pad_inputs(x), fused_triton._pad_first(w1, b1)
    operands = fused_triton._Operands(u, v1, w2.bfloat16(), w3.bfloat16(), fused_triton._pad_last(w4, width))
    plan = default_plan(width)
    h2 = fused_triton.launch_second(operands, b2, plan.second)
    out, h3 = fused_triton.launch_third(operands, h2, b3, b4, len(x), True, plan.third)
    assert h3 is not None
    g, d2 = fused_triton._pad_last(grad, len(u)), torch.randn_like(h2)
    last_bias = torch.nn.functional.pad(b4, (0, fused_triton.MAX_OUTPUTS - b4.shape[1]))
    hidden = [torch.empty_like(h2), torch.empty_like(h2)]
    return {
        "second": lambda launch: fused_triton.launch_second(operands, b2, launch),
        "third": lambda launch: fused_triton.launch_third(operands, h2, b3, b4, len(x), True, launch),
        "upper": lambda launch: fused_triton.launch_upper(operands, g, h3, h2, launch),
        "lower": lambda launch: fused_triton.launch_lower(operands, d2, launch),
        "streamed": lambda launch: fused_triton.launch_streamed(operands, (b2, b3, last_bias), out, hidden, launch),
    }


def guarded(label: str, run: Callable[[], Any]) -> Any:
    """The result of ``run``, or None with its error printed, so that the others go on."""
    try:
        result = run()
        torch.cuda.synchronize()
    except Exception as error:
        traceback.print_exc(limit=2)
        print(f"FAILED {label}: {type(error).__name__}: {str(error)[:400]}", flush=True)
        return None
    return result


def sweep_kernels(runs: Mapping[str, Callable[[Launch], object]], deadline: float) -> dict[str, dict[Launch, float]]:
    """Milliseconds of every kernel under every launch that works."""
    times: dict[str, dict[Launch, float]] = {}
    for name, launches in SWEEP.items():
        times[name] = {}
        for launch in launches:
            if time.monotonic() > deadline:
                print(f"out of time before {name} {launch}", flush=True)
                continue
            found = guarded(f"{name} {launch}", partial(milliseconds, partial(runs[name], launch), 5))
            if found is not None:
                times[name][launch] = found
                print(f"{name:9s} {launch} {found:.3f} ms", flush=True)
    return times


def best_plan(times: Mapping[str, Mapping[Launch, float]], width: int, streamed: bool) -> LaunchPlan:
    """The fastest measured launch of each kernel, the default where none was measured."""
    chosen = {name: min(found, key=lambda launch: found[launch]) for name, found in times.items() if found}
    if not streamed:
        chosen.pop("streamed", None)
    return dataclasses.replace(default_plan(width), **chosen)


def main() -> None:
    """Checks, times, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=256_000)
    parser.add_argument("--networks", type=int, default=20)
    parser.add_argument("--inputs", type=int, default=3)
    parser.add_argument("--outputs", type=int, default=3)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--budget", type=float, default=140, help="seconds after which nothing new is started")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.budget
    width, rows, networks = arguments.width, arguments.rows, arguments.networks
    widths = (arguments.inputs, width, width, width, arguments.outputs)

    variants: dict[str, Network] = {
        "fused": fused_with(default_plan(width)),
        "fused, streamed forward": fused_with(dataclasses.replace(default_plan(width), streamed=SWEEP["streamed"][0])),
        "layerwise": layerwise_triton.stacked_mlp,
        "eager bf16": eager,
    }
    errors: dict[str, list[float]] = {}
    print("relative errors: output, W1-W4, b1-b4", flush=True)
    for name, network in variants.items():
        found = guarded(name, partial(relative_errors, network, widths))
        if found is not None:
            errors[name] = found
            print(f"{name:26s}", " ".join(f"{error:.1e}" for error in found), flush=True)

    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    peak = 2 * 8192**3 / milliseconds(partial(torch.matmul, a, a)) / 1e9  # TFLOP/s
    print(f"8192^3 bf16 product: {peak:.0f} TFLOP/s", flush=True)

    x, parameters = make_case(rows, networks, widths)
    grad = torch.randn((networks, rows, widths[-1]), device="cuda")
    runs = guarded("preparing the kernels", lambda: kernel_runs(x, parameters, grad))
    times = sweep_kernels(runs, deadline - 60) if runs is not None else {}
    del runs
    torch.cuda.empty_cache()

    best = best_plan(times, width, streamed=False)
    variants["fused, best launches"] = fused_with(best)
    if times.get("streamed"):
        variants["fused, best, streamed"] = fused_with(best_plan(times, width, streamed=True))
    variants["compiled bf16"] = torch.compile(eager)
    leaves = [p.requires_grad_() for p in parameters]
    num_params = sum(a * b + b for a, b in itertools.pairwise(widths))
    pairs = rows * networks
    table = []
    for name, network in variants.items():
        if time.monotonic() > deadline:
            print(f"out of time before {name}", flush=True)
            continue
        forward = guarded(name, partial(milliseconds, partial(network, x, leaves[:4], leaves[4:])))
        both = guarded(name, partial(milliseconds, partial(step, network, x, leaves, grad)))
        torch.cuda.empty_cache()
        for what, found, flops in (("forward", forward, 2), ("forward+backward", both, 6)):
            if found is not None:
                rate = flops * num_params * pairs / found / 1e9
                row = {"variant": name, "what": what, "ms": found, "members_per_s": pairs / 2 / found * 1e3}
                table.append(row | {"tflops": rate, "of_peak": rate / peak})

    kernels = {
        name: [dataclasses.asdict(launch) | {"ms": ms} for launch, ms in found.items()] for name, found in times.items()
    }
    record = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "arguments": {key: str(value) for key, value in vars(arguments).items()},
        "peak_tflops": peak,
        "relative_errors": errors,
        "kernels": kernels,
        "best_plan": dataclasses.asdict(best),
        "table": table,
    }
    arguments.out.write_text(json.dumps(record, indent=1))
    print("\nkernel alone         best ms  launch")
    for name, found in times.items():
        for launch in sorted(found, key=lambda one: found[one])[:1]:
            print(f"{name:20s} {found[launch]:8.3f}  {launch}")
    print(f"\n{'variant':26s} {'what':17s} {'ms':>8s} {'M members/s':>12s} {'TFLOP/s':>8s} {'of peak':>8s}")
    for row in table:
        print(
            f"{row['variant']:26s} {row['what']:17s} {row['ms']:8.2f} {row['members_per_s'] / 1e6:12.1f} "
            f"{row['tflops']:8.0f} {row['of_peak']:8.2f}"
        )


if __name__ == "__main__":
    main()
