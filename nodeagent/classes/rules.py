"""The rules file: strict models, and their way into a `Rulebook`.

    apiVersion: accelerator.aik8s.run/v1
    kind: DeviceClassRules
    revision: "2026-11-30"
    quarantine: {resource: false}
    classes: [{name: h100-80gb, model: h100, products: [...], memoryMib: {min, max}, ...}]

A mistake is refused with the field, the value, the rule and the remedy; there is no half-read file.
"""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from gpubank.domain.base import ApiModel, LabelValue, broken, first_twice
from gpubank.domain.device import CLASS_PATTERN, FULL, PARTITION_PATTERN, RESOURCE_PREFIX, UNKNOWN_CLASS, Sharing
from gpubank.domain.errors import PolicyError
from gpubank.domain.refusal import read
from nodeagent.classes.facts import normalised, split_mig
from nodeagent.classes.rulebook import DeviceClass, Rulebook
from nodeagent.classes.text import read_file, read_mapping

API_VERSION: Final = f"{RESOURCE_PREFIX}/v1"
"""Version of the format; another one is refused."""

DEFAULT_RULES: Final = Path(__file__).with_name("rules.yaml")
"""The rules that come with the agent."""

RULES_KEY: Final = "rules.yaml"
"""Key of the rules in a ConfigMap, hence the file's name in a mounted one."""


class MemoryBand(ApiModel):
    """Total memory that NVML may report for one GPU of the class, in MiB, both ends included."""

    min: Annotated[int, Field(ge=256, le=4_194_304)]
    """Least; ECC and the driver take part of the nominal memory."""

    max: Annotated[int, Field(ge=256, le=4_194_304)]
    """Most."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise broken("must be at least min", "raise max", field="max", value=self.max)
        return self


class ClassRule(ApiModel):
    """One class."""

    name: Annotated[str, Field(pattern=CLASS_PATTERN, max_length=40)]
    """Name of the class, hence of its resource."""

    model: LabelValue
    """Value of the node label and flavor field `model`."""

    products: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=128)], ...], Field(min_length=1)]
    """Exact product names as NVML writes them; case, dashes, trade marks and the maker's prefix do not matter."""

    memory_mib: MemoryBand
    """Band of the reported memory."""

    memory_gib: Annotated[int, Field(ge=1, le=4096)]
    """Nominal memory, for labels."""

    compute_capability: Annotated[str, Field(pattern=r"^([0-9]{1,2}\.[0-9])?$")] = ""
    """As in `9.0`; empty accepts any."""

    partitions: Annotated[tuple[Annotated[str, Field(pattern=PARTITION_PATTERN)], ...], Field(min_length=1)] = (FULL,)
    """Partitions that are published: `full`, and MIG profiles as in `mig-1g.10gb`."""

    sharing: Annotated[tuple[Sharing, ...], Field(min_length=1)] = (Sharing.EXCLUSIVE,)
    """Kinds of sharing that are published."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.name == UNKNOWN_CLASS:
            raise broken(f"{UNKNOWN_CLASS!r} is the quarantine", "name the class otherwise", field="name")
        for field, values in (("partitions", self.partitions), ("sharing", self.sharing)):
            if twice := first_twice(values):
                raise broken("is listed twice", "list each once", field=field, value=twice)
        for product in self.products:
            if not normalised(product) or split_mig(normalised(product))[1]:
                raise broken("must name a GPU, not a MIG device", "name the GPU", field="products", value=product)
        # A MIG profile's name carries the longest part of a resource, which Kubernetes limits to 63 characters.
        longest = max(len(partition) for partition in self.partitions)
        if len(self.name) + longest + len("..shared") > 63:
            raise broken("makes a resource name of more than 63 characters", "shorten it", field="name")
        return self


class Quarantine(ApiModel):
    """What becomes of GPUs that no class names."""

    resource: bool = False
    """Publish them as `accelerator.aik8s.run/unknown`, for administrators to test; nobody has quota for it."""


class DeviceClassRules(ApiModel):
    """The whole file."""

    api_version: Literal["accelerator.aik8s.run/v1"]
    kind: Literal["DeviceClassRules"]
    revision: Annotated[str, Field(pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.+]*$", max_length=64)]
    """Names this state of the rules."""

    quarantine: Quarantine = Quarantine()
    classes: Annotated[tuple[ClassRule, ...], Field(min_length=1, max_length=512)]

    @model_validator(mode="after")
    def _no_product_is_in_two_classes(self) -> Self:
        if twice := first_twice(rule.name for rule in self.classes):
            raise broken("names a class twice", "merge the two", field="classes", value=twice)
        holders: dict[str, list[ClassRule]] = {}
        for rule in self.classes:
            for product in rule.products:
                holders.setdefault(normalised(product), []).append(rule)
        for product, rules in holders.items():
            rules.sort(key=lambda rule: (rule.memory_mib.min, rule.name))
            for low, high in pairwise(rules):
                if low.memory_mib.max >= high.memory_mib.min:
                    raise broken(
                        f"product {product!r} is in {low.name!r} and {high.name!r}, whose memory bands overlap",
                        "list it once, or part the bands",
                        field="classes",
                    )
        return self

    def rulebook(self) -> Rulebook:
        """Return the rules in the form that decisions read."""
        return Rulebook(
            revision=self.revision,
            quarantine_resource=self.quarantine.resource,
            classes=tuple(
                DeviceClass(
                    name=rule.name,
                    model=rule.model,
                    products=rule.products,
                    memory_min_mib=rule.memory_mib.min,
                    memory_max_mib=rule.memory_mib.max,
                    memory_gib=rule.memory_gib,
                    compute_capability=rule.compute_capability,
                    partitions=rule.partitions,
                    sharing=rule.sharing,
                )
                for rule in self.classes
            ),
        )


def load(path: Path = DEFAULT_RULES) -> Rulebook:
    """Read a rules file; a folder is a mounted ConfigMap, of which `rules.yaml` is read.

    Raises PolicyError (InvalidObjectError for what breaks a rule).
    """
    file = path / RULES_KEY if path.is_dir() else path
    return parse(read_file(file, "rules file"), str(file))


def parse(text: str, source: str = RULES_KEY) -> Rulebook:
    """Read rules from text; a whole ConfigMap is accepted as well as what stands under its key."""
    body = read_mapping(text, source, "rules file")
    if body.get("kind") == "ConfigMap":
        data = body.get("data")
        inner = data.get(RULES_KEY) if isinstance(data, dict) else None
        if not isinstance(inner, str):
            raise PolicyError(
                f"rules file {source!r} is a ConfigMap without data['{RULES_KEY}']; write the rules there"
            )
        body = read_mapping(inner, f"{source}[{RULES_KEY}]", "rules file")
    return read(DeviceClassRules, body).rulebook()


def as_configmap(text: str) -> str:
    """Write rules as the ConfigMap that the agent mounts."""
    head = f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: gpubank-device-classes\ndata:\n  {RULES_KEY}: |\n"
    return head + "".join(f"    {line}".rstrip() + "\n" for line in text.splitlines())
