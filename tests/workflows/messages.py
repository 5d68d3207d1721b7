"""What builds of the worker send each other, and which fields a message asks for: old builds meet new ones."""

import importlib
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel

import activities
import gpubank.domain
from gpubank.domain.base import Message

BASELINE: Final = Path(__file__).parent / "messages.json"
PACKAGES: Final = (gpubank.domain, activities)


def _all() -> tuple[type[Message], ...]:
    """Return every message of the packages whose models travel."""
    for package in PACKAGES:
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    found: dict[str, type[Message]] = {}
    rest: list[type[Message]] = [Message]
    while rest:
        for each in rest.pop().__subclasses__():
            rest.append(each)
            if each.__module__.startswith(tuple(package.__name__ for package in PACKAGES)):
                found[name(each)] = each
    return tuple(found[key] for key in sorted(found))


def name(message: type[Message]) -> str:
    """Return a message's name in the baseline."""
    return f"{message.__module__.rpartition('.')[2]}.{message.__name__}"


ALL: Final = _all()


def required(messages: tuple[type[Message], ...] = ALL) -> dict[str, list[str]]:
    """Return the fields that each message cannot do without."""
    return {
        name(each): sorted(key for key, field in each.model_fields.items() if field.is_required()) for each in messages
    }


def held_by(message: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield the models that are in a message, however deep."""
    seen: set[type[BaseModel]] = {message}
    rest = [message]
    while rest:
        for field in rest.pop().model_fields.values():
            for inner in _models(field.annotation):
                if inner not in seen:
                    seen.add(inner)
                    rest.append(inner)
                    yield inner


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def write() -> None:
    """Make the messages as they are the baseline."""
    BASELINE.write_text(json.dumps(required(), indent=1, sort_keys=True) + "\n")
