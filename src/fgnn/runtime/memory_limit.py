"""A hard limit on the memory that this process may map."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

resource: ModuleType | None
try:
    import resource
except ImportError:  # not a POSIX system
    resource = None


def limit_memory(more: int) -> bool:
    """Let the process map at most ``more`` bytes beyond what it has now; False where the system has no such limit."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return False
    if resource is None:
        return False
    most = pages * resource.getpagesize() + more
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return True
