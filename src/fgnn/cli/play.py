"""`fgnn play`: the playground in a browser."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer


def play(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 selects a free one.")] = 8473,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    export: Annotated[
        Path | None, typer.Option(help="Write the page into this folder instead, for any web server or none.")
    ] = None,
) -> None:
    """Draw a factor graph, solve it and watch messages pass, on a local page.

    Examples: fgnn play --port 0 --no-browser
              fgnn play --export site
    """
    from fgnn.errors import InputError

    if export is not None:
        from fgnn.play.site import export_site

        for path in export_site(export):
            print(path)
        print(f"Open {export / 'index.html'} in a browser, or put the folder on any web server.", file=sys.stderr)
        return
    from fgnn.play import Playground

    if not 0 <= port <= 65535:
        raise InputError(f"Expected a port between 0 and 65535 (got {port})")
    try:
        server = Playground(port)
    except OSError as error:
        raise InputError(f"port {port} cannot be used ({error.strerror}); try --port 0") from error
    print(f"fgnn play is at {server.url} (Ctrl-C to stop)", file=sys.stderr, flush=True)
    if browser:
        webbrowser.open(server.url)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
