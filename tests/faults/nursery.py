"""A process that imports everything once and then bears a child for each command: hundreds of runs in a minute.

Each child runs `fgnn` with the arguments given, or one of `writers` after the word ``write``, under a fault that
strikes at an exact place:

``{"kind": "none"}``
``{"kind": "limit", "bytes": n, "die": true}``
    the kernel kills it at byte n of any file, in the middle of a write; else that write fails, as on a full disk
``{"kind": "event", "at": k, "die": true}``
    it is killed just before its k-th open, chmod, rename or removal of a file, else that one fails: no room
``{"kind": "memory", "bytes": n}``
    it may map n bytes more than it has
``{"kind": "device", "at": k}``
    the k-th training step finds the device's memory exhausted
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_WATCHED = ("tempfile.mkstemp", "os.chmod", "os.rename", "os.remove", "open")


class Nursery:
    """Our end: starts children and waits for them."""

    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        environment.pop("FGNN_DEBUG", None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        self._hear()  # it is ready

    def start(self, arguments: list[str], folder: Path, fault: dict[str, Any] | None = None) -> int:
        """Begin a command in a folder and return the child's process number; its output goes to files there."""
        told = {"arguments": arguments, "folder": str(folder), "fault": fault or {"kind": "none"}}
        self._say(told)
        return int(self._hear()["pid"])

    def wait(self) -> int:
        """The exit status of the child that was started, the negated signal where one ended it."""
        return int(self._hear()["status"])

    def run(self, arguments: list[str], folder: Path, fault: dict[str, Any] | None = None) -> int:
        self.start(arguments, folder, fault)
        return self.wait()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()

    def _say(self, value: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the nursery is gone"
        heard: dict[str, Any] = json.loads(line)
        return heard


def main() -> None:
    """The other end: reads orders, forks, reports."""
    import matplotlib.backends.backend_agg  # noqa: F401
    import scipy.optimize
    import scipy.sparse  # noqa: F401
    import torch

    import tests.faults.writers  # noqa: F401
    from fgnn.cli import build_app

    build_app()
    torch.set_num_threads(1)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _child(order)
        print(json.dumps({"pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        print(json.dumps({"status": code}), flush=True)


def _child(order: dict[str, Any]) -> None:
    from fgnn.cli import main as command_line
    from fgnn.runtime.resource_errors import out_of_disk
    from tests.faults import writers

    os.chdir(order["folder"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for name, place in (("stdout", 1), ("stderr", 2)):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(file, place)
    sys.argv = ["fgnn", *order["arguments"]]
    code: object = 1
    try:
        _arm(order["fault"])
        if order["arguments"][0] == "write":
            writers.main(order["arguments"][1])
        else:
            command_line()
        code = 0
    except SystemExit as end:
        code = end.code
    except OSError as error:
        _lift()
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        code = 3 if out_of_disk(error) else 2
    except BaseException:
        import traceback

        _lift()
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0)


def _lift() -> None:
    """Make room again, for the message."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def _arm(fault: dict[str, Any]) -> None:
    if fault["kind"] == "limit":
        # Python ignores the signal of a file grown too large; by default it kills in the middle of the write
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if fault["die"] else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault["bytes"], most))
    elif fault["kind"] == "event":
        sys.addaudithook(_Strike(fault["at"], fault["die"]))
    elif fault["kind"] == "memory":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + fault["bytes"]
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    elif fault["kind"] == "device":
        _exhaust_device(fault["at"])


class _Strike:
    """Counts what is done to files that will be read by others, and strikes at one."""

    def __init__(self, at: int, die: bool) -> None:
        self.left, self.die = at, die

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _WATCHED:
            return
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            if not writes or str(path).startswith(("/dev/", "/proc/")):
                return
        if event == "os.remove" and str(arguments[0]).endswith(".part"):
            return  # our own tidying up, for which there is always room
        self.left -= 1
        if self.left == 0:
            if self.die:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _exhaust_device(at: int) -> None:
    import torch

    true, calls = torch.autograd.backward, 0

    def fail(*arguments: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total ...")
        true(*arguments, **options)

    torch.autograd.backward = fail


if __name__ == "__main__":
    main()
