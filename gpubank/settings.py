"""One settings model for every process: a flag wins over the environment, the environment over the file, and the file
over the default.

    flag --temporal-address  >  GPUBANK_TEMPORAL__ADDRESS  >  temporal: {address: ...} in the file  >  default

The file is `$GPUBANK_CONFIG`, else `./gpubank.yaml`, else `~/.config/gpubank/config.yaml`.
"""

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, IPvAnyNetwork, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from gpubank.domain.errors import PolicyError
from gpubank.domain.incidentpolicy import IncidentPolicy

CONFIG_VARIABLE = "GPUBANK_CONFIG"
"""Environment variable that names the file."""


def state_home() -> Path:
    """Folder for what the embedded mode keeps, by the XDG rules."""
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "gpubank"


class Mode(StrEnum):
    """How the bank runs."""

    EMBEDDED = "embedded"
    """Everything in one process, on a simulated cluster and SQLite."""

    CLUSTER = "cluster"
    """Worker and controller as processes of their own, on a kubeconfig, a Temporal address and PostgreSQL."""


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ClusterSettings(_Section):
    """The Kubernetes cluster."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")] = "local"
    """Name in workflow ids, task queues and the ledger; never change it while loans are open."""

    kubeconfig: Path | None = None
    """Kubeconfig file; unset means $KUBECONFIG, then ~/.kube/config, then the pod's own service account."""

    context: str | None = None
    """Context of the kubeconfig; unset means its current one."""


class TemporalSettings(_Section):
    """The Temporal server."""

    address: str = "127.0.0.1:7233"
    """host:port of the frontend."""

    namespace: str = "default"
    """Temporal namespace of the bank's workflows."""

    ui_url: str = ""
    """Where people open Temporal's UI; shown in output, never called."""

    api_key: SecretStr | None = None
    """API key, for servers that ask for one."""

    tls: bool = False
    """Use TLS; implied by client_cert and api_key."""

    server_ca: Path | None = None
    """PEM file of the authorities to trust instead of the system's."""

    client_cert: Path | None = None
    """PEM file of the client certificate (mTLS)."""

    client_key: Path | None = None
    """PEM file of the client certificate's key."""

    def tls_parts(self) -> dict[str, Any] | None:
        """What Temporal's TLSConfig is made of, read from its files; None where TLS is not used."""
        if not (self.tls or self.client_cert or self.server_ca or self.api_key):
            return None
        return {
            "server_root_ca_cert": self.server_ca.read_bytes() if self.server_ca else None,
            "client_cert": self.client_cert.read_bytes() if self.client_cert else None,
            "client_private_key": self.client_key.read_bytes() if self.client_key else None,
        }


class LedgerSettings(_Section):
    """The ledger's database."""

    url: SecretStr | None = None
    """SQLAlchemy URL; unset means SQLite in the state folder, which only the embedded mode may use."""


class CheckpointSettings(_Section):
    """Where the bank may call to ask for checkpoints, and what it believes."""

    allowed_networks: tuple[str, ...] = ()
    """CIDRs beside the target pod's own address; empty allows nothing else. The embedded mode adds loopback."""

    request_timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 5.0
    """Longest time for one HTTP call to a hook."""

    hash_files: bool = True
    """Whether every file's SHA-256 is checked, not only its size."""


class ControllerSettings(_Section):
    """The controller's loop."""

    resync_seconds: Annotated[float, Field(gt=0, le=600)] = 15.0
    """Longest time between two looks at a pool in which nothing seems to change."""

    namespace: str = "gpubank-system"
    """Namespace of the controller's leader Lease."""

    lease_seconds: Annotated[float, Field(ge=3, le=120)] = 15.0
    """How long a leader that has died keeps others from leading; client-go's default. All replicas need the same."""


