"""Writing metrics in Prometheus' text format and in OpenMetrics: escaped, one header per family, no series twice.

Label values come from pods, clusters and drivers: whatever they hold, they cannot end the value, the line or the
family. A series keeps its name in both formats; a counter of NVIDIA's whose name does not end in `_total` is of
unknown type in OpenMetrics, which knows no such counters.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Final

LONGEST_VALUE: Final = 256
"""Characters of the longest label value; the rest is cut off."""

_METRIC: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_UNPRINTABLE: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
_OPEN_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Kind(StrEnum):
    """Type of a family."""

    GAUGE = "gauge"
    COUNTER = "counter"
    INFO = "info"
    """A gauge that is always 1; its name ends in `_info`."""


Labels = str
"""Labels of a series as they are written, in one order only, so that equal labels are equal strings."""


def labels(pairs: Mapping[str, str]) -> Labels:
    """Write labels; one without a value is the same as none, and is left out. Raises ValueError for a bad name."""
    parts = []
    for name in sorted(pairs):
        if not _LABEL.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a label")
        if value := clean(pairs[name]):
            parts.append(f'{name}="{value.translate(_ESCAPES)}"')
    return ",".join(parts)


def clean(value: str) -> str:
    """Make a label value harmless: valid UTF-8, no control characters but newline, not too long."""
    return _UNPRINTABLE.sub("\ufffd", value[:LONGEST_VALUE])


@dataclass(slots=True)
class Family:
    """Series of one name."""

    name: str
    kind: Kind
    help: str
    samples: dict[Labels, float] = field(default_factory=dict)
    refused: int = 0
    """Samples that were there already, or were no number."""

    def __post_init__(self) -> None:
        if not _METRIC.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name of a metric")

    def add(self, series: Labels, value: float) -> None:
        """Add a sample; the first of a series stands, and what is no finite number is left out."""
        if series in self.samples or not isfinite(value):
            self.refused += 1
        else:
            self.samples[series] = value


def text(families: Iterable[Family]) -> str:
    """Write the text format."""
    lines: list[str] = []
    for family in _distinct(families):
        kind = Kind.GAUGE if family.kind is Kind.INFO else family.kind
        lines.append(f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}\n# TYPE {family.name} {kind}\n")
        lines.extend(_lines(family))
    return "".join(lines)


def openmetrics(families: Iterable[Family]) -> str:
    """Write OpenMetrics, without the end mark: more families may follow."""
    lines: list[str] = []
    for family in _distinct(families):
        name, kind = family.name, str(family.kind)
        if family.kind is Kind.COUNTER:
            if name.endswith("_total"):
                name = name.removesuffix("_total")
            else:
                kind = "unknown"
        elif family.kind is Kind.INFO:
            name = name.removesuffix("_info")
        lines.append(f"# HELP {name} {family.help.translate(_OPEN_HELP_ESCAPES)}\n# TYPE {name} {kind}\n")
        lines.extend(_lines(family))
    return "".join(lines)


END: Final = "# EOF\n"
"""Ends an answer in OpenMetrics."""


def _lines(family: Family) -> Iterable[str]:
    name = family.name
    for series, value in family.samples.items():
        yield f"{name}{{{series}}} {_number(value)}\n" if series else f"{name} {_number(value)}\n"


def _distinct(families: Iterable[Family]) -> Iterable[Family]:
    """Yield families that have samples, none of a name twice."""
    seen: set[str] = set()
    for family in families:
        if family.samples and family.name not in seen:
            seen.add(family.name)
            yield family


def _number(value: float) -> str:
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return str(int(value))
    return repr(float(value))
