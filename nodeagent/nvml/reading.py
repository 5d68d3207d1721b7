"""Reading a whole node through a guarded session: what can be read is, what cannot says why."""

from nodeagent.nvml.guard import Guarded
from nodeagent.nvml.port import GpuLostError, NvmlError
from nodeagent.nvml.snapshot import Gpu, NodeSnapshot, Unreadable


def read_node(nvml: Guarded, driver: str = "") -> NodeSnapshot:
    """Enumerate and describe every GPU. Raises NvmlError only if the node cannot even be enumerated."""
    gpus: list[Gpu] = []
    unreadable: list[Unreadable] = []
    for index, found in enumerate(nvml.enumerate()):
        if isinstance(found, Unreadable):
            unreadable.append(found)
            continue
        try:
            gpus.append(nvml.describe(found))
        except NvmlError as error:
            unreadable.append(Unreadable(index, str(error), lost=isinstance(error, GpuLostError)))
    return NodeSnapshot(gpus=tuple(gpus), unreadable=tuple(unreadable), driver=driver)
