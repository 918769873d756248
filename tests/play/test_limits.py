"""Requests are refused before they take much memory or time, and a hard limit ends those that slip through."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from fgnn import GraphicalModel
from fgnn.play import api
from fgnn.play.compiled_network import network_numbers
from fgnn.play.model_json import model_to_json
from fgnn.play.reply import NO_MEMORY, ROUTES, answer, to_json
from fgnn.play.workers import Workers
from fgnn.theory import max_product_network
from tests.fuzz.watch import attempt
from tests.strategies import models


def table(*shape: int) -> dict[str, Any]:
    model = GraphicalModel(shape)
    model.add_table(range(len(shape)), np.random.default_rng(0).normal(size=shape))
    return model_to_json(model)


def budgets(count: int, size: int, at_most: int) -> dict[str, Any]:
    budget = {"kind": "budget", "scope": list(range(size)), "at_least": 0, "at_most": at_most}
    return {"variables": [{"states": 2}] * size, "factors": [budget] * count}


STAR = {
    "variables": [{"states": 2}] * 400,
    "factors": [{"kind": "table", "scope": [0, 1 + i % 399], "values": [0, 1, 2, 3]} for i in range(2000)],
}
LARGE = {
    "the network of a large table": ("/api/network", {"model": table(40, 40)}, "step without"),
    "the network of a wide table": ("/api/network", {"model": table(*[2] * 10)}, "step without"),
    "the network of a budget": ("/api/network", {"model": budgets(1, 60, 20)}, "step without"),
    "the network of a variable in many factors": ("/api/network", {"model": STAR}, "net"),
    "a file that implies a table": (
        "/api/import",
        {"name": "a.wcsp", "base64": base64.b64encode(b"t 2 4000 1 99\n4000 4000\n2 0 1 5 0\n").decode()},
        "above the limit",
    ),
}


@pytest.mark.parametrize("what", LARGE)
def test_large_requests_are_refused_before_they_cost_anything(what: str) -> None:
    path, request, message = LARGE[what]
    body = json.dumps(request).encode()

    def call(data: bytes) -> None:
        code, reply = answer(path, data)
        assert code == 400, reply
        assert message in json.loads(reply)["error"]

    call(body)
    case = attempt(call, body)
    assert case.fault == ""
    assert case.seconds < 1
    assert case.grown < 32_000_000


@given(models(max_variables=5))
@settings(max_examples=40)
def test_the_bound_on_the_network_holds(model: GraphicalModel) -> None:
    if model.num_variables:
        network = max_product_network(model, 1, normalise=True)
        assert sum(p.numel() for p in network.parameters()) <= network_numbers(model)


def test_the_bound_on_the_network_holds_for_large_factors() -> None:
    for shape in ((16, 16), (6, 6, 6), (2,) * 7):
        model = GraphicalModel(shape)
        model.add_table(range(len(shape)), np.random.default_rng(0).normal(size=shape))
        network = max_product_network(model, 1, normalise=True)
        assert sum(p.numel() for p in network.parameters()) <= network_numbers(model)


def test_what_fits_is_answered() -> None:
    assert len(api.model_network({"model": table(6, 6)})["f"]) == 2


def test_replies_are_json_for_every_float() -> None:
    values = [1.5, float("nan"), float("inf"), -float("inf"), {"a": (float("nan"),)}]
    assert json.loads(to_json(values)) == [1.5, "nan", "inf", "-inf", {"a": ["nan"]}]


def test_a_nan_in_a_model_is_refused_and_an_infeasible_one_is_answered() -> None:
    forbidden = {"variables": [{"states": 2, "unary": ["-inf", "-inf"]}] * 2}
    forbidden |= {"factors": [{"kind": "table", "scope": [0, 1], "values": ["-inf"] * 4}]}
    for path in ("/api/solve", "/api/network"):
        code, reply = answer(path, json.dumps({"model": forbidden}).encode())
        assert code == 200, reply
        json.loads(reply, parse_constant=pytest.fail)
    assert answer("/api/solve", b'{"model": {"variables": [{"states": 1, "unary": [NaN]}]}}')[0] == 400


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with pytest.MonkeyPatch.context() as patch:
        from tests.docs.pages import ROOT

        patch.setenv("PYTHONPATH", str(ROOT))
        pool = Workers(1, "tests.play.odd_worker")
        yield pool
        pool.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("sleep", "longer than"),
        ("spin", "longer than"),
        ("hog", "memory"),
        ("hog-torch", "memory"),
        ("die", "ended its worker"),
    ],
)
def test_a_request_beyond_its_budget_ends_in_one_line(workers: Workers, call: str, message: str) -> None:
    begin = time.monotonic()
    code, reply = workers.ask(f"/api/{call}", b"{}")
    text = reply if isinstance(reply, str) else json.loads(reply)["error"]
    assert code == 400
    assert message in text
    assert time.monotonic() - begin < 60
    code, reply = workers.ask(
        "/api/solve", b'{"model": {"variables": [{"states": 2}]}}'
    )  # the next request is answered
    assert code == 200


def test_a_cancelled_request_ends_its_worker_at_once(workers: Workers) -> None:
    workers.ask("/api/print", b"{}")  # the worker is ready
    answers = iter([False, False])
    begin = time.monotonic()
    code, reply = workers.ask("/api/sleep", b"{}", lambda: next(answers, True))
    assert (code, reply) == (400, "this request was cancelled")
    assert time.monotonic() - begin < 1.5  # it would sleep for a minute, and be stopped after 2 s
    assert workers.ask("/api/print", b"{}")[0] == 200


def test_a_library_that_prints_does_not_spoil_the_reply(workers: Workers) -> None:
    assert workers.ask("/api/print", b"{}") == (200, b'"nan"')


def test_a_bug_and_a_reply_too_long_are_reported(workers: Workers) -> None:
    expected = {"error": "internal error (KeyError); the terminal shows more"}
    assert workers.ask("/api/bug", b"{}") == (500, json.dumps(expected).encode())
    assert workers.ask("/api/long", b"{}")[0] == 400


def test_every_refusal_is_one_printable_line() -> None:
    for path in ROUTES.keys() - {"/api/page"}:  # the page has no arguments
        for body in (b"", b"[]", b'{"model": "\\u001b[31m"}', b'{"name": "\\u001b.uai", "base64": "\\u001b"}'):
            code, reply = answer(path, body)
            assert code == 400
            assert json.loads(reply)["error"].isprintable()
    assert json.loads(answer("/api/none", b"{}")[1]) == {"error": "no such call"}
    assert NO_MEMORY.isprintable()
