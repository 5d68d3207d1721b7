"""What builds of the worker send each other, and which fields a message asks for: old builds meet new ones.

A message is whatever stands in the signature of a workflow, of its signals, updates and queries, or of an activity,
and every model in it.
"""

import inspect
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

from pydantic import BaseModel
from temporalio import activity, workflow

from activities import interfaces
from workers.wiring import WORKFLOWS

BASELINE: Final = Path(__file__).parent / "messages.json"


def _signatures() -> Iterator[Any]:
    """Yield every type that is sent."""
    for each in WORKFLOWS:
        definition = workflow._Definition.must_from_class(each)
        yield from (*(definition.arg_types or ()), definition.ret_type)
        for signal in definition.signals.values():
            yield from signal.arg_types or ()
        for update in definition.updates.values():
            yield from (*(update.arg_types or ()), update.ret_type)
        for query in definition.queries.values():
            yield from (*(query.arg_types or ()), query.ret_type)
    for _, protocol in inspect.getmembers(interfaces, inspect.isclass):
        for method in vars(protocol).values():
            if callable(method) and activity._Definition.from_callable(method) is not None:
                yield from get_type_hints(method).values()


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _with_parts(annotations: Iterable[Any]) -> tuple[type[BaseModel], ...]:
    found: dict[str, type[BaseModel]] = {}
    rest = list(annotations)
    while rest:
        for model in _models(rest.pop()):
            if name(model) not in found:
                found[name(model)] = model
                model.model_rebuild()  # else a part that is declared below it may still be only a name
                rest += [field.annotation for field in model.model_fields.values()]
    return tuple(found[key] for key in sorted(found))


def name(message: type[BaseModel]) -> str:
    """Return a message's name in the baseline."""
    return f"{message.__module__.rpartition('.')[2]}.{message.__name__}"


ALL: Final = _with_parts(_signatures())


def required() -> dict[str, list[str]]:
    """Return the fields that each message cannot do without."""
    return {name(each): sorted(key for key, field in each.model_fields.items() if field.is_required()) for each in ALL}


def write() -> None:
    """Make the messages as they are the baseline."""
    BASELINE.write_text(json.dumps(required(), indent=1, sort_keys=True) + "\n")
