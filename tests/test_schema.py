"""The schema of files: every field has a rule, and values made in Python keep the rules too."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from fgnn.errors import InputError
from fgnn.models import NetworkConfig, PointConfig
from fgnn.models.map.learned import MAPCard
from fgnn.models.points.segmenter import PointCard
from fgnn.points.segment_pieces import Cut
from fgnn.schema import Between, Length, check_fields, parse
from fgnn.tasks import Recipe
from fgnn.weights.cards import Head
from tools.sweep import Plan


def rules_missing(hint: Any, place: str, rules: tuple[Any, ...] = ()) -> Iterator[str]:
    """The places of a schema where a file could ask for anything: sizes, texts and lists without a bound."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        yield from rules_missing(arguments[0], place, arguments[1:])
    elif origin in (types.UnionType, typing.Union):
        for argument in arguments:
            yield from rules_missing(argument, place, rules)
    elif origin in (tuple, Sequence):
        if not any(isinstance(rule, Length) for rule in rules):
            yield place
        yield from rules_missing(arguments[0], f"{place}[]")
    elif dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        for field in dataclasses.fields(hint):
            yield from rules_missing(hints[field.name], f"{place}.{field.name}")
    elif hint in (int, float, str):
        bounded = any(isinstance(rule, Between) and math.isfinite(rule.low + rule.high) for rule in rules)
        if not rules or (hint is int and not bounded):
            yield place


@pytest.mark.parametrize("cls", [Recipe, Plan, Head, MAPCard, PointCard, Cut])
def test_every_size_text_and_list_of_a_file_is_bounded(cls: type[Any]) -> None:
    assert list(rules_missing(cls, cls.__name__)) == []


@dataclasses.dataclass
class Open:
    size: int
    half: Annotated[int, Between(1)]
    name: str
    names: tuple[Annotated[str, Length(3)], ...]
    kind: Literal["a"]


def test_a_field_without_a_rule_is_found() -> None:
    assert list(rules_missing(Open, "x")) == ["x.size", "x.half", "x.name", "x.names"]


@dataclasses.dataclass(frozen=True)
class Sizes:
    width: Annotated[int, Between(1, 9)] = 4
    rate: Annotated[float, Between(0, 1, above=True, below=True)] = 0.5
    names: Annotated[tuple[Annotated[str, Length(3)], ...], Length(2)] = ()
    scores: dict[str, Annotated[float, Between(0)]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)


@pytest.mark.parametrize(
    ("values", "place", "message"),
    [
        ({"width": 0}, "width", r"at least 1 and at most 9 \(got 0\)"),
        ({"width": 10**400}, "width", r"at most 9 \(got 1000"),
        ({"width": int("9" * 4000) ** 2}, "width", r"\(got a very long number\)"),
        ({"width": 1.5}, "width", r"whole number \(got 1.5\)"),
        ({"rate": 0}, "rate", r"more than 0 and less than 1 \(got 0.0\)"),
        ({"rate": 1.0}, "rate", r"less than 1 \(got 1.0\)"),
        ({"rate": math.nan}, "rate", "finite"),
        ({"rate": 10**400}, "rate", "finite"),
        ({"rate": "fast"}, "rate", r"a number \(got 'fast'\)"),
        ({"names": ["a", "b", "c"]}, "names", r"0 to 2 items \(got 3\)"),
        ({"names": ["a", "long"]}, "names[1]", r"0 to 3 characters \(got 4\)"),
        ({"names": "ab"}, "names", "Expected a list"),
        ({"scores": {"a": -1}}, "scores.a", r"at least 0 \(got -1.0\)"),
        ({"scores": {1: 1.0}}, "scores", "names"),
        ({"widht": 3}, "widht", "did you mean 'width'"),
    ],
)
def test_a_broken_rule_names_the_file_the_field_and_the_value(values: Any, place: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse(Sizes, values, file="a.yaml", place="top")
    assert str(caught.value).startswith(f"a.yaml, top.{place}: ")


def test_objects_made_in_python_keep_the_rules() -> None:
    with pytest.raises(ValueError, match=r"width: Expected at least 1 and at most 9 \(got 12\)"):
        Sizes(width=12)
    assert Sizes(width=np.int64(3), rate=np.float32(0.25)) == Sizes(3, 0.25)  # type: ignore[arg-type]
    for make in (
        lambda: NetworkConfig(blocks=10**6),
        lambda: PointConfig(k=0),
        lambda: NetworkConfig(aggregate="most"),
    ):
        with pytest.raises(ValueError, match="Expected"):
            make()
