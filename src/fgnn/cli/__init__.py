"""The `fgnn` command: one file per subcommand.

Exit codes: 0 done, 1 no answer found (or data differ), 2 bad input or wrong usage, 3 out of memory or disk,
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
from fgnn.errors import InputError, MissingExtra, printable
from fgnn.runtime.resource_errors import out_of_disk, out_of_memory

# The errors that typer raises for wrong usage. Depending on its version they come from the package click or from a
# copy of it, so they are reached through a class that typer exports.
_UsageError: Any = typer.BadParameter.__mro__[1]
_ClickError: Any = typer.BadParameter.__mro__[2]

# Command NAME is the function NAME of cli/NAME.py. All are imported to build the parser, so heavy imports belong inside
# the functions.
COMMANDS = (
    "solve", "marginals", "segment", "decode", "train", "evaluate", "data", "sample", "demo", "play", "reproduce",
    "bench", "info",
)  # fmt: skip


class _Group(TyperGroup):
    """Suggest the most similar command for a mistyped one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            hint = did_you_mean(args[0], list(self.commands))
            _fail(f"no command '{args[0]}'.{hint} See '{ctx.command_path} --help'.")
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
    """Options before the command."""


def build_app() -> typer.Typer:
    """Build the command-line application with every command."""
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
    for name in COMMANDS:
        target = getattr(import_module(f"fgnn.cli.{name}"), name)
        if isinstance(target, typer.Typer):
            for command in target.registered_commands:
                command.help = _paragraphs(command.callback)
            app.add_typer(target, name=name, cls=_Group)
        else:
            app.command(name, help=_paragraphs(target))(target)
    return app


def _paragraphs(command: Any) -> str:
    """Return a command's docstring with one line per paragraph, so that the terminal wraps it."""
    parts = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in parts)


def _fail(message: str, code: int = 2) -> NoReturn:
    print(f"fgnn: {printable(message)}", file=sys.stderr)
    sys.exit(code)


def main() -> None:
    """Run the command line; wrong input ends in one line and exit code 2, never in a traceback."""
    _open_closed_streams()
    # Waiting threads spin for a few microseconds, then sleep. Spinning on, torch's default, triples the time of a step
    # beside another busy process; sleeping at once nearly doubles it on a quiet machine. OpenMP reads this when torch
    # is imported, which no module does before here.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if os.environ.get("FGNN_DEBUG"):
        build_app()()
        return
    _stop_on_sigterm()
    try:
        code = build_app()(prog_name="fgnn", standalone_mode=False)
    except _UsageError as error:
        _fail_usage(error)
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
        message = out_of_memory(error)
        if message is None:
            raise
        _fail(message, 3)
    if code == 130:
        _fail(*(("terminated", 143) if _terminated else ("interrupted", 130)))
    sys.exit(code if isinstance(code, int) else 0)


def _open_closed_streams() -> None:
    """Open what the caller closed (``2>&-``) on the null device.

    Otherwise the next file that is opened takes the number of the closed stream, and messages are written into it.
    """
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


_terminated: list[int] = []


def _stop_on_sigterm() -> None:
    """Treat SIGTERM like Ctrl-C: temporary files are removed, and a solve prints its best so far."""

    def stop(number: int, frame: Any) -> None:
        _terminated.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, stop)
        if sys.unraisablehook is sys.__unraisablehook__:
            sys.unraisablehook = _stop_after_all


def _stop_after_all(ignored: Any) -> None:
    """Send a signal again that came while Python was freeing an object, where it ignores what is raised."""
    if not issubclass(ignored.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(ignored)
        return
    again = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGTERM if _terminated else signal.SIGINT))
    again.daemon = True
    again.start()


def _fail_usage(error: Any) -> NoReturn:
    """Report a missing argument, an unknown option or a malformed value in one line that points to the help."""
    if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command shows its help
        error.show()
        sys.exit(error.exit_code)
    command = error.ctx.command_path if error.ctx is not None else "fgnn"
    message = error.format_message().strip().rstrip(".") + "."
    option = getattr(error, "option_name", None)
    if option is not None:
        known = [o for p in error.ctx.command.params for o in (*p.opts, *p.secondary_opts)] if error.ctx else []
        message = f"no option '{option}'.{did_you_mean(option, [*known, '--help'])}"
    _fail(f"{message} See '{command} --help'.")
