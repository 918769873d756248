"""The playground's server: replies and rejected requests."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import lzma
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from fgnn import GraphicalModel, solve, write_model
from fgnn.errors import InputError
from fgnn.play import Playground, api
from fgnn.play.compiled_network import compiled_network
from fgnn.play.examples import EXAMPLES
from fgnn.play.model_json import MAX_VARIABLES, model_from_json, model_to_json, parse_json
from fgnn.play.server import MAX_BODY, is_closed
from fgnn.theory import max_product_network
from tests.play.plain_messages import max_product_steps
from tests.strategies import models

SMALL = {"variables": [{"states": 2}]}


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
    status, text, _ = ask(server, "/weights.js")
    assert status == 200
    assert text.startswith(b"globalThis.fgnnWeights = ")


def test_a_closed_connection_is_noticed() -> None:
    mine, theirs = socket.socketpair()
    assert not is_closed(mine)
    theirs.sendall(b"GET")  # a further request
    assert not is_closed(mine)
    mine.recv(3)
    theirs.close()
    assert is_closed(mine)
    mine.close()
    assert is_closed(mine)


def test_it_listens_on_the_loopback_interface_only(server: Playground) -> None:
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("method", ["auto", "exact", "max-product", "lp"])
def test_solving(server: Playground, method: str) -> None:
    model = model_to_json(EXAMPLES["chain"].make())
    status, solution, _ = ask(server, "/api/solve", {"model": model, "method": method})
    assert status == 200, solution
    assert len(solution["assignment"]) == 10
    best = ask(server, "/api/solve", {"model": model, "method": "brute-force"})[1]
    if method in ("auto", "exact"):
        assert solution["score"] == pytest.approx(best["score"])
        assert solution["status"] == "optimal"
    assert solution["bound"] == "inf" or solution["bound"] >= best["score"] - 1e-6


@pytest.mark.parametrize("name", ["paper", "chain", "grid", "ldpc"])
def test_the_network_of_an_example_runs_max_product(name: str) -> None:
    model = EXAMPLES[name].make()
    network = max_product_network(model, 50, normalise=True)
    for mine, theirs in zip(max_product_steps(model, 50)[1:], network.beliefs(), strict=True):
        for a, b in zip(mine["beliefs"], theirs, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-11)


def test_the_network_is_sent_with_its_layer_features_and_readout(server: Playground) -> None:
    model = EXAMPLES["grid"].make()
    status, reply, _ = ask(server, "/api/network", {"model": model_to_json(model)})
    assert status == 200
    assert reply == json.loads(json.dumps(compiled_network(model)))
    (group,) = reply["groups"]
    assert group["scopes"] == [list(t.scope) for t in model.tables()]
    assert len(reply["f"]) == 9


def test_steps_equal_the_solver() -> None:
    for name in ("paper", "chain", "grid"):
        model = EXAMPLES[name].make()
        steps = max_product_steps(model, 9)
        for t in (1, 4, 9):
            expected = solve(model, "max-product", iterations=t, damping=0.0, tolerance=0.0)
            assert steps[t]["assignment"] == expected.assignment.tolist()


@given(models(max_variables=5))
def test_a_model_survives_the_page(model: GraphicalModel) -> None:
    twin = model_from_json(parse_json(json.dumps(model_to_json(model))))
    twin.constant = model.constant  # not part of the JSON
    assert twin == model


def test_structured_factors_become_tables() -> None:
    model = GraphicalModel([2, 2, 2, 3, 3])
    model.add_parity((0, 1, 2))
    model.add_all_different((3, 4))
    twin = model_from_json(model_to_json(model))
    x = np.stack(np.meshgrid(*(np.arange(k) for k in model.cardinalities), indexing="ij"), -1).reshape(-1, 5)
    np.testing.assert_array_equal(twin.score(x), model.score(x))
    wide = GraphicalModel([2] * 30)
    wide.add_parity(range(30))
    with pytest.raises(InputError, match="table entries"):
        model_to_json(wide)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


PACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize("suffix", [".uai", ".fgm"])
def test_files_are_imported_plain_and_compressed(tmp_path: Path, suffix: str, packed: str) -> None:
    model = EXAMPLES["chain"].make()
    write_model(model, tmp_path / f"model{suffix}")
    data = PACK[packed]((tmp_path / f"model{suffix}").read_bytes())
    back = model_from_json(api.import_model({"name": f"../../x{suffix}{packed}", "base64": encoded(data)}))
    x = np.random.default_rng(0).integers(0, 2, (50, 10))
    np.testing.assert_allclose(model.score(x), back.score(x), atol=1e-9)


def test_a_small_file_that_expands_too_far_is_refused() -> None:
    bomb = encoded(gzip.compress(b"MARKOV " + bytes(40 << 20)))
    with pytest.raises(InputError, match=r"bomb\.uai\.gz.*more than"):
        api.import_model({"name": "bomb.uai.gz", "base64": bomb})


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
        ("/api/network", {"model": {"variables": []}}, 400, "at least one variable"),
        ("/api/import", {"name": "a.exe", "base64": ""}, 400, "Expected a file in"),
        ("/api/import", {"name": "a.uai.gz.gz", "base64": ""}, 400, "Expected a file in"),
        ("/api/import", {"name": "a.uai", "base64": "*"}, 400, "base64"),
        ("/api/import", {"name": "a.uai", "base64": encoded(b"MARKOV\n9\n")}, 400, "a.uai"),
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
    assert ask(server, "/api/solve", {"model": SMALL}, Origin="http://evil.example")[0] == 403
    assert ask(server, "/api/solve", b"{}", Content_Type="text/plain")[0] == 415
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
    model = model_to_json(EXAMPLES["chain"].make())

    def once(_: int) -> int:
        return ask(server, "/api/solve", {"model": model, "method": "exact"})[0]

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(once, range(48))) == {200}


def test_a_model_that_is_too_large_is_refused_with_advice() -> None:
    with pytest.raises(InputError, match="fgnn solve"):
        model_to_json(GraphicalModel([2] * (MAX_VARIABLES + 1)))
