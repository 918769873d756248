"""Random mutations of valid inputs: words, cuts, copies, bytes and numbers."""

from __future__ import annotations

import random
import struct

# numbers, words and punctuation that replace others
WORDS = (
    b"0", b"1", b"-1", b"2", b"3", b"255", b"65536", b"2147483648", b"1000000000000", b"9" * 30, b"0.5", b"-0.5",
    b"1e999", b"1e-999", b"nan", b"inf", b"-inf", b"NaN", b"+1", b"1_0", b"0x1", b"1.", b".", b"-", b"e", b"", b" ",
    b"\n", b"\r", b"\t", b"#", b"//", b"/*", b'"', b"'", b"{", b"}", b"[", b"]", b"(", b")", b";", b",", b"|", b":",
    b"&a", b"*a", b"!!", b"- ", b"\xff", b"\0", b"\xe2\x80\xa8", b"null", b"true", b"</script>", b"../",
)  # fmt: skip
_BINARY = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\x01")
_TEXT = frozenset(range(32, 127)) | {9, 10, 13}


def mutated(data: bytes, rng: random.Random, words: tuple[bytes, ...] = (), others: tuple[bytes, ...] = ()) -> bytes:
    """Apply one to five mutations; ``words`` are keywords of the format, ``others`` are other inputs."""
    words = words + WORDS if words else WORDS
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        at = rng.randint(0, len(data))
        end = min(len(data), at + rng.choice((0, 1, 1, 2, 3, 6, 20)))
        kind = rng.randrange(9)
        if kind == 0:
            data = data[:at] + rng.choice(words) + data[end:]
        elif kind == 1:
            data = data[:at] + data[end:]
        elif kind == 2:
            data = data[:end] + data[at:end] * rng.choice((1, 2, 5, 50)) + data[end:]
        elif kind == 3:
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        elif kind == 4:
            data = data[:at] + data[end:] + data[at:end]
        elif kind == 5:
            data = data[:at]
        elif kind == 6:
            data = data[:at] + _number(rng) + data[at + rng.choice((1, 2, 4, 8)) :]
        elif kind == 7:
            data = _word_swapped(data, at, rng, words)
        elif others:
            other = rng.choice(others)
            cut = rng.randint(0, len(other))
            data = data[:at] + other[cut : cut + rng.choice((4, 16, 64, 256))] + data[end:]
    return data


def overwritten(data: bytes, rng: random.Random) -> bytes:
    """Overwrite some numbers without moving anything, for formats with offsets."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        size = rng.choice((1, 1, 2, 4, 8))
        at = rng.randrange(max(1, len(changed) - size))
        number = rng.choice((0, -1, 1 << rng.randrange(8 * size), rng.randrange(len(data) + 1), rng.getrandbits(64)))
        changed[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "little")
    return bytes(changed)


def _number(rng: random.Random) -> bytes:
    """A binary integer, often an extreme one."""
    value = rng.choice((0, 1, 2, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, rng.getrandbits(32)))
    form = rng.choice(("<B", "<H", "<I", "<Q", ">I"))
    most = {"<B": 0xFF, "<H": 0xFFFF}.get(form, 0xFFFFFFFF)
    return struct.pack(form, value & most) if rng.random() < 0.9 else rng.choice(_BINARY) * 8


def _word_swapped(data: bytes, at: int, rng: random.Random, words: tuple[bytes, ...]) -> bytes:
    """Replace one word by another, so that counts and numbers change and the rest stays valid."""
    stops = b" \t\r\n,:;[]{}()|"
    start = at
    while start > 0 and data[start - 1] not in stops and at - start < 40:
        start -= 1
    end = at
    while end < len(data) and data[end] not in stops and end - at < 40:
        end += 1
    return data[:start] + rng.choice(words) + data[end:]
