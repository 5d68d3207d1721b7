"""What earlier steps found out about objects that have not changed since.

Facts and lines are frozen, and whoever reads them hands the very same object out again while nothing about it has
changed. So an answer that depends on such objects alone holds for as long as they are the same. A step decides the
same with any memo and with none (a property test holds it to that); with one it looks only at what has changed.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")


class Memo:
    """Answers by question, each for the objects of the last time only."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[int, tuple[Any, Any, Any]]] = {}

    def each(self, question: str, pairs: Iterable[tuple[A, B]], answer: Callable[[A, B], T]) -> list[T]:
        """Return the answer for every pair; it is worked out only where one of the two is another object than before.

        No first object may stand there twice. `answer` must depend on the two alone, and on what never changes.
        """
        before = self._kept.get(question, {})
        kept: dict[int, tuple[Any, Any, Any]] = {}
        for pair in pairs:
            one, other = pair
            name = id(one)  # is nobody else's while the object is kept
            known = before.get(name)
            if known is None or known[0] is not one or known[1] is not other:
                known = (one, other, answer(one, other))
            kept[name] = known
        self._kept[question] = kept
        return [known[2] for known in kept.values()]
