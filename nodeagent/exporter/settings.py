"""What the exporter can be told: one strict file, with defaults for a node whose kubelet is where it usually is."""

from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from gpubank.domain.attribution import FIELDS
from gpubank.domain.base import ApiModel, ObjectName, broken, first_twice
from gpubank.domain.refusal import read
from nodeagent.attribution import places
from nodeagent.classes import rules
from nodeagent.classes.rulebook import Rulebook
from nodeagent.classes.text import read_file, read_mapping
from nodeagent.exporter.naming import LEAST_BUDGET
from nodeagent.exporter.quantities import Dialect

Seconds = Annotated[float, Field(gt=0, le=3600)]

SETTINGS_KEY: Final = "exporter.yaml"
"""Key of the settings in a ConfigMap, hence the file's name in a mounted one."""


AttributionField = Literal[
    "business_group",
    "cost_center",
    "owner_id",
    "queue",
    "workload_type",
    "workload_uid",
    "model",
    "model_version",
]
"""Fields that may become labels."""


class Listen(ApiModel):
    """Where it is scraped."""

    address: str = "0.0.0.0"
    """Address to listen on; `::` for IPv6."""

    port: Annotated[int, Field(ge=1, le=65535)] = 9410
    """Port; dcgm-exporter has 9400."""

    certificate: Path | None = None
    """PEM file of the certificate chain; with it scrapes go over TLS."""

    key: Path | None = None
    """PEM file of the certificate's key."""

    client_authorities: Path | None = None
    """PEM file of authorities, one of which must have signed the scraper's certificate; probes need none."""

    users: Path | None = None
    """File of users with hashed passwords; with it `/metrics` asks for basic auth."""

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            missing = "key" if self.key is None else "certificate"
            raise broken("certificate and key go together", "name both, or neither", field=missing)
        if self.client_authorities is not None and self.certificate is None:
            raise broken("needs a certificate of the server", "name certificate and key", field="clientAuthorities")
        return self


class Show(ApiModel):
    """What is shown, and how."""

    measure: Literal["all", "attribution"] = "all"
    """`all`, GPUs and whose they are; `attribution` only whose they are, beside another exporter that measures."""

    dialect: Dialect = Dialect.CLASSIC
    """Names and units: `classic` as dcgm-exporter until 4.8, `dcgm47` as since 4.9."""

    extended: bool = False
    """Also ECC counts, power limits and why clocks are held down."""

    gpm_traffic: bool = False
    """Also GPM's PCIe byte rates; NVIDIA's header says MiB/s, which has not been confirmed on every GPU."""

    pod_info: bool = True
    """Attribution as the series `gpubank_gpu_pod_info`, to be joined."""

    pod_labels: bool = True
    """Attribution as labels of every device's own series."""

    fields: Annotated[tuple[AttributionField, ...], Field(max_length=len(FIELDS))] = get_args(AttributionField)
    """Fields that become labels."""

    label_budget: Annotated[int, Field(ge=LEAST_BUDGET, le=60)] = 30
    """Most labels of one series."""

    @model_validator(mode="after")
    def _fields_each_once(self) -> Self:
        if twice := first_twice(self.fields):
            raise broken("is listed twice", "list each once", field="fields", value=twice)
        return self


class Kubelet(ApiModel):
    """Where the kubelet is asked."""

    pod_resources_socket: Path = places.POD_RESOURCES_SOCKET
    """Socket of the PodResources API."""

    pods_socket: Path = places.PODS_SOCKET
    """Socket of the Pods API, which Kubernetes has on by default since 1.37."""

    checkpoint: Path = places.CHECKPOINT
    """The kubelet's note of devices: a second witness, and the only one where the Pods API is off."""

    use_checkpoint: bool = True
    """Whether that note is read; its format is the kubelet's own affair."""

    timeout: Seconds = 5
    """Seconds that one answer is waited for."""


class Metadata(ApiModel):
    """Whose pods these are: the control plane's snapshot."""

    address: str = ""
    """host:port of the controller; empty uses the copy on the host alone."""

    server_name: str = ""
    """Name in the controller's certificate, where it is not the host of `address`."""

    certificate: Path | None = None
    """PEM file of the node's certificate for mutual TLS."""

    key: Path | None = None
    """PEM file of that certificate's key."""

    authorities: Path | None = None
    """PEM file of the authorities that sign the controller's certificate."""

    public_keys: tuple[Path, ...] = ()
    """PEM files of the Ed25519 keys that may have signed a snapshot; none means that there is no metadata."""

    file: Path = Path("/var/lib/gpubank/exporter/metadata.snapshot")
    """The copy on the host."""

    fresh: Seconds = 300
    """Seconds for which a snapshot may tell a pod's UID from its name, where the kubelet does not."""

    @model_validator(mode="after")
    def _stream_is_whole(self) -> Self:
        if not self.address:
            return self
        for field in ("certificate", "key", "authorities"):
            if getattr(self, field) is None:
                raise broken("is required with an address", "name a PEM file", field=field)
        if not self.public_keys:
            raise broken("is required with an address", "name the controller's public key", field="publicKeys")
        return self


class Timing(ApiModel):
    """How often, and how long, in seconds."""

    collect: Seconds = 10
    """Between two collections."""

    inventory: Seconds = 30
    """Between two looks at which GPUs and MIG devices there are."""

    nvml: Seconds = 5
    """Longest that one GPU is waited for."""

    tombstone: Annotated[float, Field(ge=0, le=3600)] = 120
    """How long the last holder of a device is shown; longer than two scrapes."""

    keep: Seconds = 600
    """How long the last allocations count while the kubelet is silent."""


class ExporterSettings(ApiModel):
    """The whole file."""

    node: ObjectName | None = None
    """The node's name; unset takes $NODE_NAME, which the DaemonSet sets, else the host's name."""

    rules: Path | None = None
    """Rules of the device classes, or a mounted ConfigMap; unset uses the agent's own."""

    holders: Path | None = Path("/var/lib/gpubank/exporter/holders.json")
    """File on the host by which the last holders outlive a restart; null forgets them."""

    listen: Listen = Listen()
    show: Show = Show()
    kubelet: Kubelet = Kubelet()
    metadata: Metadata = Metadata()
    timing: Timing = Timing()


def load(path: Path | None) -> ExporterSettings:
    """Read the settings; without a file everything has its default. Raises PolicyError."""
    if path is None:
        return ExporterSettings()
    file = path / SETTINGS_KEY if path.is_dir() else path
    return read(ExporterSettings, read_mapping(read_file(file, "settings file"), str(file), "settings file"))


def plain(path: Path | None) -> tuple[dict[str, Any], Rulebook]:
    """Read settings and device classes as data that needs neither pydantic nor YAML any more. Raises PolicyError."""
    settings = load(path)
    return settings.model_dump(by_alias=False), rules.load(settings.rules or rules.DEFAULT_RULES)
