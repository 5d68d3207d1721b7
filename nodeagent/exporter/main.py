"""The exporter's process: `python -m nodeagent.exporter [--config FILE]`."""

import argparse
import ctypes
import gc
import logging
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpubank.domain.errors import BankError
from nodeagent.exporter.apart import read_apart
from nodeagent.exporter.wiring import exporter

log = logging.getLogger(__name__)

_THRESHOLD: Final = 64 * 1024
_MALLOC: Final = ((-8, 1), (-3, _THRESHOLD), (-1, _THRESHOLD), (-2, 0))
"""mallopt's M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD."""


def main() -> None:
    """Run until SIGTERM or SIGINT; exit code 1 says why on standard error."""
    parser = argparse.ArgumentParser(
        prog="gpubank-exporter", description="Metrics of a node's GPUs, and whose they are."
    )
    parser.add_argument("--config", type=Path, help="settings file, or the folder of a mounted ConfigMap")
    parser.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    arguments = parser.parse_args()
    logging.basicConfig(level=arguments.log_level, format="%(asctime)s %(levelname)-7s %(message)s", stream=sys.stderr)
    tune_malloc()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        settings, rulebook = read_apart(arguments.config)
        running = exporter(settings, rulebook)
    except BankError as error:
        sys.stderr.write(f"gpubank-exporter: {error}\n")
        raise SystemExit(1) from error
    give_back()  # what only the start needed
    running.start()
    log.info("serving on port %d", running.server.port)
    stop.wait()
    running.stop()


def tune_malloc() -> None:
    """Have glibc give back what is freed.

    By itself it gives every thread a heap of its own, and once a page of metrics was freed it takes the next one from
    the heap, where small things that live longer come to lie between the pages: memory then grows for hours.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        for option, value in _MALLOC:
            libc.mallopt(option, value)


def give_back() -> None:
    """Give free memory back to the system."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
