"""Packaged weights: safetensors files, each with a card."""

from fgnn.weights.cards import Card, Weights, find_weights, load_weights, save_weights, weight_names

__all__ = ["Card", "Weights", "find_weights", "load_weights", "save_weights", "weight_names"]
