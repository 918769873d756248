"""One seed per purpose and step, so that a run's position in its data is a number and not a generator's state."""

from __future__ import annotations

import zlib

import numpy as np


def seed_for(seed: int, purpose: str, *counters: int) -> int:
    """A 63-bit seed from a run's seed, what it is for (``train``, ``validation``, ``test``) and where the run stands.

    Streams of different purposes never meet but by a collision of 63-bit hashes, so an instance drawn to test a
    network was not drawn to train it.
    """
    if seed < 0:
        raise ValueError(f"Expected a seed of at least 0 (got {seed})")
    sequence = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *counters])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
