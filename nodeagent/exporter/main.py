"""The exporter's process: `python -m nodeagent.exporter.main [--config FILE]`."""

import argparse
import ctypes
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

_ARENAS: Final = -8
"""mallopt's M_ARENA_MAX."""


def main() -> None:
    """Run until SIGTERM or SIGINT; exit code 1 says why on standard error."""
    parser = argparse.ArgumentParser(
        prog="gpubank-exporter", description="Metrics of a node's GPUs, and whose they are."
    )
    parser.add_argument("--config", type=Path, help="settings file, or the folder of a mounted ConfigMap")
    parser.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    arguments = parser.parse_args()
    logging.basicConfig(level=arguments.log_level, format="%(asctime)s %(levelname)-7s %(message)s", stream=sys.stderr)
    limit_arenas()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        settings, rulebook = read_apart(arguments.config)
        running = exporter(settings, rulebook)
    except BankError as error:
        sys.stderr.write(f"gpubank-exporter: {error}\n")
        raise SystemExit(1) from error
    running.start()
    log.info("serving on port %d", running.server.port)
    stop.wait()
    running.stop()


def limit_arenas() -> None:
    """Keep glibc from giving every thread a heap of its own, which costs memory and saves nothing here."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(_ARENAS, 1)


if __name__ == "__main__":
    main()
