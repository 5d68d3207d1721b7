"""The quotas are a function of the books: nothing else is remembered, and drift is repaired by recomputing."""

from gpubank.domain.books import Books
from gpubank.domain.contract import Side

Queue = tuple[str, Side]
"""A queue: its group, and which of the two it is."""


def nominals(books: Books) -> dict[Queue, int]:
    """Return the quota of every queue of the pool, in GPUs.

    * `own`: the guarantee in force, less what is being given up, what is lent (from OFFERED until RETURNED) and what
      is pledged to a demand;
    * `borrow`: the lines GRANTED to the group.

    Nothing is clamped: the books cannot hold what would make a quota negative (`Books.applied` refuses it).
    """
    quotas: dict[Queue, int] = {}
    for group in books.groups:
        quotas[group, Side.OWN] = books.own_nominal(group)
        quotas[group, Side.BORROW] = books.granted(group)
    return quotas
