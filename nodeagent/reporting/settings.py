"""What the reporter can be told: one strict file."""

from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, SecretStr

from gpubank.domain.base import ApiModel, ObjectName
from gpubank.domain.refusal import read
from gpubank.settings import TemporalSettings
from nodeagent.attribution import places
from nodeagent.classes.text import read_file, read_mapping

Seconds = Annotated[float, Field(gt=0, le=3600)]

SETTINGS_KEY: Final = "reporter.yaml"
"""Key of the settings in a ConfigMap, hence the file's name in a mounted one."""


class TemporalAddress(ApiModel):
    """The Temporal server, as the bank's own settings name it."""

    address: str = "127.0.0.1:7233"
    namespace: str = "default"
    api_key_file: Path | None = None
    """File with the API key, for servers that ask for one."""

    tls: bool = False
    server_ca: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None

    def settings(self) -> TemporalSettings:
        """Return them as the bank's other processes have them. Raises PolicyError."""
        key = read_file(self.api_key_file, "API key").strip() if self.api_key_file is not None else None
        given: dict[str, Any] = self.model_dump(by_alias=False, exclude={"api_key_file"})
        return TemporalSettings(**given, api_key=SecretStr(key) if key is not None else None)


class ReporterSettings(ApiModel):
    """The whole file."""

    cluster: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")] = "local"
    """Name of the cluster, the same as in the bank's settings."""

    node: ObjectName | None = None
    """The node's name; unset takes $NODE_NAME, which the DaemonSet sets, else the host's name."""

    temporal: TemporalAddress = TemporalAddress()

    plugin_directory: Path = Path("/var/lib/gpubank/nodeagent")
    """The device plugin's state folder, for its control socket."""

    spool_directory: Path = Path("/var/lib/gpubank/reporter")
    """Folder on the host for what has not been delivered yet."""

    pod_resources_socket: Path = places.POD_RESOURCES_SOCKET
    """Socket of the kubelet's PodResources API."""

    look: Seconds = 2
    """Between two looks at what is held against the GPUs."""

    burst: Seconds = 180
    """Silence after which the same fault is told again; as NVIDIA's Fleet Intelligence groups XIDs."""

    most_waiting: Annotated[int, Field(ge=10, le=100_000)] = 1000
    """Undelivered reports on disk beyond which repeated ones are left out; a new fault is always kept."""


def load(path: Path | None) -> ReporterSettings:
    """Read the settings; without a file everything has its default. Raises PolicyError."""
    if path is None:
        return ReporterSettings()
    file = path / SETTINGS_KEY if path.is_dir() else path
    return read(ReporterSettings, read_mapping(read_file(file, "settings file"), str(file), "settings file"))
