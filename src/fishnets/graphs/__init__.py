"""Aggregation, convolutions, models and data for PyTorch Geometric."""

try:
    import torch_geometric  # noqa: F401 asked for once, so that its absence is said in our words
except ImportError as error:
    from fishnets.errors import MissingExtraError

    raise MissingExtraError("torch_geometric", "graphs", "Learning on graphs") from error

from fishnets.graphs.aggregation import Aggregated, FishnetsAggregation, register_with_pyg
from fishnets.graphs.citation import random_split, read_citation
from fishnets.graphs.conv import FishnetsConv
from fishnets.graphs.datasets import read_node_dataset, sum_of_edges
from fishnets.graphs.graph_datasets import read_graph_dataset
from fishnets.graphs.graph_set import GraphSet
from fishnets.graphs.models import DeeperGCN
from fishnets.graphs.noise import EdgeNoise
from fishnets.graphs.paper_models import PAPER_MODELS, PaperModel, paper_model
from fishnets.graphs.selection import Curves, Recipe, fit
from fishnets.graphs.softmax import SoftmaxAggregation
from fishnets.graphs.tasks import GraphTask, NodeTask

__all__ = [
    "PAPER_MODELS",
    "Aggregated",
    "Curves",
    "DeeperGCN",
    "EdgeNoise",
    "FishnetsAggregation",
    "FishnetsConv",
    "GraphSet",
    "GraphTask",
    "NodeTask",
    "PaperModel",
    "Recipe",
    "SoftmaxAggregation",
    "fit",
    "paper_model",
    "random_split",
    "read_citation",
    "read_graph_dataset",
    "read_node_dataset",
    "register_with_pyg",
    "sum_of_edges",
]
