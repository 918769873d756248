"""The `fgnn` command: one file per subcommand.

Exit codes: 0 done, 1 no answer found (or data that differs), 2 bad input or wrong use, 3 out of memory or disk,
130 interrupted, 143 terminated.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from fgnn.cli.advice import did_you_mean, with_advice
from fgnn.errors import InputError, MissingExtra
from fgnn.runtime.resource_errors import out_of_disk, out_of_memory

# What typer raises for wrong use. It has its own copy of click or uses the package, by version, so they are named here
# by way of what it exports.
_UsageError: Any = typer.BadParameter.__mro__[1]
_ClickError: Any = typer.BadParameter.__mro__[2]

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

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            near = did_you_mean(args[0], list(self.commands))
            _fail(f"no command '{args[0]}'.{near} See '{ctx.command_path} --help'.")
        return super().resolve_command(ctx, args)


def _show_version(wanted: bool) -> None:
    if wanted:
        from fgnn import __version__

        print(f"fgnn {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What comes before a command."""


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
        callback=_options,
    )
    for name, place in COMMANDS.items():
        module, attribute = place.split(":")
        target = getattr(import_module(module), attribute)
        if isinstance(target, typer.Typer):
            for command in target.registered_commands:
                command.help = _paragraphs(command.callback)
            app.add_typer(target, name=name, cls=_Group)
        else:
            app.command(name, help=_paragraphs(target))(target)
    return app


def _paragraphs(command: Any) -> str:
    """A command's docstring with a line for each paragraph: a terminal breaks lines where it is wide, not we."""
    parts = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in parts)


def _fail(message: str, code: int = 2) -> NoReturn:
    print(f"fgnn: {message}", file=sys.stderr)
    sys.exit(code)


def main() -> None:
    """Run the command line; a person's mistake ends in one line and exit 2, never a traceback."""
    if os.environ.get("FGNN_DEBUG"):
        build_app()()
        return
    _stop_on_sigterm()
    try:
        code = build_app()(prog_name="fgnn", standalone_mode=False)
    except _UsageError as error:
        _wrong_use(error)
    except _ClickError as error:
        _fail(error.format_message())
    except (InputError, MissingExtra, ValueError) as error:
        _fail(with_advice(str(error).splitlines()[0] if str(error) else type(error).__name__))
    except FileNotFoundError as error:
        _fail(with_advice(f"{error.filename or 'file'}: no such file"))
    except OSError as error:
        _fail(f"{error.filename or 'file'}: {error.strerror or error}", 3 if out_of_disk(error) else 2)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except (RuntimeError, MemoryError, ImportError) as error:
        told = out_of_memory(error)
        if told is None:
            raise
        _fail(told, 3)
    if code == 130:
        _fail(*(("terminated", 143) if _terminated else ("interrupted", 130)))
    sys.exit(code if isinstance(code, int) else 0)


_terminated: list[int] = []


def _stop_on_sigterm() -> None:
    """Let SIGTERM act as Ctrl-C does: temporary files are removed, and a solve prints its best so far."""

    def stop(number: int, frame: Any) -> None:
        _terminated.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, stop)


def _wrong_use(error: Any) -> NoReturn:
    """A missing argument, an unknown option, a value of another kind: one line, and where to look."""
    if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command: its help is the answer
        error.show()
        sys.exit(error.exit_code)
    command = error.ctx.command_path if error.ctx is not None else "fgnn"
    told = error.format_message().strip().rstrip(".") + "."
    option = getattr(error, "option_name", None)
    if option is not None:
        known = [o for p in error.ctx.command.params for o in (*p.opts, *p.secondary_opts)] if error.ctx else []
        told = f"no option '{option}'.{did_you_mean(option, [*known, '--help'])}"
    _fail(f"{told} See '{command} --help'.")
