"""Fishnets: information-optimal aggregation for sets and graphs.

Twin networks give each datum a score and a Fisher matrix; both add over a set, so summaries merge, stream and weigh
data of unequal quality as they deserve.
"""

from fishnets import algebra, errors, inference, networks, priors, simulators
from fishnets.algebra import Gaussian, Information
from fishnets.ragged import Sets
from fishnets.sets import Estimate, Fishnet, History, PairsHistory, Regressor, fit_pairs, load

__version__ = "0.1.0"

__all__ = [
    "Estimate",
    "Fishnet",
    "Gaussian",
    "History",
    "Information",
    "PairsHistory",
    "Regressor",
    "Sets",
    "__version__",
    "algebra",
    "errors",
    "fit_pairs",
    "inference",
    "load",
    "networks",
    "priors",
    "simulators",
]
