"""A worker of the playground: a process that answers requests under hard limits of memory and time.

A request on standard input is a line of JSON, ``{"path": …, "length": n}``, and n bytes. A reply on standard output is
the same with ``code`` instead of ``path``. A request that takes too long ends the process, which the server replaces.
"""

from __future__ import annotations

import json
import os
import signal
import sys

# Bytes beyond what the process maps after its imports.
MEMORY = 1 << 30
# Wall-clock seconds of one request: the longest solve, and slack for a busy machine.
SECONDS = 25


def main() -> None:
    import torch

    from fgnn.play.reply import answer
    from fgnn.runtime.memory_limit import limit_memory
    from fgnn.solvers import SOLVERS, solver_named

    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is not part of the reply
    torch.set_num_threads(1)
    for method in SOLVERS:
        solver_named(method)
    limit_memory(MEMORY)
    timed = hasattr(signal, "setitimer")
    for line in sys.stdin.buffer:
        request = json.loads(line)
        body = sys.stdin.buffer.read(request["length"])
        if timed:
            signal.setitimer(signal.ITIMER_REAL, SECONDS)  # its signal ends the process, whatever it computes
        code, reply = answer(request["path"], body)
        if timed:
            signal.setitimer(signal.ITIMER_REAL, 0)
        replies.write(json.dumps({"code": code, "length": len(reply)}).encode() + b"\n" + reply)
        replies.flush()


if __name__ == "__main__":
    main()
