"""Learning from sets and compressing them: Fishnet, the regressors beside it, training and files."""

from fishnets.sets.files import load
from fishnets.sets.fishnet import Fishnet
from fishnets.sets.history import History
from fishnets.sets.pairs import PairsHistory, fit_pairs
from fishnets.sets.regression import Regressor

__all__ = ["Fishnet", "History", "PairsHistory", "Regressor", "fit_pairs", "load"]
