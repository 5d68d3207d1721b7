"""The end of a short-lived process."""

import contextlib
import os
import sys
from typing import NoReturn


def clean_exit(code: int) -> NoReturn:
    """Write out what is buffered and end at once, without Python's own shutdown.

    Temporal's SDK runs a native runtime whose threads may outlive the interpreter's state; a client that ends in the
    ordinary way can crash after its work is done, and with a wrong exit code. Only a command line may end so: nothing
    but its output is left to be saved.
    """
    for stream in (sys.stdout, sys.stderr):
        # A reader that is gone cannot be told anything.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
