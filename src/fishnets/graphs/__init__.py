"""Aggregation, convolutions and models for PyTorch Geometric."""

try:
    import torch_geometric  # noqa: F401 asked for once, so that its absence is said in our words
except ImportError as error:
    from fishnets.errors import MissingExtraError

    raise MissingExtraError("torch_geometric", "graphs", "Learning on graphs") from error

from fishnets.graphs.aggregation import Aggregated, FishnetsAggregation, register_with_pyg
from fishnets.graphs.conv import FishnetsConv

__all__ = ["Aggregated", "FishnetsAggregation", "FishnetsConv", "register_with_pyg"]
