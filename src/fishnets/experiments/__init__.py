"""The paper's results and ours: one module each, a config in, a record out."""

from fishnets.experiments import linear_scaling
from fishnets.experiments.records import Metric, Record, read_record, write_record

__all__ = ["EXPERIMENTS", "Metric", "Record", "linear_scaling", "read_record", "write_record"]

EXPERIMENTS = {"linear-scaling": linear_scaling}
