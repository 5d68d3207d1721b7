"""Mutation score: of small wrong changes to domain and decisions, how many does a test notice?

    python -m benchmarks.mutation [--module gpubank/decide/lend.py ...] [--sample 200] [--seed 1] [--properties]
                                  [--tests tests/unit/decide ...] [--json FILE]

The tests are collected and run once, to learn which functions each of them enters. Then every sampled mutant is tried
in a forked process: the code of the one function is put in the place of the old one, and the tests that enter it run,
quick ones first, until one fails. Survivors are listed. A mutant that a module's import would notice, in a constant or
a default, is not tried: only code inside functions is changed. A mutant that takes ten times as much of the processor
as the tests did, counts as noticed.

Without `--properties` only examples run: what they notice does not depend on what hypothesis draws.
"""

import ast
import copy
import functools
import gc
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Final

import pytest

from benchmarks import report

ROOT: Final = Path(__file__).resolve().parent.parent
TESTS: Final = ("tests/unit/domain", "tests/unit/decide", "tests/unit/attack")
CORE: Final = (
    *(f"gpubank/decide/{name}.py" for name in (
        "compile", "cuts", "demand", "incident", "lease", "lend", "limits", "offers", "recall", "repay", "slack",
        "step", "use", "victims",
    )),
    *(f"gpubank/domain/{name}.py" for name in ("books", "bookkeeper", "lease", "loan", "policy")),
)  # fmt: skip
"""Where a wrong line costs somebody GPUs."""

