"""The cells of the matrix: which processes are killed, and where in a recall; and a small choice that covers both.

kills   6 processes alone, and their 15 pairs
spots   every position of every step of a recall (`gpubank.domain.faults.SPOTS`) for who dies alone; for a pair
        one position of every step, another one from pair to pair and from step to step
cell    one kill at one spot
round   one kill, which several recalls live through at once, each held at a spot of its own
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import combinations, pairwise
from typing import Final, NamedTuple

from gpubank.domain.faults import SPOTS, FaultPoint, Spot


class Process(StrEnum):
    """Who may be killed."""

    WORKER = "worker"
    CONTROLLER = "controller"
    TEMPORAL = "temporal"
    API_SERVER = "api-server"
    KUEUE = "kueue"
    POSTGRES = "postgres"


Kill = tuple[Process, ...]
"""Processes that are killed at once, in the order of `Process`."""

KILLS: Final[tuple[Kill, ...]] = (*((process,) for process in Process), *combinations(Process, 2))
"""Everybody alone, then in pairs."""


class Cell(NamedTuple):
    """One crash at one place of a recall."""

    kill: Kill
    spot: Spot

    def __str__(self) -> str:
        return f"{'+'.join(self.kill)}@{self.spot}"

    @classmethod
    def of(cls, text: str) -> "Cell":
        """Read what `str` wrote; raise ValueError where it is no cell."""
        kill, _, spot = text.partition("@")
        return cls(tuple(Process(name) for name in kill.split("+")), Spot.of(spot))


def _spots(number: int, kill: Kill) -> tuple[Spot, ...]:
    if len(kill) == 1:
        return SPOTS
    of_point = [[spot for spot in SPOTS if spot.point is point] for point in FaultPoint]
    return tuple(spots[(number + index) % len(spots)] for index, spots in enumerate(of_point))


CELLS: Final = tuple(Cell(kill, spot) for number, kill in enumerate(KILLS) for spot in _spots(number, kill))


class Round(NamedTuple):
    """One crash, and everywhere it is lived through."""

    kill: Kill
    spots: tuple[Spot, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(Cell(self.kill, spot) for spot in self.spots)


def rounds(cells: Iterable[Cell], lanes: int) -> list[Round]:
    """Put cells of one kill together, at most `lanes` at a time and in the order of a recall.

    Neighbours in a recall are reached at about the same time, so nobody is held for long before the crash.
    """
    by_kill: dict[Kill, set[Spot]] = {}
    for cell in cells:
        by_kill.setdefault(cell.kill, set()).add(cell.spot)
    return [
        Round(kill, part)
        for kill, spots in by_kill.items()
        for part in _parts([spot for spot in SPOTS if spot in spots], lanes)
    ]


def choice(limit: int, kills: Sequence[Kill] = KILLS) -> tuple[Cell, ...]:
    """Choose at most `limit` cells that kill every process at once or another time, and at every point of a recall.

    The fewest kills that have everybody in them, each at a part of the recall of its own; what is left of the limit
    goes to further positions. Raises ValueError where the limit does not reach for every point.
    """
    if limit < len(FaultPoint):
        raise ValueError(f"{limit} cells cannot cover the {len(FaultPoint)} points of a recall")
    covering = _cover(kills)
    # One position of every point, another one from point to point; then more, spread over the recall.
    first = [[s for s in SPOTS if s.point is point][i % 2] for i, point in enumerate(FaultPoint)]
    rest, room = [spot for spot in SPOTS if spot not in first], limit - len(first)
    more = [rest[index * len(rest) // room] for index in range(min(room, len(rest)))]
    chosen = sorted({*first, *more}, key=SPOTS.index)
    share = -(-len(chosen) // len(covering))
    return tuple(Cell(kill, spot) for kill, part in zip(covering, _parts(chosen, share), strict=True) for spot in part)


def _cover(kills: Sequence[Kill]) -> list[Kill]:
    """Take the kill with the most processes that no other has yet, until everybody is in one; the first of equals."""
    left, taken = set(Process), []
    while left:
        best = max(kills, key=lambda kill: len(left & set(kill)))
        if not left & set(best):
            raise ValueError(f"no kill has {', '.join(sorted(left))} in it")
        taken.append(best)
        left -= set(best)
    return taken


def _parts(spots: Sequence[Spot], most: int) -> list[tuple[Spot, ...]]:
    """Cut a list into parts of about the same length, none longer than `most`."""
    count = -(-len(spots) // most)
    size, longer = divmod(len(spots), count)
    ends = [0]
    for index in range(count):
        ends.append(ends[-1] + size + (index < longer))
    return [tuple(spots[begin:end]) for begin, end in pairwise(ends)]
