"""Which cores a process runs on (Linux), for benchmarks that keep two sides from taking each other's time."""

import os
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Split(NamedTuple):
    """The cores of this machine, as two sides have them."""

    many: frozenset[int]
    """All but one."""

    one: frozenset[int]


def split() -> Split:
    """Give one core to one side, and the others to the other; raises `ValueError` where there is only one."""
    *many, one = sorted(os.sched_getaffinity(0))
    if not many:
        raise ValueError("this process may run on one core only; two sides need two")
    return Split(frozenset(many), frozenset({one}))


def pin(pid: int, cores: frozenset[int]) -> None:
    """Have every thread of a process run on these cores, and whatever it begins from now on."""
    for task in (PROC / str(pid) / "task").iterdir():
        try:
            os.sched_setaffinity(int(task.name), cores)
        except ProcessLookupError:
            continue  # a thread that has ended meanwhile
