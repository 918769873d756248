"""Packaged weights: safetensors files, each with a card."""

from fgnn.weights.cards import Weights, find_weights, load_weights, save_weights, weight_names

__all__ = ["Weights", "find_weights", "load_weights", "save_weights", "weight_names"]
