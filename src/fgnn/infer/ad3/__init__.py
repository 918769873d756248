"""Alternating-directions dual decomposition, batched, with branch and bound on top."""
