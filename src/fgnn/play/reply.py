"""From the body of a request to the body of a reply: JSON both ways, and one line for every refusal."""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Callable
from typing import Any

from fgnn.errors import InputError, MissingExtra, printable
from fgnn.play import api
from fgnn.play.model_json import parse_json
from fgnn.runtime.resource_errors import out_of_memory

ROUTES: dict[str, Callable[[Any], Any]] = {
    "/api/solve": api.solve_model,
    "/api/network": api.model_network,
    "/api/import": api.import_model,
    "/api/page": api.page,
}
# Bytes. A browser draws no more, and the calls bound their replies before they compute them.
MAX_REPLY = 32 << 20
NO_MEMORY = "this request needs more memory than the playground allows; use 'fgnn solve'"


def answer(path: str, body: bytes) -> tuple[int, bytes]:
    """The status code and the JSON of the reply to a request."""
    route = ROUTES.get(path)
    if route is None:
        return 404, refusal("no such call")
    try:
        reply = to_json(route(parse_json(body)))
    except (InputError, MissingExtra, ValueError) as error:
        return 400, refusal(str(error))
    except Exception as error:
        if out_of_memory(error):
            return 400, refusal(NO_MEMORY)
        traceback.print_exc(file=sys.stderr)  # a bug
        return 500, refusal(f"internal error ({type(error).__name__}); the terminal shows more")
    if len(reply) > MAX_REPLY:
        return 400, refusal(f"the reply has {len(reply)} bytes, more than the {MAX_REPLY} allowed")
    return 200, reply


def refusal(text: str) -> bytes:
    """An error as a reply, in one line."""
    lines = text.splitlines()
    return to_json({"error": printable(lines[0]) if lines else "no reason given"})


def to_json(value: Any) -> bytes:
    """JSON has neither infinities nor NaN: they become strings."""
    return json.dumps(_without_infinity(value), allow_nan=False).encode()


def _without_infinity(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {k: _without_infinity(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinity(v) for v in value]
    return value
