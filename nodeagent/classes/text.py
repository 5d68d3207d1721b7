"""Reading YAML strictly: one document, text keys, no key twice; small enough for a process that stays resident."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from gpubank.domain.errors import PolicyError

LARGEST: Final = 1024 * 1024
"""Bytes of the largest file that is read: what a ConfigMap can hold."""


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str) or key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is no text or stands there twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def read_file(path: Path, what: str) -> str:
    """Return the text of a file. Raises PolicyError that names `what` it should have been."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise PolicyError(f"{what} {str(path)!r} cannot be read: {error.strerror}; name a file that can") from error
    if len(raw) > LARGEST:
        raise PolicyError(f"{what} {str(path)!r} has {len(raw)} bytes; the most is {LARGEST}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PolicyError(f"{what} {str(path)!r} is no text in UTF-8; save it so") from error


def read_mapping(text: str, source: str, what: str) -> Mapping[str, Any]:
    """Read one YAML or JSON object. Raises PolicyError that names source and line."""
    try:
        body = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" in line {mark.line + 1}" if mark else ""
        raise PolicyError(f"{what} {source!r} is no YAML{line}: {error.problem or error.context}; mend it") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        first = (str(error).splitlines() or ["unreadable"])[0]
        raise PolicyError(f"{what} {source!r} is no YAML: {first}; mend it") from error
    if not isinstance(body, dict):
        raise PolicyError(f"{what} {source!r} holds no object; write `name: value` lines")
    return body
