"""What the same rules say elsewhere: labels of metrics, labels of nodes, the flavor of a GPUPool."""

from collections import Counter
from collections.abc import Iterable, Mapping

from gpubank.domain.device import CLASS_LABEL, COUNT_LABEL_PREFIX, MEMORY_LABEL, RESOURCE_PREFIX, Sharing
from nodeagent.classes.classify import Verdict
from nodeagent.classes.rulebook import VENDOR, DeviceClass, Rulebook


def exporter_labels(verdict: Verdict, rulebook: Rulebook, sharing: Sharing = Sharing.EXCLUSIVE) -> Mapping[str, str]:
    """Labels of a device's metrics; a GPU in quarantine has class `unknown` and no model."""
    found = rulebook.by_name.get(verdict.device_class)
    return {
        "accelerator_class": verdict.device_class,
        "accelerator_model": found.model if found else "",
        "accelerator_partition": verdict.partition,
        "accelerator_sharing": str(sharing),
    }


def flavor_labels(device_class: DeviceClass) -> Mapping[str, str]:
    """Vendor and model for the flavor of a GPUPool over this class; fabric and lifecycle are the platform's to say."""
    return {"vendor": VENDOR, "model": device_class.model}


def node_labels(verdicts: Iterable[Verdict], rulebook: Rulebook) -> Mapping[str, str]:
    """Labels of the node that holds these whole GPUs (one verdict each).

    How many of each class there are is always said; vendor, model, class and memory only where all GPUs agree, for a
    label that is true of half a node would place a job on the wrong half.
    """
    counts = Counter(verdict.device_class for verdict in verdicts)
    labels = {f"{COUNT_LABEL_PREFIX}/{name}": str(count) for name, count in sorted(counts.items())}
    if counts:
        labels[f"{RESOURCE_PREFIX}/vendor"] = VENDOR
    known = [rulebook.by_name.get(name) for name in counts]
    if not known or any(found is None for found in known):
        return labels
    classes = [found for found in known if found is not None]
    if len({found.model for found in classes}) == 1:
        labels[f"{RESOURCE_PREFIX}/model"] = classes[0].model
    if len(classes) == 1:
        labels[CLASS_LABEL] = classes[0].name
        labels[MEMORY_LABEL] = str(classes[0].memory_gib)
    return labels
