"""Names of the classes that LAS files give as numbers (ASPRS)."""

from __future__ import annotations

ASPRS = {
    0: "never classified", 1: "unclassified", 2: "ground", 3: "low vegetation", 4: "medium vegetation",
    5: "high vegetation", 6: "building", 7: "low noise", 8: "model key point", 9: "water", 10: "rail", 11: "road",
    12: "overlap", 13: "wire guard", 14: "wire", 15: "tower", 16: "wire connector", 17: "bridge", 18: "high noise",
}  # fmt: skip
