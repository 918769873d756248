"""Marginals and the partition function: `marginals`, `log_partition`, `sample` and the methods behind them."""

from fgnn.infer.probability.api import METHODS, log_partition, marginals
from fgnn.infer.probability.result import Beliefs, LogPartition, Marginals, MarginalsBatch
from fgnn.infer.probability.sample import sample

__all__ = ["METHODS", "Beliefs", "LogPartition", "Marginals", "MarginalsBatch", "log_partition", "marginals", "sample"]