SWAPPED: Final[dict[type, type]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
CALLED: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
UNREACHED: Final = "reached by no test"
CPU_ALLOWANCE: Final = 10
"""Times what the tests took, plus as many seconds, before a mutant counts as one that never ends."""


@dataclass(frozen=True)
class Mutant:
    """One wrong change."""

    path: str
    line: int
    function: str
    first_line: int
    """Of the outermost function; tells apart functions of one name."""

    module: ast.Module = field(repr=False, compare=False)
    node: ast.AST = field(repr=False, compare=False)
    change: ast.AST = field(repr=False, compare=False)

    def tree(self) -> ast.Module:
        """Return the module with the change in it."""
        memo: dict[int, Any] = {id(self.node): self.change}  # deepcopy puts the change where the node stood
        return ast.fix_missing_locations(copy.deepcopy(self.module, memo))

    def __str__(self) -> str:
        was, becomes = (ast.unparse(each).splitlines()[0] for each in (self.node, self.change))
        return f"{self.path}:{self.line} {self.function}: {was}  →  {becomes}"


# ---- the changes


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """Yield every mutant of a module, in the order of its lines."""
    module = ast.parse(source)
    for function, qualified in _functions(module, ""):
        first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
        for statement in function.body:
            for node in ast.walk(statement):
                for change in _changes(node):
                    line = getattr(node, "lineno", statement.lineno)
                    yield Mutant(path, line, qualified, first, module, node, change)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child, prefix + child.name
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=ops):
            for index, operator in enumerate(ops):
                if type(operator) in SWAPPED:
                    changed = copy.copy(node)
                    changed.ops = [*ops[:index], SWAPPED[type(operator)](), *ops[index + 1 :]]
                    yield changed
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPPED:
            yield _with(node, op=SWAPPED[type(op)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Compare):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.comprehension(ifs=ifs):
            for index in range(len(ifs)):
                yield _with(node, ifs=ifs[:index] + ifs[index + 1 :])
        case ast.Constant(value=bool(value)):
            yield ast.copy_location(ast.Constant(not value), node)
        case ast.Constant(value=int(value)):
            yield ast.copy_location(ast.Constant(value + 1), node)
        case ast.Call(func=ast.Name(id=name)) if name in CALLED:
            yield _with(node, func=ast.Name(CALLED[name], ast.Load()))
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield _with(node, value=ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            yield ast.copy_location(ast.Pass(), node)


def _with(node: ast.AST, **parts: Any) -> ast.AST:
    changed = copy.copy(node)
    for name, part in parts.items():
        setattr(changed, name, part)
    return changed


# ---- trying them


Place = tuple[str, str, int]
"""File, qualified name, first line of a function."""


def _place(code: CodeType) -> Place:
    return code.co_filename, code.co_qualname, code.co_firstlineno


class Trial:
    """A pytest plugin: learn which test enters what, then try every mutant."""

    def __init__(self, mutants: Sequence[Mutant], out: Any) -> None:
        self._mutants = mutants
        self._out = out
        self._failed = False
        self.outcomes: list[tuple[Mutant, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember a failure."""
        self._failed = self._failed or report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Take the place of the ordinary run."""
        entered, seconds = self._learn(session.items)
        self._say(f"{len(session.items)} tests took {sum(seconds.values()):.0f} s of the processor")
        for number, mutant in enumerate(self._mutants, 1):
            place = (str(ROOT / mutant.path), mutant.function, mutant.first_line)
            items = sorted(
                (item for item in session.items if place in entered.get(item.nodeid, ())),
                key=lambda item: (seconds[item.nodeid], item.nodeid),
            )
            limit = CPU_ALLOWANCE * (1 + sum(seconds[item.nodeid] for item in items))
            outcome = self._try(mutant, place, items, int(limit)) if items else UNREACHED
            self.outcomes.append((mutant, outcome))
            if outcome != "killed":
                self._say(f"[{number}/{len(self._mutants)}] {outcome}: {mutant}")
        return True

    def _say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def _learn(self, items: Sequence[pytest.Item]) -> tuple[dict[str, set[Place]], dict[str, float]]:
        entered: dict[str, set[Place]] = {}
        seconds: dict[str, float] = {}
        codes: set[CodeType] = set()
        core = tuple(str(ROOT / folder) for folder in ("gpubank/domain", "gpubank/decide"))

        def enter(frame: FrameType, event: str, _: object) -> None:
            if event == "call":
                codes.add(frame.f_code)

        for item in items:
            codes.clear()
            self._failed = False
            began = time.process_time()
            sys.setprofile(enter)
            try:
                self._run(item)
            finally:
                sys.setprofile(None)
            seconds[item.nodeid] = time.process_time() - began
            if self._failed:
                self._say(f"left out, for it fails as it is: {item.nodeid}")
            else:
                entered[item.nodeid] = {_place(code) for code in codes if code.co_filename.startswith(core)}
        return entered, seconds

    def _run(self, item: pytest.Item) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)

    def _try(self, mutant: Mutant, place: Place, items: Sequence[pytest.Item], cpu_seconds: int) -> str:
        """Fork, change the function, run the tests until one fails."""
        child = os.fork()
        if child == 0:
            noticed = True
            try:
                resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
                if not _put_in_place(mutant, place):
                    os._exit(3)
                self._failed = False
                for item in items:
                    self._run(item)
                    if self._failed:
                        break
                noticed = self._failed
            finally:
                os._exit(1 if noticed else 0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return "never ends" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "killed"
        return {0: "survived", 3: "cannot be put in place"}.get(os.WEXITSTATUS(status), "killed")


def _put_in_place(mutant: Mutant, place: Place) -> bool:
    code = next(code for code in _codes(compile(mutant.tree(), place[0], "exec")) if _place(code) == place)
    functions = [f for f in gc.get_objects() if isinstance(f, FunctionType) and _place(f.__code__) == place]
    for function in functions:
        function.__code__ = code
    for cached in gc.get_objects():
        if isinstance(cached, functools._lru_cache_wrapper) and cached.__module__.startswith("gpubank"):
            cached.cache_clear()
    return bool(functions)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def main(argv: Sequence[str] | None = None) -> None:
    """Sample, try, and say what survived."""
    parser = report.arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--module", nargs="+", default=list(CORE), metavar="FILE", help="what is changed")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), metavar="PATH", help="what should notice")
    parser.add_argument("--sample", type=report.positive, default=200, help="mutants that are tried")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--properties", action="store_true", help="run the property tests, too; slow")
    options = parser.parse_args(argv)
    every = [mutant for path in options.module for mutant in mutants_of(path, (ROOT / path).read_text())]
    chosen = random.Random(options.seed).sample(every, min(options.sample, len(every)))
    trial = Trial(sorted(chosen, key=lambda mutant: (mutant.path, mutant.line)), os.fdopen(os.dup(1), "w"))
    examples = [] if options.properties else ["-m", "not hypothesis"]
    quiet = ["-q", "--no-header", "--no-summary", "-p", "no:cacheprovider", "--timeout=0"]
    with open(os.devnull, "w") as nowhere:
        own, sys.stdout = sys.stdout, nowhere
        pytest.main([*options.tests, *examples, *quiet, f"--hypothesis-seed={options.seed}"], plugins=[trial])
        sys.stdout = own
    counted = Counter(outcome for _, outcome in trial.outcomes)
    noticed, survived, missed = counted["killed"] + counted["never ends"], counted["survived"], counted[UNREACHED]
    score = round(100 * noticed / max(noticed + survived + missed, 1), 1)
    table = report.Report("mutation score", ("mutants", "of", "noticed", "survived", "unreached", "score %"))
    table.row(len(chosen), len(every), noticed, survived, missed, score)
    table.figures = {"mutants": len(chosen), "of": len(every), "score_percent": score, **counted}
    table.finish(options.json)


if __name__ == "__main__":
    main()
