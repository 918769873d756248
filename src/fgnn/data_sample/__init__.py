"""Samples for training loops of your own: a factor graph with features and targets, and batches of them."""

from fgnn.data_sample.batching import collate
from fgnn.data_sample.sample import Data

__all__ = ["Data", "collate"]
