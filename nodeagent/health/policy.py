"""The health policy: XIDs, recovery actions and conditions, each with its class. Data with a version, not code."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from gpubank.domain.base import ApiModel, broken, first_twice
from gpubank.domain.refusal import read
from nodeagent.classes.text import read_file, read_mapping
from nodeagent.nvml.snapshot import RecoveryAction

DEFAULT_POLICY: Final = Path(__file__).with_name("policy.yaml")
"""The policy that comes with the agent."""

POLICY_KEY: Final = "health.yaml"
"""Key of the policy in a ConfigMap, hence the file's name in a mounted one."""

MANUAL: Final = "manual"
"""Class of what a person put into quarantine."""


class Symptom(StrEnum):
    """What polling or an event tells about a GPU, beside XIDs and recovery actions."""

    LOST = "lost"
    HUNG = "hung"
    UNREADABLE = "unreadable"
    UNAVAILABLE = "unavailable"
    ECC_EVENT = "ecc-event"
    REMAP_PENDING = "remap-pending"
    REMAP_FAILED = "remap-failed"
    THERMAL = "thermal"


class Recovery(StrEnum):
    """What makes a GPU sound again."""

    LOCALLY = "locally"
    """Quiet, as judged on the node."""

    RELEASE = "release"
    """Somebody says so."""


class FaultClass(ApiModel):
    """What a class of faults means."""

    schedulable: bool
    """Whether new pods may still get the GPU."""

    recovers: Recovery | None = None
    """What makes it sound again; needed where it is not schedulable."""

    @model_validator(mode="after")
    def _a_fault_has_an_end(self) -> Self:
        if self.schedulable == (self.recovers is not None):
            rule = "is said of classes that are not schedulable, and of all of them"
            raise broken(rule, "write recovers: locally or release, or schedulable: true", field="recovers")
        return self


FaultName = Annotated[str, Field(pattern=r"^[a-z][-a-z]{0,31}$")]
Xid = Annotated[int, Field(ge=1, le=65535)]


class XidRule(ApiModel):
    """XIDs of one meaning."""

    action: Annotated[str, Field(pattern=r"^[A-Z][A-Z_]{1,31}$")]
    """What the catalogue asks for, for people and tickets."""

    class_: Annotated[FaultName, Field(alias="class")]
    codes: Annotated[tuple[Xid, ...], Field(min_length=1)]


class OtherXids(ApiModel):
    """Every XID that no rule lists."""

    action: str
    class_: Annotated[FaultName, Field(alias="class")]


class HealthPolicy(ApiModel):
    """The whole file."""

    api_version: Literal["accelerator.aik8s.run/v1"]
    kind: Literal["HealthPolicy"]
    revision: Annotated[str, Field(min_length=1, max_length=64)]
    source: str = ""
    quiet_period_seconds: Annotated[int, Field(ge=0, le=86_400)] = 300
    """How long a transient fault must not have come back."""

    classes: Annotated[Mapping[FaultName, FaultClass], Field(min_length=1)]
    xids: tuple[XidRule, ...]
    other_xids: OtherXids
    recovery_actions: Mapping[str, FaultName]
    conditions: Mapping[str, FaultName]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if twice := first_twice(str(code) for rule in self.xids for code in rule.codes):
            raise broken("an XID has one rule", "list it once", field="xids", value=twice)
        for field, wanted, given in (
            ("recoveryActions", {str(a.name) for a in RecoveryAction} - {"NONE"}, set(self.recovery_actions)),
            ("conditions", set(Symptom), set(self.conditions)),
        ):
            if wanted != given:
                names = ", ".join(sorted(str(name) for name in wanted ^ given))
                raise broken(f"names each of them once; missing or unknown: {names}", "mend the list", field=field)
        used = {
            *(rule.class_ for rule in self.xids),
            self.other_xids.class_,
            *self.recovery_actions.values(),
            *self.conditions.values(),
            MANUAL,
        }
        if missing := sorted(used - set(self.classes)):
            raise broken(f"lacks {', '.join(missing)}", "define every class that is used", field="classes")
        if self.classes[MANUAL].recovers is not Recovery.RELEASE:
            raise broken("what a person takes out, a person puts back", "recovers: release", field=f"classes.{MANUAL}")
        return self


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the policy says about one report."""

    fault: str
    """Class."""

    action: str
    """What to do, for people."""


class Policy:
    """The policy in the form that decisions read."""

    def __init__(self, model: HealthPolicy) -> None:
        self.revision = model.revision
        self.quiet_seconds = model.quiet_period_seconds
        self._classes = dict(model.classes)
        self._xids = {code: Judgement(rule.class_, rule.action) for rule in model.xids for code in rule.codes}
        self._other = Judgement(model.other_xids.class_, model.other_xids.action)
        self._actions = {RecoveryAction[name]: Judgement(fault, name) for name, fault in model.recovery_actions.items()}
        self._conditions = {
            Symptom(name): Judgement(fault, name.upper().replace("-", "_")) for name, fault in model.conditions.items()
        }

    def of_xid(self, code: int) -> Judgement:
        """What an XID means where the driver gives no verdict of its own."""
        return self._xids.get(code, self._other)

    def of_action(self, action: RecoveryAction | None) -> Judgement | None:
        """What the driver's verdict means; None if it has none or asks for nothing."""
        return self._actions.get(action) if action is not None else None

    def of_symptom(self, symptom: Symptom) -> Judgement:
        """What a condition means."""
        return self._conditions[symptom]

    def schedulable(self, fault: str) -> bool:
        """Whether new pods may get a GPU with such a fault; a class of an older policy is taken as the worst."""
        known = self._classes.get(fault)
        return known is not None and known.schedulable

    def recovers_locally(self, fault: str) -> bool:
        """Whether quiet alone makes it sound again."""
        known = self._classes.get(fault)
        return known is not None and known.recovers is Recovery.LOCALLY


def load(path: Path = DEFAULT_POLICY) -> Policy:
    """Read a policy file; a folder is a mounted ConfigMap. Raises PolicyError."""
    file = path / POLICY_KEY if path.is_dir() else path
    return Policy(read(HealthPolicy, read_mapping(read_file(file, "health policy"), str(file), "health policy")))
