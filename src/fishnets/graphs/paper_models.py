"""Networks for ogbn-proteins as they were published, by name, each with its number of weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fishnets.errors import ConfigError
from fishnets.graphs.aggregation import FishnetsAggregation
from fishnets.graphs.models import DeeperGCN

__all__ = ["PAPER_MODELS", "PaperModel", "paper_model"]


@dataclass(frozen=True)
class PaperModel:
    """A published network: where it was reported, how many weights that was, and the arguments that make it."""

    source: str
    num_weights: int
    settings: Mapping[str, Any]


def _fishnets(num_params: int) -> dict[str, Any]:
    return {"aggregation": partial(FishnetsAggregation, num_params=num_params, form="paper")}


# Checkpointing changes memory and time alone: it is on where 112 layers need it.
_FOCUS = {"node_dim": 8, "edge_dim": 8, "num_outputs": 112}
_NOISY = _FOCUS | {"node_dim": 9, "edge_dim": 9}
_TABLE_1 = _FOCUS | {"one_hot": 8}
_DEEPEST = _TABLE_1 | {"num_layers": 112, "checkpointing": True}
_SHARED = _TABLE_1 | _fishnets(8) | {"share_aggregation": True, "dropout": 0.25}
_SMALL = _FOCUS | {"hidden": 16}

PAPER_MODELS: Mapping[str, PaperModel] = {
    "gcn-112": PaperModel("Table 1", 1_887_144, _DEEPEST),
    "fishnets-8": PaperModel("Table 1", 146_596, _SHARED | {"num_layers": 8}),
    "fishnets-16": PaperModel("Table 1", 280_740, _SHARED | {"num_layers": 16}),
    "fishnets-20": PaperModel("Table 4", 442_372, _FOCUS | _fishnets(10) | {"num_layers": 20}),
    "fishnets-16-focus": PaperModel("Table 4", 355_584, _FOCUS | _fishnets(10) | {"num_layers": 16}),
    "fishnets-small": PaperModel("Table 4", 30_360, _SMALL | _fishnets(8) | {"num_layers": 14}),
    "gcn-28": PaperModel("Table 4", 477_964, _FOCUS | {"num_layers": 28}),
    "gcn-small": PaperModel("Table 4", 33_580, _SMALL | {"num_layers": 28}),
    "noisy-fishnets-20": PaperModel("Table 4", 442_500, _NOISY | _fishnets(10) | {"num_layers": 20}),
    "noisy-gcn-28": PaperModel("Table 4", 478_092, _NOISY | {"num_layers": 28}),
    "dyresgen-112": PaperModel("OGB", 2_374_568, _DEEPEST | {"bias": True, "encode_edges": "each layer"}),
}
"""Networks for ogbn-proteins by name. The first ten are the paper's: those of Table 1 know the species, the Fishnets
among them share one aggregation. The last is DeeperGCN as its authors published it, which ``"gcn-112"`` is not."""


def paper_model(name: str, **changes: Any) -> DeeperGCN:
    """Makes a network of :data:`PAPER_MODELS`, with other arguments where they are given.

    Example:
        >>> sum(weight.numel() for weight in paper_model("fishnets-8").parameters())
        146596
        >>> sum(weight.numel() for weight in paper_model("fishnets-8", share_aggregation=False).parameters())
        170648
    """
    if name not in PAPER_MODELS:
        raise ConfigError(f"There is no model {name!r}. Those of the paper are {', '.join(PAPER_MODELS)}.")
    return DeeperGCN(**{**PAPER_MODELS[name].settings, **changes})
