"""Measurements against peers, taken in one run."""
