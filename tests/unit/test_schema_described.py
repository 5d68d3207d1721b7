import ast
import gc
from typing import ClassVar

from gpubank.domain.base import ApiModel
from gpubank.domain.pool import GPUPool
from gpubank.schema.described import descriptions


class Plain(ApiModel):
    size: int
    """GPUs that
    it has."""

    name: str
    """What it is called."""

    bare: int = 0


class Special(Plain):
    name: str = "special"
    price: int = 1
    """What it costs."""


def test_a_field_is_described_by_the_docstring_below_it() -> None:
    assert descriptions(Plain) == {"size": "GPUs that\nit has.", "name": "What it is called."}


def test_a_field_keeps_its_words_in_a_subclass_until_it_is_declared_anew() -> None:
    assert descriptions(Special) == {"size": "GPUs that\nit has.", "price": "What it costs."}


class Late:
    """Garbage in a cycle whose finalizer makes a tree, as one does that warns with a traceback."""

    made: ClassVar[list[ast.Module]] = []

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        self.made.append(ast.parse("a + b"))


def test_garbage_that_is_collected_meanwhile_does_no_harm() -> None:
    before = gc.get_threshold()
    try:
        for threshold in range(1, 200, 7):
            Late()
            gc.set_threshold(threshold)
            assert descriptions.__wrapped__(GPUPool)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert Late.made
