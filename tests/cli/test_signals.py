"""Signals stop a command wherever it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys, time, weakref
from fgnn import cli

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell ignores in the background
cli._stop_on_sigterm()

class Thing:
    pass

def freed(reference):
    os.kill(os.getpid(), int(sys.argv[1]))
    time.sleep(0.01)

try:
    thing = Thing()
    reference = weakref.ref(thing, freed)
    del thing
    time.sleep(20)
    print("went on")
except KeyboardInterrupt:
    print("stopped")
"""


@pytest.mark.parametrize("number", [2, 15])
def test_a_signal_that_comes_while_an_object_is_freed_stops_the_command(number: int) -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT, str(number)], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("stopped\n", "")


def test_other_exceptions_that_python_ignores_are_shown() -> None:
    script = SCRIPT.replace("os.kill(os.getpid(), int(sys.argv[1]))", "raise ValueError('here')").replace("20", "0")
    run = subprocess.run([sys.executable, "-c", script, "2"], capture_output=True, text=True, check=True)
    assert run.stdout == "went on\n"
    assert "ValueError: here" in run.stderr
