"""The playground's server: replies and rejected requests."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from fgnn import GraphicalModel
from fgnn.errors import InputError
from fgnn.play import Playground, api
from fgnn.play.model_json import MAX_VARIABLES, model_from_json, model_to_json, parse_json
from fgnn.play.server import MAX_BODY
from tests.strategies import models


@pytest.fixture(scope="module")
def server() -> Iterator[Playground]:
    playground = Playground()
    thread = threading.Thread(target=playground.serve_forever, daemon=True)
    thread.start()
    yield playground
    playground.shutdown()
    playground.server_close()


def ask(server: Playground, path: str, body: Any = None, **headers: str) -> tuple[int, Any, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    sent = ({"Content-Type": "application/json"} if data is not None else {}) | {
        k.replace("_", "-"): v for k, v in headers.items()
    }
    connection.request("GET" if data is None else "POST", path, data, sent)
    reply = connection.getresponse()
    text = reply.read()
    connection.close()
    kind = reply.headers["Content-Type"]
    return reply.status, json.loads(text) if kind == "application/json" else text, reply.headers


def test_a_dropped_connection_is_not_shown(server: Playground, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        client = socket.create_connection(("127.0.0.1", server.server_port))
        client.sendall(b"GET / HT")
        # close with a reset
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    assert ask(server, "/")[0] == 200
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join(5)
    assert capfd.readouterr().err == ""


def test_the_page_loads_and_may_contact_no_other_server(server: Playground) -> None:
    status, text, headers = ask(server, "/")
    assert status == 200
    assert b"fgnn playground" in text
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert b"http://" not in text.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"https://" not in text


def test_it_listens_on_the_loopback_interface_only(server: Playground) -> None:
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("method", ["auto", "exact", "max-product", "lp"])
def test_solving(server: Playground, method: str) -> None:
    model = ask(server, "/api/example", {"name": "chain"})[1]
    status, solution, _ = ask(server, "/api/solve", {"model": model, "method": method})
    assert status == 200, solution
    assert len(solution["assignment"]) == 10
    best = ask(server, "/api/solve", {"model": model, "method": "brute-force"})[1]
    if method in ("auto", "exact"):
        assert solution["score"] == pytest.approx(best["score"])
        assert solution["status"] == "optimal"
    assert solution["bound"] == "inf" or solution["bound"] >= best["score"] - 1e-6


@pytest.mark.parametrize("name", api.EXAMPLES)
def test_stepping_shows_messages_and_the_network_agrees(name: str) -> None:
    model = api.example_model({"name": name})
    plain = api.belief_steps({"model": model, "iterations": 50})
    by_network = api.belief_steps({"model": model, "iterations": 50, "network": True})
    assert len(plain["steps"]) == 51
    assert plain["steps"][0]["change"] == 0
    assert by_network["gap"] < 1e-11
    for mine, theirs in zip(plain["steps"], by_network["steps"], strict=True):
        for a, b in zip(mine["beliefs"], theirs["beliefs"], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-11)


@given(models(max_variables=4))
def test_the_network_agrees_on_any_model(model: GraphicalModel) -> None:
    if model.num_variables:
        request = {"model": model_to_json(model), "iterations": 4, "network": True}
        assert api.belief_steps(request)["gap"] < 1e-9


def test_steps_equal_the_solver() -> None:
    from fgnn import solve

    for name in ("paper", "chain", "grid"):
        model = api.EXAMPLES[name]()
        steps = api.belief_steps({"model": model_to_json(model), "iterations": 9})["steps"]
        for t in (1, 4, 9):
            expected = solve(model, "max-product", iterations=t, damping=0.0, tolerance=0.0)
            assert steps[t]["assignment"] == expected.assignment.tolist()


@given(models(max_variables=5))
def test_a_model_survives_the_page(model: GraphicalModel) -> None:
    twin = model_from_json(parse_json(json.dumps(model_to_json(model))))
    twin.constant = model.constant  # not part of the JSON
    assert twin == model


def test_import_and_export(server: Playground) -> None:
    model = ask(server, "/api/example", {"name": "grid"})[1]
    text = ask(server, "/api/export", {"model": model})[1]["text"]
    assert text.startswith("MARKOV")
    back = ask(server, "/api/import", {"name": "../../x.uai", "text": text})[1]
    a, b = model_from_json(model), model_from_json(back)
    x = np.random.default_rng(0).integers(0, 2, (50, 9))
    difference = a.score(x) - b.score(x)
    np.testing.assert_allclose(difference, difference[0], atol=1e-9)


@pytest.mark.parametrize(
    ("path", "body", "code", "message"),
    [
        ("/api/solve", b"{", 400, "Expected JSON"),
        ("/api/solve", b"[" * 100_000, 400, "Expected JSON"),
        ("/api/solve", b'{"model": NaN}', 400, "Expected plain numbers"),
        ("/api/solve", [], 400, "Expected an object for the request (got list)"),
        ("/api/solve", {"model": {"variables": 3}}, 400, "Expected a list for variables"),
        ("/api/solve", {"model": {"variables": []}}, 400, "at least one variable"),
        ("/api/solve", {"model": {"variables": [{"states": 0}]}}, 400, "variable 0: Expected 1 to 64 states"),
        ("/api/solve", {"model": {"variables": [{"states": 2}] * (MAX_VARIABLES + 1)}}, 400, "Expected at most 400"),
        ("/api/solve", {"model": {"variables": [{"states": 2, "unary": [0]}]}}, 400, "variable 0"),
        (
            "/api/solve",
            {"model": {"variables": [{"states": 2}], "factors": [{"kind": "x", "scope": [0]}]}},
            400,
            "factor 0",
        ),
        (
            "/api/solve",
            {"model": {"variables": [{"states": 2}], "factors": [{"kind": "budget", "scope": [7]}]}},
            400,
            "below 1",
        ),
        ("/api/solve", {"model": {"variables": [{"states": 2}]}, "method": "magic"}, 400, "Expected a method among"),
        ("/api/solve", {"model": {"variables": [{"states": 2}]}, "seconds": 1e9}, 400, "Expected seconds between"),
        (
            "/api/steps",
            {"model": {"variables": [{"states": 2}]}, "iterations": 9999},
            400,
            "Expected iterations between",
        ),
        ("/api/import", {"name": "a.exe", "text": ""}, 400, "Expected a file in"),
        ("/api/import", {"name": "a.uai", "text": "MARKOV\n9\n"}, 400, "a.uai"),
        ("/api/example", {"name": "none"}, 400, "Expected an example"),
        ("/api/nothing", {}, 404, "no such call"),
    ],
)
def test_invalid_requests_get_one_line(server: Playground, path: str, body: Any, code: int, message: str) -> None:
    status, reply, _ = ask(server, path, body)
    assert status == code
    assert message in reply["error"]
    assert "\n" not in reply["error"]


def test_other_origins_and_host_names_are_refused(server: Playground) -> None:
    assert ask(server, "/", Host="evil.example")[0] == 403
    assert ask(server, "/api/example", {"name": "grid"}, Origin="http://evil.example")[0] == 403
    assert ask(server, "/api/example", b"{}", Content_Type="text/plain")[0] == 415
    assert ask(server, "/etc/passwd")[0] == 404
    assert ask(server, "/../../etc/passwd")[0] == 404


def test_a_body_too_large_is_not_read(server: Playground) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest("POST", "/api/solve")
    connection.putheader("Content-Length", str(MAX_BODY + 1))
    connection.putheader("Content-Type", "application/json")
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_many_clients_at_once(server: Playground) -> None:
    model = api.example_model({"name": "chain"})

    def once(_: int) -> int:
        return ask(server, "/api/solve", {"model": model, "method": "exact"})[0]

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(once, range(48))) == {200}


def test_a_model_that_is_too_large_is_refused_with_advice() -> None:
    with pytest.raises(InputError, match="fgnn solve"):
        model_to_json(GraphicalModel([2] * (MAX_VARIABLES + 1)))
