"""From NVML's records to the facts that a class is decided from."""

from collections.abc import Iterator

from nodeagent.classes.facts import Facts
from nodeagent.nvml.snapshot import Gpu, MigDevice, NodeSnapshot


def facts_of(gpu: Gpu, mig: MigDevice | None = None) -> Facts:
    """Facts of a GPU, or of one MIG device of it: the GPU's own memory then tells the model, the profile the slice."""
    return Facts(
        name=gpu.name,
        memory_mib=gpu.memory_mib,
        compute_capability=gpu.compute_capability,
        pci_device_id=gpu.pci_device_id,
        mig_profile=mig.profile if mig else "",
    )


def facts_of_node(snapshot: NodeSnapshot) -> Iterator[tuple[str, Facts]]:
    """Yield UUID and facts of everything that could be handed out, in order: a GPU in MIG mode yields its slices."""
    for gpu in sorted(snapshot.gpus, key=lambda gpu: gpu.index):
        if gpu.migs:
            for mig in gpu.migs:
                yield mig.uuid, facts_of(gpu, mig)
        else:
            yield gpu.uuid, facts_of(gpu)
