"""Pages and the server: names from files cannot become markup, and the server rejects invalid requests."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fgnn.play import Playground
from fgnn.play.server import MAX_BODY
from fgnn.points.cloud import Cloud
from fgnn.report.html import Page
from fgnn.report.tables import Table
from fgnn.report.viewer import write_viewer

EVIL = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "<img src=x onerror=alert(1)>",
    "\u2028alert(1)//",
    "'\"><svg onload=alert(1)>",
    "__DATA__",
]


class Tags(HTMLParser):
    """Counts the elements of a page and collects its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.scripts: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def read(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    return tags


def viewer(path: Path, name: str, title: str) -> str:
    cloud = Cloud(np.random.default_rng(0).random((5, 3)), {name: np.arange(5)})
    return write_viewer(cloud, np.array([0, 1, 0, 1, 2]), path, [name, "ground"], title=title).read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("name", EVIL)
def test_the_viewer_stores_names_as_text(tmp_path: Path, name: str) -> None:
    plain, evil = read(viewer(tmp_path / "a.html", "tree", "scan")), read(viewer(tmp_path / "b.html", name, name))
    assert evil.tags == plain.tags
    assert evil.attributes == plain.attributes
    data = next(s for s in evil.scripts if '"classes"' in s)
    match = re.search(r'\{"title".*\}', data)
    assert match is not None
    content = json.loads(match.group())
    assert content["classes"][0]["name"] == name
    assert content["title"] == name
    for mark in ("<!--", "<script", "</script", "\u2028"):
        assert mark not in match.group()


def test_the_viewers_script_inserts_names_as_text() -> None:
    page = (Path(__file__).resolve().parents[2] / "src/fgnn/report/pages/viewer.html").read_text(encoding="utf-8")
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in page, way


@pytest.mark.parametrize("name", EVIL)
def test_reports_hold_names_as_text(name: str) -> None:
    def page(word: str) -> Tags:
        report = Page(word)
        report.heading(word)
        report.text(word)
        report.code(word)
        report.picture(b"png", word)
        report.details(word, {word: word})
        report.table(Table(("method", word), [[word, word]], word))
        return read(report.render())

    assert page(name).tags == page("plain").tags
    assert page(name).attributes == page("plain").attributes


# ---- the server -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Playground]:
    playground = Playground()
    threading.Thread(target=playground.serve_forever, daemon=True).start()
    yield playground
    playground.shutdown()
    playground.server_close()


def ask(server: Playground, method: str, path: str, body: bytes | None = None, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
    status = connection.getresponse().status
    connection.close()
    return status


JSON = {"Content_Type": "application/json"}
SMALL = b'{"model": {"variables": [{"states": 2}]}}'


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
def test_other_methods_are_refused(server: Playground, method: str) -> None:
    assert ask(server, method, "/api/solve") in (405, 501)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1"}, 403),
        ({"Host": "127.0.0.1:1"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://127.0.0.1:1"}, 403),
    ],
)
def test_only_this_page_may_call(server: Playground, headers: dict[str, str], code: int) -> None:
    assert ask(server, "POST", "/api/solve", SMALL, **JSON, **headers) == code
    assert ask(server, "POST", "/api/solve", SMALL, **JSON) == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_form_of_another_page_cannot_call(server: Playground, kind: str) -> None:
    assert ask(server, "POST", "/api/solve", SMALL, Content_Type=kind) == 415


@pytest.mark.parametrize("length", [str(MAX_BODY + 1), "99999999999999999999", "-5", "abc", "1e3", "\u00b3"])
def test_an_invalid_or_too_large_length_is_rejected(server: Playground, length: str) -> None:
    head = f"POST /api/solve HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        connection.sendall(head.encode() + b"Content-Length: " + length.encode("latin-1") + b"\r\n\r\n")
        status = connection.recv(100).split()[1]
    assert status in (b"400", b"411", b"413")


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/api/../x", "/pages/play.html"]
)
def test_no_other_file_is_served(server: Playground, path: str) -> None:
    assert ask(server, "GET", path) == 404


def test_a_chunked_body_is_refused(server: Playground) -> None:
    assert ask(server, "POST", "/api/solve", None, Transfer_Encoding="chunked", **JSON) in (400, 411)
