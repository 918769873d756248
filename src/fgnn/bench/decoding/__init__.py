"""Decoders against their peers on the same shots."""
