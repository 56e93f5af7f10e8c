"""Imports point one way, extras stay in their folders, and importing does nothing else.

Every import in the source is read, those inside functions included.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fishnets

SOURCE = Path(fishnets.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# errors <- algebra <- arrays <- rows <- {ragged, priors} <- ops <- {networks, simulators} <- {sets, graphs}
#        <- {inference, scale} <- interop <- experiments <- cli
LAYERS = [
    {"errors"},
    {"algebra"},
    {"arrays"},
    {"rows"},
    {"ragged", "priors"},
    {"ops"},
    {"networks", "simulators"},
    {"sets", "graphs"},
    {"inference", "scale"},
    {"interop"},
    {"experiments"},
    {"cli", "__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
# the package itself lists public names: it reaches up to interop, and what lies above may use it
ROOT = "fishnets"
ROOT_RANK = RANK["interop"] + 0.5

CORE = {"torch", "numpy", "safetensors"}
EXTRAS = {
    "rich": {"sets", "experiments", "cli"},
    "typer": {"cli"},
    "matplotlib": {"inference", "experiments"},
    "triton": {"ops"},
    "numba": {"ops"},
    "llvmlite": {"ops"},
    "torch_geometric": {"graphs"},
    "ogb": {"graphs"},
    "zuko": {"inference"},
    "numpyro": {"inference"},
    "jax": {"inference"},
    "pyarrow": {"scale"},
    "dask": {"scale"},
    "ray": {"scale"},
    "sbi": {"interop"},
    "bayesflow": {"interop"},
}


def named(path: Path) -> str:
    return str(path.relative_to(SOURCE))


every_file = pytest.mark.parametrize("path", FILES, ids=named)


def layer_of(path: Path) -> str:
    """The layer a file belongs to: its folder or, at the top, its own name."""
    first = path.relative_to(SOURCE).parts[0]
    return ROOT if first == "__init__.py" else first.removesuffix(".py")


def imports_of(tree: ast.AST, package: str) -> Iterator[str]:
    """Full names of the modules a file imports; relative imports are resolved, doctests are not read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
            if base == ROOT:  # `from fishnets import algebra` imports a layer, `from fishnets import Sets` the root
                yield from (f"{ROOT}.{a.name}" if a.name in RANK else ROOT for a in node.names)
            else:
                yield base


def read(path: Path) -> tuple[ast.Module, list[str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    package = ".".join([ROOT, *path.relative_to(SOURCE).parent.parts])
    return tree, list(imports_of(tree, package))


def rank_of(layer: str) -> float:
    return ROOT_RANK if layer == ROOT else RANK[layer]


def complaints(layer: str, targets: list[str]) -> list[str]:
    """Imports of one layer that point the wrong way."""
    wrong = []
    for target in targets:
        top, _, rest = target.partition(".")
        if top != ROOT:
            continue
        other = rest.partition(".")[0] or ROOT
        if other not in RANK and other != ROOT:
            wrong.append(f"{target} belongs to no layer")
        elif other != layer and not rank_of(other) < rank_of(layer):
            wrong.append(f"{layer} may not import {target}")
    return wrong


@every_file
def test_file_lies_in_a_layer(path):
    assert layer_of(path) in {ROOT, *RANK}


@every_file
def test_imports_point_one_way(path):
    _, targets = read(path)
    assert complaints(layer_of(path), targets) == []


@pytest.mark.parametrize(
    ("layer", "statement"),
    [
        ("algebra", "from fishnets.priors import Normal"),
        ("arrays", "from fishnets.ragged import Sets"),
        ("ragged", "import fishnets.priors"),
        ("priors", "from fishnets import ragged"),
        ("networks", "from fishnets.simulators.linear_regression import LinearRegression"),
        ("ops", "def f():\n    from fishnets.networks import MLP"),
        ("sets", "from fishnets import Fishnet"),
        ("sets", "from ..graphs import aggregation"),
        ("experiments", "from fishnets.cli import main"),
        ("errors", "import fishnets.helpers"),
    ],
)
def test_wrong_arrow_is_found(layer, statement):
    targets = list(imports_of(ast.parse(statement), f"{ROOT}.{layer}"))
    assert len(complaints(layer, targets)) == 1


@pytest.mark.parametrize(
    ("layer", "statement"),
    [
        ("sets", "from fishnets.sets.training import train"),
        ("sets", "from .training import train"),
        ("sets", "from fishnets import errors"),
        ("experiments", "import fishnets"),
        ("cli", "from fishnets import Fishnet, experiments"),
        ("algebra", "import torch"),
    ],
)
def test_right_arrow_is_allowed(layer, statement):
    targets = list(imports_of(ast.parse(statement), f"{ROOT}.{layer}"))
    assert complaints(layer, targets) == []


@every_file
def test_third_party_packages_stay_where_they_are_allowed(path):
    layer = layer_of(path)
    for target in read(path)[1]:
        top = target.partition(".")[0]
        if top in CORE | {ROOT} or top in sys.stdlib_module_names:
            continue
        assert top in EXTRAS, f"`{top}` is no dependency of this library"
        assert layer in EXTRAS[top], f"`{top}` may be imported in {sorted(EXTRAS[top])} only"


@pytest.mark.parametrize("path", [p for p in FILES if layer_of(p) == "algebra"], ids=named)
def test_algebra_needs_torch_and_nothing_else(path):
    tops = {target.partition(".")[0] for target in read(path)[1]}
    assert tops - sys.stdlib_module_names <= {"torch", ROOT}


@every_file
def test_module_says_what_it_is_for_and_what_it_offers(path):
    tree, _ = read(path)
    assert ast.get_docstring(tree), "the module has no docstring"
    if path.name == "__main__.py":
        return
    names = [node.targets[0] for node in tree.body if isinstance(node, ast.Assign)]
    names += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    assert any(isinstance(name, ast.Name) and name.id == "__all__" for name in names), "the module declares no __all__"


@every_file
def test_no_file_is_a_drawer(path):
    assert not {"utils", "util", "core", "helpers", "misc", "common"} & {p.removesuffix(".py") for p in path.parts[-2:]}


STATE = """
import os, random, signal, sys, warnings
import numpy, rich.console, rich.progress, safetensors.torch, torch

def state():
    return {
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "seed": torch.get_rng_state().tolist(),
        "numpy seed": numpy.random.get_state()[1].tolist(),
        "python seed": random.getstate(),
        "threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul": torch.get_float32_matmul_precision(),
        "filters": list(warnings.filters),
        "environment": dict(os.environ),
        "signals": {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)},
    }

before = state()
import fishnets
after = state()
print("changed:", sorted(name for name in before if before[name] != after[name]))
print("cuda:", torch.cuda.is_initialized())
extras = ["matplotlib", "torch_geometric", "ogb", "zuko", "numpyro", "jax", "pyarrow", "dask", "ray", "sbi"]
extras += ["bayesflow", "typer"]
print("extras:", sorted(set(extras) & set(sys.modules)))
print("missing:", [name for name in fishnets.__all__ if not hasattr(fishnets, name)])
"""


def test_importing_changes_nothing_and_brings_no_extra():
    done = subprocess.run([sys.executable, "-W", "error", "-c", STATE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["changed: []", "cuda: False", "extras: []", "missing: []"]
    assert done.stderr == ""
