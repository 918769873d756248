"""Weights by name or path, and the card that describes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fgnn.errors import InputError
from fgnn.files import atomic_write, is_file, is_folder
from fgnn.weights.store import parse_tensors, save_tensors

_FORMAT = "fgnn-weights-1"


@dataclass(frozen=True, eq=False)
class Weights:
    """A network's tensors and its card.

    The card holds ``name``, ``task`` (``map`` or ``points``), ``network`` (its configuration), ``family`` (the models
    it accepts) and, for readers, ``recipe``, ``data``, ``seed``, ``hours``, ``hardware``, ``metrics``, ``command``.
    """

    tensors: Mapping[str, Tensor]
    card: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.card.get("name", "weights"))


def weights_folder() -> Path:
    """Return the folder of the packaged weights."""
    return Path(str(files("fgnn.weights")))


def weight_names() -> list[str]:
    """Return the names of the packaged weights."""
    return sorted(p.stem for p in weights_folder().glob("*.safetensors"))


def find_weights(place: str | Path) -> Path:
    """Return the file of a packaged name, a path, or the folder of a run (its best weights, else its last)."""
    path = Path(place)
    if is_folder(path):
        for name in ("best.safetensors", "last.safetensors"):
            if (path / name).is_file():
                return path / name
        raise InputError("this folder holds no weights (best.safetensors or last.safetensors)", file=path)
    if is_file(path):
        return path
    names = weight_names()
    if str(place) in names:
        return weights_folder() / f"{place}.safetensors"
    close = get_close_matches(str(place)[:100], names, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else f"; available: {', '.join(names) or 'none'}"
    raise InputError(f"no such weights{hint}", file=place)


def load_weights(place: str | Path) -> Weights:
    """Read weights by packaged name, file or run folder, on the CPU and in float32."""
    path = find_weights(place)
    return parse_weights(path.read_bytes(), path)


def parse_weights(data: bytes, file: str | Path) -> Weights:
    """Parse the bytes of a weights file; ``file`` names it in messages."""
    tensors, card = parse_tensors(data, _FORMAT, "weights", file)
    return Weights({name: t.float() if t.dtype is torch.bfloat16 else t for name, t in tensors.items()}, card)


def read_card(place: str | Path) -> dict[str, Any]:
    """Read the card alone, from the JSON file beside the weights if there is one."""
    file = find_weights(place).with_suffix(".json")
    if file.is_file():
        try:
            card = json.loads(file.read_bytes().decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise InputError("Expected the card of weights as JSON (got something else)", file=file) from error
        if not isinstance(card, dict):
            raise InputError("Expected the card of weights as a JSON object (got something else)", file=file)
        return card
    return dict(load_weights(place).card)


def save_weights(
    path: str | Path, tensors: Mapping[str, Tensor], card: Mapping[str, Any], *, bf16: bool = False
) -> None:
    """Write weights with their card, and the card again as a readable JSON file beside them."""
    small = {n: t.bfloat16() if bf16 and t.dtype is torch.float32 else t for n, t in tensors.items()}
    save_tensors(path, small, card, _FORMAT)
    with atomic_write(Path(path).with_suffix(".json")) as file:
        json.dump(card, file, indent=1, ensure_ascii=False)
        file.write("\n")
