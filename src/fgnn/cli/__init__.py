"""The `fgnn` command: one file per subcommand.

Exit codes: 0 done, 1 no answer found, 2 bad input or wrong use, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module

import typer
from typer.core import TyperGroup

from fgnn.errors import InputError, MissingExtra

# Each command's module, imported only to build the parser; heavy imports belong inside the functions.
COMMANDS: dict[str, str] = {
    "solve": "fgnn.cli.solve:solve",
    "demo": "fgnn.cli.demo:demo",
    "train": "fgnn.cli.train:train",
    "evaluate": "fgnn.cli.evaluate:evaluate",
    "data": "fgnn.cli.data:data",
    "reproduce": "fgnn.cli.reproduce:reproduce",
    "segment": "fgnn.cli.segment:segment",
    "bench": "fgnn.cli.bench:bench",
    "info": "fgnn.cli.info:info",
    "play": "fgnn.cli.play:play",
}


class _Group(TyperGroup):
    """Suggests the nearest command for a mistyped one."""

    def resolve_command(self, ctx, args):  # type: ignore[no-untyped-def]
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            close = get_close_matches(args[0], self.commands, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            _fail(f"no command '{args[0]}'.{hint} See 'fgnn --help'.")
        return super().resolve_command(ctx, args)


def build_app() -> typer.Typer:
    """The command-line application, with every command registered."""
    app = typer.Typer(
        cls=_Group,
        help="Factor graph neural networks: solve models, train, reproduce the paper, label scans.",
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, place in COMMANDS.items():
        module, attribute = place.split(":")
        target = getattr(import_module(module), attribute)
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=name)
        else:
            app.command(name)(target)
    return app


def _fail(message: str, code: int = 2) -> None:
    print(f"fgnn: {message}", file=sys.stderr)
    sys.exit(code)


def main(run: Callable[[], object] | None = None) -> None:
    """Run the command line; a person's mistake ends in one line and exit 2, never a traceback."""
    if os.environ.get("FGNN_DEBUG"):
        (run or build_app())()
        return
    try:
        (run or build_app())()
    except (InputError, MissingExtra, ValueError) as error:
        _fail(str(error).splitlines()[0] if str(error) else type(error).__name__)
    except OSError as error:
        _fail(f"{error.filename or 'file'}: {error.strerror or error}")
    except KeyboardInterrupt:
        _fail("interrupted", 130)
