"""Aggregation, convolutions and models for PyTorch Geometric."""

try:
    import torch_geometric  # noqa: F401 asked for once, so that its absence is said in our words
except ImportError as error:
    from fishnets.errors import MissingExtraError

    raise MissingExtraError("torch_geometric", "graphs", "Learning on graphs") from error

from fishnets.graphs.aggregation import Aggregated, FishnetsAggregation, register_with_pyg
from fishnets.graphs.conv import FishnetsConv
from fishnets.graphs.models import DeeperGCN
from fishnets.graphs.paper_models import PAPER_MODELS, PaperModel, paper_model

__all__ = [
    "PAPER_MODELS",
    "Aggregated",
    "DeeperGCN",
    "FishnetsAggregation",
    "FishnetsConv",
    "PaperModel",
    "paper_model",
    "register_with_pyg",
]
