"""dcgm-exporter as it answers a scrape: its series of three GPUs, one of them in MIG mode, served over HTTP.

Written by hand after its releases before 4.9: labels and units are its own, it maps pods by itself where it knows the
resource, and on a GPU in MIG mode it repeats what is of the GPU on every instance (NVIDIA/dcgm-exporter issue 257).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

WATTS: Final = 400.0
"""Power of every GPU."""
MILLIJOULES: Final = 987_654_321
"""Energy of every GPU."""


def entity(gpu: int, uuid: str, *, gi: int | None = None, pod: str = "") -> str:
    """Return the labels of one entity as dcgm-exporter writes them."""
    labels = {
        "gpu": str(gpu),
        "UUID": uuid,
        "pci_bus_id": f"00000000:{0x18 + gpu:02X}:00.0",
        "device": f"nvidia{gpu}",
        "modelName": "NVIDIA H100 80GB HBM3",
    }
    if gi is not None:
        labels |= {"GPU_I_PROFILE": "1g.10gb", "GPU_I_ID": str(gi)}
    labels |= {"Hostname": "gpu-0", "DCGM_FI_DRIVER_VERSION": "580.95.05"}
    if pod:
        labels |= {"container": "main", "namespace": "team-0", "pod": pod}
    return ",".join(f'{name}="{value}"' for name, value in labels.items())


def page(entities: list[str]) -> str:
    """Return the answer to a scrape."""
    families = (
        ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", WATTS),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy (in mJ).", MILLIJOULES),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time the graphics engine is active.", 0.5),
    )
    lines = []
    for name, kind, meaning, value in families:
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{{{labels}}} {value}" for labels in entities]
    return "\n".join([*lines, ""])


@contextmanager
def serving(text: str) -> Iterator[int]:
    """Serve it at a port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *said: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
