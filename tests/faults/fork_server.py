"""A fork server: a process that imports everything once and forks for each command, hundreds of times a minute.

Each child runs `fgnn` with the given arguments, or one of `writers` after the word ``write``, under a fault that
occurs at an exact point:

``{"kind": "none"}``
``{"kind": "limit", "bytes": n, "die": true}``
    the kernel kills the child at byte n of any file, during a write; with ``die`` false, the write fails
``{"kind": "event", "at": k, "die": true}``
    the child is killed before its k-th open, chmod, rename or removal of a file; with ``die`` false, that call fails
``{"kind": "memory", "bytes": n}``
    the child can map n more bytes
``{"kind": "device", "at": k}``
    the k-th training step runs out of device memory
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


class ForkServer:
    """The client: starts children and waits for them."""

    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        environment.pop("FGNN_DEBUG", None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        self._receive()  # wait until it is ready

    def start(self, arguments: list[str], folder: Path, fault: dict[str, Any] | None = None) -> int:
        """Start a command in a folder and return the child's pid; its output goes to files there."""
        self._send({"arguments": arguments, "folder": str(folder), "fault": fault or {"kind": "none"}})
        return int(self._receive()["pid"])

    def wait(self) -> int:
        """The exit status of the child, or the negated signal that ended it."""
        return int(self._receive()["status"])

    def run(self, arguments: list[str], folder: Path, fault: dict[str, Any] | None = None) -> int:
        self.start(arguments, folder, fault)
        return self.wait()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()

    def _send(self, value: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the fork server has exited"
        reply: dict[str, Any] = json.loads(line)
        return reply


def main() -> None:
    """The server: read requests, fork, report the status."""
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
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _child(request)
        print(json.dumps({"pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        print(json.dumps({"status": code}), flush=True)


def _child(request: dict[str, Any]) -> None:
    from fgnn.cli import main as command_line
    from fgnn.runtime.resource_errors import out_of_disk
    from tests.faults import writers

    os.chdir(request["folder"])
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(file, descriptor)
    sys.argv = ["fgnn", *request["arguments"]]
    code: object = 1
    try:
        _arm(request["fault"])
        if request["arguments"][0] == "write":
            writers.main(request["arguments"][1])
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
    """Lift the file size limit, so that the message can be written."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def _arm(fault: dict[str, Any]) -> None:
    if fault["kind"] == "limit":
        # Python ignores SIGXFSZ; its default action kills the process during the write
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if fault["die"] else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault["bytes"], most))
    elif fault["kind"] == "event":
        sys.addaudithook(_FileFault(fault["at"], fault["die"]))
    elif fault["kind"] == "memory":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + fault["bytes"]
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    elif fault["kind"] == "device":
        _exhaust_device(fault["at"])


class _FileFault:
    """Audit hook that counts file operations and fails at the k-th one."""

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
            return  # cleaning up temporary files never fails
        self.left -= 1
        if self.left == 0:
            if self.die:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _exhaust_device(at: int) -> None:
    import torch

    original, calls = torch.autograd.backward, 0

    def fail(*arguments: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total ...")
        original(*arguments, **options)

    torch.autograd.backward = fail


if __name__ == "__main__":
    main()
