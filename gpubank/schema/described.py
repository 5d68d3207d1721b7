"""What a model says of its fields: the docstring below each, read from its source.

pydantic can do the same while it builds a class, but then every process pays for it at every start, in which it is a
third of the time that imports take, and only whoever renders a schema reads them.
"""

import ast
import gc
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from pydantic import BaseModel


@cache
def descriptions(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the description of every field that has one, by the field's name in Python."""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if issubclass(cls, BaseModel) and cls is not BaseModel and not cls.__pydantic_generic_metadata__["origin"]:
            found |= _below(cls)
    return {name: said for name, said in found.items() if said}


def _below(cls: type) -> dict[str, str]:
    """Return the fields of one class body, each with the text below it, or with none."""
    with _uncollected():
        (definition,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    body = definition.body
    return {
        here.target.id: inspect.cleandoc(_text(below))
        for here, below in zip(body, [*body[1:], None], strict=True)
        if isinstance(here, ast.AnnAssign) and isinstance(here.target, ast.Name)
    }


@contextmanager
def _uncollected() -> Iterator[None]:
    """Let no garbage be collected: CPython 3.11 makes no tree while a finalizer makes one of its own (a `SystemError`).

    Printing a traceback makes trees, and a finalizer may do that to warn.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


def _text(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return ""
