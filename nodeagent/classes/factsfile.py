"""The JSON list of facts that `gpubank nodeagent classify --facts` reads."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from gpubank.domain.errors import InvalidObjectError, PolicyError, Problem
from nodeagent.classes.facts import Facts

_KNOWN: Final = ("name", "memory_mib", "compute_capability", "pci_device_id", "mig_profile")
_REQUIRED: Final = ("name", "memory_mib")
_MOST_MIB: Final = 4_194_304


def read_facts(text: str, source: str) -> tuple[Facts, ...]:
    """Read the list, in order.

    Raises PolicyError for what is no JSON list, and InvalidObjectError, with every problem, for entries that cannot be
    facts: a field that is missing, unknown, or of the wrong type.
    """
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"facts file {source!r} is no JSON: {error}; write a list of objects") from error
    if not isinstance(items, list):
        raise PolicyError(f"facts file {source!r} holds no list; write a list of objects, one per GPU")
    problems: list[Problem] = []
    found = [_facts(item, f"[{index}]", problems) for index, item in enumerate(items)]
    if problems:
        raise InvalidObjectError(f"facts file {source!r}", problems)
    return tuple(found)


def _facts(item: Any, place: str, problems: list[Problem]) -> Facts:
    if not isinstance(item, Mapping):
        problems.append(Problem(place, _shown(item), "must be an object", f"write {', '.join(_KNOWN)}"))
        return Facts("", None)
    for key in item:
        if key not in _KNOWN:
            rule = "is no field that exists here"
            problems.append(Problem(f"{place}.{key}", "", rule, f"remove it; there are {', '.join(_KNOWN)}"))
    problems += [Problem(f"{place}.{key}", "", "is required", "write it") for key in _REQUIRED if item.get(key) is None]
    name, memory = item.get("name"), item.get("memory_mib")
    if name is not None and (not isinstance(name, str) or not name.strip()):
        problems.append(Problem(f"{place}.name", _shown(name), "must be the product's name", "put it in quotes"))
    if memory is not None and not _is_mib(memory):
        rule = f"must be whole MiB from 1 to {_MOST_MIB}"
        problems.append(Problem(f"{place}.memory_mib", _shown(memory), rule, "write digits alone"))
    return Facts(
        name=name if isinstance(name, str) else "",
        memory_mib=memory if _is_mib(memory) else None,
        compute_capability=_capability(item.get("compute_capability"), f"{place}.compute_capability", problems),
        pci_device_id=_pci_id(item.get("pci_device_id"), f"{place}.pci_device_id", problems),
        mig_profile=_text(item.get("mig_profile"), f"{place}.mig_profile", problems),
    )


def _is_mib(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_MIB


def _capability(value: Any, place: str, problems: list[Problem]) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, float | int) and not isinstance(value, bool):
        value = str(value if isinstance(value, float) else f"{value}.0")
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,2}\.[0-9]", value):
        problems.append(Problem(place, _shown(value), "must be a compute capability", "write it as in '9.0'"))
        return ""
    return value


def _pci_id(value: Any, place: str, problems: list[Problem]) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 0xFFFFFFFF:
        return f"0x{value:08x}" if value > 0xFFFF else f"0x{value:04x}"
    return _text(value, place, problems)


def _text(value: Any, place: str, problems: list[Problem]) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        problems.append(Problem(place, _shown(value), "must be text", "put it in quotes"))
        return ""
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:79]}…"