class KueueSettings(_Section):
    """Where worker and controller read how long Kueue's admission cycles last, which every change of a quota waits for.

    Two addresses are one too many: name Kueue's own, or a Prometheus that scrapes it. With neither, or until the first
    reading, cycles are assumed to last `assumed_cycle_seconds`.
    """

    metrics_url: str = ""
    """Kueue's own metrics, as in https://kueue-controller-manager-metrics-service.kueue-system.svc:8443/metrics."""

    prometheus_url: str = ""
    """A Prometheus that scrapes Kueue, as in http://prometheus.monitoring.svc:9090."""

    authorities: Path | None = None
    """PEM file of the authorities to trust there instead of the system's."""

    token: Path | None = None
    """File with the bearer token to show there, read anew every time; over https alone."""

    read_seconds: Annotated[float, Field(gt=0, le=600)] = 30.0
    """Time between two readings."""

    assumed_cycle_seconds: Annotated[float, Field(ge=0, le=60)] = 0.125
    """Assumed 99th percentile of admission cycles; a change of a quota waits for twice that, and at least 250 ms."""

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        if self.metrics_url and self.prometheus_url:
            raise ValueError("metrics_url and prometheus_url are both set; unset one")
        return self


class WorkerSettings(_Section):
    """The worker's memory, and its place among others of other versions; see docs/how-to/upgrade.md."""

    cached_workflows: Annotated[int, Field(ge=10, le=100_000)] = 500
    """Workflows kept in memory, about 100 kB each; the rest are replayed when needed, which most Loans seldom are."""

    deployment: Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$")] = ""
    """Name of a Temporal Worker Deployment, one for all workers of a namespace; empty means unversioned.

    A versioned worker is given nothing until its build is made current, and is not ready until then.
    """

    build_id: Annotated[str, Field(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")] = ""
    """Build of this worker; empty means the program's version, which is the image's tag."""


class WatchdogSettings(_Section):
    """The watchdog, which hands a pool to the scheduler when the bank is dead."""

    poll_seconds: Annotated[float, Field(gt=0, le=60)] = 5.0
    """Time between two looks at every heartbeat."""


class ObservabilitySettings(_Section):
    """Where controller, worker and watchdog answer to scrapes and probes."""

    address: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 or :: where others scrape."""

    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of /metrics, /healthz and /readyz; 0 serves nothing."""


class FaultSettings(_Section):
    """For crash tests of the bank itself; production leaves it alone."""

    folder: Path | None = None
    """Folder with gates at which a test holds worker and controller at named points of a recall; unset: no gates."""


class MetadataSettings(_Section):
    """Where the controller tells nodes whose pods they run; needs gpubank's extra `nodeagent`."""

    address: str = ""
    """host:port to serve nodes on, as in 0.0.0.0:9413; empty serves nothing."""

    certificate: Path | None = None
    """PEM file of the server's certificate."""

    key: Path | None = None
    """PEM file of the certificate's key."""

    client_authorities: Path | None = None
    """PEM file of the authorities that sign the nodes' certificates."""

    signing_key: Path | None = None
    """PEM file of the Ed25519 key that signs snapshots."""

    shared_client_name: str = ""
    """Name in a certificate that all nodes share; empty asks each node for a certificate with its own name."""

    trust_verified_fields: bool = False
    """Whether admission, and nobody else, writes the annotation that marks a pod's fields as verified."""


class WebhookSettings(_Section):
    """Where incidents are reported to whoever repairs; CloudEvents 1.0 over HTTP."""

    url: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = ""
    """Address that takes the events; empty reports nowhere."""

    secret: SecretStr | None = None
    """Key of the HMAC-SHA256 signature; needed with a url."""

    allowed_networks: tuple[IPvAnyNetwork, ...] = ()
    """CIDRs that the address must lie in; empty allows all but loopback, link-local, reserved and metadata addresses.

    A wide one opens neither loopback nor link-local addresses, and none opens clouds' metadata addresses.
    """

    timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 10.0
    """Longest time for one event to be taken."""


class IncidentSettings(_Section):
    """Incidents of GPUs."""

    policy: IncidentPolicy = IncidentPolicy()
    """Which faults cost what; see docs/how-to/gpu-incidents.md."""

    webhook: WebhookSettings = WebhookSettings()


class Settings(BaseSettings):
    """Everything that a process of the bank can be told."""

    model_config = SettingsConfigDict(
        env_prefix="GPUBANK_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        nested_model_default_partial_update=True,
    )

    mode: Mode = Mode.EMBEDDED
    """embedded, or cluster."""

    state_dir: Path = Field(default_factory=state_home)
    """Folder for the embedded mode's database, socket and logs."""

    cluster: ClusterSettings = ClusterSettings()
    temporal: TemporalSettings = TemporalSettings()
    ledger: LedgerSettings = LedgerSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    controller: ControllerSettings = ControllerSettings()
    kueue: KueueSettings = KueueSettings()
    worker: WorkerSettings = WorkerSettings()
    watchdog: WatchdogSettings = WatchdogSettings()
    observability: ObservabilitySettings = ObservabilitySettings()
    incidents: IncidentSettings = IncidentSettings()
    metadata: MetadataSettings = MetadataSettings()
    faults: FaultSettings = FaultSettings()
    log_level: Annotated[str, Field(pattern=r"^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""

    log_format: LogFormat = LogFormat.TEXT
    """text for people, json for machines."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment, then the file."""
        return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=_read_file(config_file()))

    @classmethod
    def load(cls, flags: Mapping[str, Any] | None = None) -> Self:
        """Read settings; `flags` are dotted names (`temporal.address`), of which None is "not given".

        Raises `PolicyError` that names the setting, what stands there and what is asked.
        """
        nested: dict[str, Any] = {}
        for name, value in (flags or {}).items():
            if value is None:
                continue
            *path, leaf = name.split(".")
            section = nested
            for part in path:
                section = section.setdefault(part, {})
            section[leaf] = value
        try:
            return cls(**nested)
        except ValidationError as error:
            raise PolicyError("; ".join(_sentence(dict(item)) for item in error.errors())) from error

    @property
    def socket(self) -> Path:
        """Unix socket on which the embedded mode answers the CLI."""
        return self.state_dir / "gpubank.sock"

    @property
    def database_url(self) -> str:
        """URL of the ledger, with its password."""
        if self.ledger.url is not None:
            return self.ledger.url.get_secret_value()
        if self.mode is Mode.CLUSTER:
            raise PolicyError(
                "ledger.url is not set: cluster mode needs a PostgreSQL; set GPUBANK_LEDGER__URL to"
                " postgresql+psycopg://user:password@host/database"
            )
        return f"sqlite+aiosqlite:///{self.state_dir / 'ledger.db'}"

    def public(self) -> dict[str, Any]:
        """The effective settings as plain data, without any secret."""
        data = self.model_dump(mode="json")
        if self.ledger.url is not None:
            data["ledger"]["url"] = _without_password(self.ledger.url.get_secret_value())
        return data


def config_file() -> Path | None:
    """The file that settings are read from, or None where there is none."""
    if named := os.environ.get(CONFIG_VARIABLE):
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME")
    places = (Path("gpubank.yaml"), (Path(home) if home else Path.home() / ".config") / "gpubank" / "config.yaml")
    return next((place for place in places if place.is_file()), None)


def _read_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise PolicyError(
            f"settings file {str(path)!r} cannot be read: {error.strerror}; mend it or unset it"
        ) from error
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" in line {where.line + 1}" if where else ""
        raise PolicyError(f"settings file {str(path)!r} is not YAML{line}; mend it") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise PolicyError(f"settings file {str(path)!r} is a {type(data).__name__}; write `name: value` lines")
    return data


def _sentence(error: dict[str, Any]) -> str:
    """One refused setting, for a person."""
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"setting {name!r} is unknown; `gpubank config show` lists what there is"
    return f"setting {name!r} is {error['input']!r}: {error['msg'].lower()}; mend the flag, GPUBANK_ variable or file"


def _without_password(url: str) -> str:
    from sqlalchemy.engine import make_url  # half of this module's import time, and only `config show` needs it
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return "***"
