"""Reading manifests as users write them: YAML or JSON, many documents in a file, with the line of each.

YAML is read as Kubernetes reads it: a timestamp stays text, a key twice is an error, a `List` stands for its items.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from gpubank.domain.errors import PolicyError

_MERGE: Final = "tag:yaml.org,2002:merge"


class UnreadableError(PolicyError):
    """A file is no YAML, or holds something that is no object."""


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a file."""

    source: str
    """File that it stands in."""

    line: int
    """Line where it begins, from 1."""

    body: dict[str, Any]


class _Loader(yaml.SafeLoader):
    """YAML 1.1 without what surprises: no timestamps, no sexagesimal numbers, no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping whose keys are text and stand there once."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            where = key_node.start_mark
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is no text; put it in quotes", where
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands here twice; remove one", where
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


# Timestamps stay text, as they do on their way to the API server; of numbers only plain decimals are read, so that
# an octal 010 or a sexagesimal 1:30 is refused rather than taken for 8 or 90.
_INTEGER: Final = "tag:yaml.org,2002:int"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag not in ("tag:yaml.org,2002:timestamp", _INTEGER)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INTEGER, re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789"))


def read_documents(text: str, source: str) -> Iterator[Document]:
    """Yield the objects of a file, those of a List one by one; documents that are empty are skipped.

    Raises UnreadableError, which names file, line and what is wrong.
    """
    try:
        loader = _Loader(text)
        try:
            while loader.check_node():
                node = loader.get_node()
                assert node is not None
                line = node.start_mark.line + 1
                body = loader.construct_document(node)
                if body is not None:
                    yield from _objects(body, source, line)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise UnreadableError(f"{where}: {error.problem or error.context or 'is no YAML'}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise UnreadableError(f"{source}: is no YAML: {str(error).splitlines()[0]}") from error


def _objects(body: Any, source: str, line: int) -> Iterator[Document]:
    if not isinstance(body, dict):
        found = "a list" if isinstance(body, list) else f"the value {_short(body)}"
        raise UnreadableError(
            f"{source}:{line}: here stands {found}, not an object; write apiVersion, kind, metadata, spec"
        )
    try:
        json.dumps(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnreadableError(f"{source}:{line}: is not expressible as JSON ({error}); write plain values") from error
    if body.get("kind") == "List" and isinstance(body.get("items"), list):
        for item in body["items"]:
            yield from _objects(item, source, line)
    else:
        yield Document(source, line, body)


def _short(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:39]}…"
