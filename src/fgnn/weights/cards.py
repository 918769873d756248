"""Weights by name or path, and the card that describes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from fgnn.errors import InputError
from fgnn.files import atomic_write, is_file, is_folder
from fgnn.schema import Label, parse
from fgnn.weights.store import parse_tensors, read_values, save_tensors

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_FORMAT = "fgnn-weights-1"
_MOST_CARD_BYTES = 1 << 20


class Card(dict[str, Any]):
    """What weights say of themselves: plain values from a file that anyone may have written.

    ``name``, ``task`` (``map`` or ``points``), ``network`` (its configuration), ``family`` (the models it accepts) and,
    for readers, ``recipe``, ``data``, ``seed``, ``hours``, ``hardware``, ``metrics``, ``command``. `part` checks what a
    program uses.

    Attributes:
        file: Where the card comes from, for messages.
    """

    def __init__(self, values: Mapping[str, Any], file: str | Path = "weights") -> None:
        super().__init__(values)
        self.file = file
        self._head = self.part(Head)

    def part(self, cls: type[T]) -> T:
        """Return the entries that are fields of ``cls``, by its schema; errors name the file and the field."""
        names = [field.name for field in fields(cls)]
        return parse(cls, {name: self[name] for name in names if name in self}, file=self.file)

    @property
    def name(self) -> str:
        return self._head.name

    @property
    def task(self) -> str:
        return self._head.task


@dataclass(frozen=True)
class Head:
    """What every card says."""

    name: Label = "weights"
    task: Label = ""


@dataclass(frozen=True, eq=False)
class Weights:
    """A network's tensors and its card."""

    tensors: Mapping[str, Tensor]
    card: Card

    @property
    def name(self) -> str:
        return self.card.name


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
    tensors, values = parse_tensors(data, _FORMAT, "weights", file)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError("Expected finite numbers (got infinities or NaN)", file=file, place=name)
    wide = {name: t.float() if t.dtype is torch.bfloat16 else t for name, t in tensors.items()}
    return Weights(wide, Card(values, file))


def read_card(place: str | Path) -> Card:
    """Read the card alone. It comes from the weights file: the JSON file beside it is for readers."""
    file = find_weights(place)
    return Card(read_values(file, _FORMAT, "weights"), file)


def parse_card(data: bytes, file: str | Path) -> Card:
    """Parse a card that was written as JSON; ``file`` names it in messages."""
    try:
        values = json.loads(data.decode("utf-8")) if len(data) <= _MOST_CARD_BYTES else None
    except (ValueError, RecursionError) as error:
        raise InputError("Expected the card of weights as JSON (got something else)", file=file) from error
    if not isinstance(values, dict):
        raise InputError("Expected the card of weights as a JSON object (got something else)", file=file)
    return Card(values, file)


def save_weights(
    path: str | Path, tensors: Mapping[str, Tensor], card: Mapping[str, Any], *, bf16: bool = False
) -> None:
    """Write weights with their card, and the card again as a readable JSON file beside them."""
    small = {n: t.bfloat16() if bf16 and t.dtype is torch.float32 else t for n, t in tensors.items()}
    save_tensors(path, small, card, _FORMAT)
    with atomic_write(Path(path).with_suffix(".json")) as file:
        json.dump(card, file, indent=1, ensure_ascii=False)
        file.write("\n")
