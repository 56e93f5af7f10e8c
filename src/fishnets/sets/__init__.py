"""Learning from sets and compressing them: Fishnet, its refined estimates, the regressors beside it, and files."""

from fishnets.sets.estimate import Estimate
from fishnets.sets.files import load
from fishnets.sets.fishnet import Fishnet
from fishnets.sets.history import History
from fishnets.sets.pairs import PairsHistory, fit_pairs
from fishnets.sets.regression import Regressor
from fishnets.sets.stored_centring import StoredCentring

__all__ = ["Estimate", "Fishnet", "History", "PairsHistory", "Regressor", "StoredCentring", "fit_pairs", "load"]
