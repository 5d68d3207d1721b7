"""What the plugin knows, as plain data: for `inspect`, and as a file for the processes beside it.

The file is replaced as a whole, so that whoever reads it sees one moment.
"""

import json
import os
from pathlib import Path
from typing import Any, Final

from nodeagent.classes.labels import node_labels
from nodeagent.classes.rulebook import Rulebook
from nodeagent.plugin.inventory import Inventory
from nodeagent.plugin.monitor import Monitor

REPORT_FILE: Final = "inventory.json"
SCHEMA: Final = "gpubank/node-inventory/v1"


def report(inventory: Inventory, monitor: Monitor, rulebook: Rulebook, conflict: str) -> dict[str, Any]:
    """Say everything that is known."""
    book = monitor.book
    return {
        "schema": SCHEMA,
        "rules": rulebook.revision,
        "healthPolicy": book.policy.revision,
        "driver": monitor.snapshot.driver,
        "problems": [problem for problem in (monitor.problem, conflict) if problem],
        "labels": dict(node_labels(inventory.verdicts.values(), rulebook)),
        "gpus": [
            {
                "uuid": gpu.uuid,
                "index": gpu.index,
                "name": gpu.name,
                "memoryMib": gpu.memory_mib,
                "pciBusId": gpu.pci_bus_id,
                "pciDeviceId": gpu.pci_device_id,
                "class": inventory.verdicts[gpu.uuid].device_class if gpu.uuid in inventory.verdicts else "unknown",
                "migEnabled": gpu.mig_enabled,
                "marks": [mark.to_json() for mark in book.against(gpu.uuid)],
                "wrong": book.still_wrong(gpu.uuid),
                "verdict": book.verdict(gpu.uuid),
            }
            for gpu in monitor.snapshot.gpus
        ],
        "resources": {
            offer.resource: [
                {
                    "id": device.id,
                    "uuid": device.uuid,
                    "gpu": device.gpu.uuid,
                    "class": device.offer.device_class,
                    "partition": device.offer.partition,
                    "sharing": str(device.offer.sharing),
                    "unhealthy": book.reason(device.gpu.uuid, device.gi, device.ci),
                }
                for device in devices
            ]
            for offer, devices in inventory.devices.items()
        },
        "withheld": [{"uuid": each.uuid, "gpu": each.gpu, "reason": each.reason} for each in inventory.withheld],
    }


def write_report(folder: Path, body: dict[str, Any]) -> None:
    """Replace the file. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{REPORT_FILE}.new"
    new.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    os.replace(new, folder / REPORT_FILE)
