"""How long decisions take as a pool's loans grow: one step, who is stopped for a demand, and one transaction.

    python -m benchmarks.decide [--loans 1000 10000 100000] [--groups 500] [--repeats 5] [--json FILE]

`step` attributes every running borrow job to its lines and finds nothing to do; the `next step` of the same loop knows
what has not changed since; `recall` chooses victims for own work
of 16 pods; `transaction` applies one offer to the books; `compile` works out which quotas are to be written.
Milliseconds by the clock and of the processor, and the exponent with which the latter grow.
"""

from collections.abc import Callable, Sequence
from typing import Final

from benchmarks.report import Report, arguments, growth_exponent, milliseconds, positive, spread
from benchmarks.worlds import CLUSTER, NOW, POOL, SIZE, Size, World, group_name, with_demand, world
from gpubank.decide.compile import writes
from gpubank.decide.memo import Memo
from gpubank.decide.recall import plan_recall
from gpubank.decide.step import step
from gpubank.domain.loan import WorkloadKey
from gpubank.domain.transaction import Offer, Transaction

VICTIMS: Final = 16
"""Pods of the own work that waits; a lender that has lent less waits for less."""


def decisions(at: World) -> dict[str, Callable[[], object]]:
    """Return what is measured on a world, by name."""
    lent = at.books.lent(group_name(0)) // SIZE
    memo = Memo()
    demanding, demand = with_demand(at, SIZE * min(VICTIMS, lent))
    offer = Transaction(
        key="bench",
        cluster=CLUSTER,
        pool=POOL,
        at=NOW,
        actor="bench",
        offers=(
            Offer(
                lender=group_name(1),
                borrower=group_name(2),
                gpus=1,
                workload=WorkloadKey(uid="new", namespace="n", name="new"),
                term=1,
            ),
        ),
    )
    return {
        "step": lambda: step(at.facts, at.books, at.terms, NOW),
        "next step": lambda: step(at.facts, at.books, at.terms, NOW, memo=memo),
        "recall": lambda: plan_recall(demanding.facts, demanding.books, demanding.terms, demand, now=NOW),
        "transaction": lambda: at.books.applied(offer),
        "compile": lambda: writes(at.books, at.facts),
    }


def measure(loans: Sequence[int], groups: int, repeats: int) -> Report:
    """Measure every decision at every size."""
    report = Report("decisions", ("decision", "loans", "groups", "p50 ms", "p95 ms", "cpu p50 ms"))
    medians: dict[str, list[float]] = {}
    for count in loans:
        at = world(Size(groups=groups, loans=count, own=groups, slack=SIZE))
        for name, decide in decisions(at).items():
            taken = milliseconds(decide, repeats)
            wall, cpu = spread(taken.wall), spread(taken.cpu)
            medians.setdefault(name, []).append(cpu["p50"])
            report.row(name, count, groups, wall["p50"], wall["p95"], cpu["p50"])
            report.figures[f"{name}_{count}_loans_ms"] = wall
            report.figures[f"{name}_{count}_loans_cpu_ms"] = cpu
    if len(loans) > 1:
        for name, values in medians.items():
            exponent = growth_exponent(loans, values)
            report.row(f"{name}: grows as loans^", "", "", "", "", exponent)
            report.figures[f"{name}_growth_exponent"] = exponent
    return report


def main(arguments_: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = arguments("How long decisions take as a pool's loans grow.")
    parser.add_argument("--loans", type=positive, nargs="+", default=[1_000, 10_000, 100_000], help="numbers of loans")
    parser.add_argument("--groups", type=positive, default=500, help="business groups of the pool")
    parser.add_argument("--repeats", type=positive, default=5, help="measurements of each, after one to warm up")
    given = parser.parse_args(arguments_)
    measure(given.loans, given.groups, given.repeats).finish(given.json)


if __name__ == "__main__":
    main()
