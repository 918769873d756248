"""The playground's server: one page and a small JSON API, on the loopback interface only; workers do the work."""

from __future__ import annotations

import html
import json
import select
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fgnn.play.site import weights_script
from fgnn.play.workers import Workers

MAX_BODY = 4 << 20
MAX_WORK = 2  # requests at a time

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Playground(ThreadingHTTPServer):
    """The server; ``port`` 0 selects a free port."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128  # the default of 5 is less than one busy page opens

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.workers = Workers(MAX_WORK)
        self._page: bytes | None = None

    def server_close(self) -> None:
        """Close the socket and end the workers."""
        super().server_close()
        if hasattr(self, "workers"):  # the port may not have been free
            self.workers.close()

    def page(self) -> tuple[int, bytes]:
        """The status code and the page, which a worker makes once."""
        if self._page is None:
            code, reply = self.workers.ask("/api/page", b"{}")
            if code != 200:
                text = reply if isinstance(reply, str) else json.loads(reply)["error"]
                return 500, f"<!doctype html><title>fgnn playground</title><p>{html.escape(text)}</p>".encode()
            self._page = json.loads(reply)["html"].encode()
        return 200, self._page

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that a closing page drops; show any other error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed a connection, as a page does that cancels a call."""
    try:
        readable = bool(select.select([connection], [], [], 0)[0])
        return readable and connection.recv(1, socket.MSG_PEEK) == b""
    except (OSError, ValueError):
        return True


class _Handler(BaseHTTPRequestHandler):
    server: Playground
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        if not self._from_here():
            return
        path = self.path.split("?")[0]
        if path == "/weights.js":
            self._send(200, weights_script(), "text/javascript; charset=utf-8")
        elif path not in ("/", "/index.html"):
            self._answer(404, {"error": "no such page"})
        else:
            code, page = self.server.page()
            self._send(code, page, "text/html; charset=utf-8")

    def do_POST(self) -> None:
        if not self._from_here():
            return
        if not self.path.startswith("/api/"):
            self.close_connection = True
            self._answer(404, {"error": "no such call"})
            return
        body = self._body()
        if body is None:
            return
        code, reply = self.server.workers.ask(self.path, body, lambda: is_closed(self.connection))
        if isinstance(reply, str):
            self._answer(code, {"error": reply})
        else:
            self._send(code, reply, "application/json")

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "")
        valid = length.isascii() and length.isdigit() and len(length) <= 18
        if not valid or int(length) > MAX_BODY:
            self.close_connection = True  # the body is not read
            self._answer(413 if valid else 411, {"error": f"Expected a body of at most {MAX_BODY} bytes"})
            return None
        if self.headers.get("Content-Type", "").split(";")[0].strip() != "application/json":
            # forms on other sites can send any other type without a preflight request
            self.close_connection = True
            self._answer(415, {"error": "Expected Content-Type: application/json"})
            return None
        return self.rfile.read(int(length))

    def _from_here(self) -> bool:
        """Reject other host names (DNS rebinding) and calls from other origins."""
        names = {f"127.0.0.1:{self.server.server_port}", f"localhost:{self.server.server_port}"}
        origin = self.headers.get("Origin")
        if self.headers.get("Host") in names and (origin is None or origin.removeprefix("http://") in names):
            return True
        self.close_connection = True
        self._answer(403, {"error": "only pages of this server may call it"})
        return False

    def _answer(self, code: int, value: Any) -> None:
        self._send(code, json.dumps(value).encode(), "application/json")

    def _send(self, code: int, body: bytes, kind: str) -> None:
        try:
            self.send_response(code)
            for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the tab was closed

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal shows only the address."""
