"""Learning from sets and compressing them: Fishnet, its training loop and its files."""

from fishnets.sets.files import load
from fishnets.sets.fishnet import Fishnet
from fishnets.sets.history import History

__all__ = ["Fishnet", "History", "load"]
