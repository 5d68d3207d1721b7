"""What a change of workflow code must not do silently: add, drop or reorder commands of histories that still run.

A fingerprint is taken of every function under `workflows/` that leads to a command: the calls that do, in order, with
the loops and conditions around them. Texts, names of variables and what only computes do not count. A function whose
fingerprint has changed is guarded by a new `workflow.patched(...)`, and a history of it is recorded anew.
"""

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
BASELINE: Final = Path(__file__).parent / "fingerprints.json"

COMMANDS: Final = frozenset(
    {
        "execute_activity_method",
        "execute_local_activity_method",
        "start_activity_method",
        "start_local_activity_method",
        "execute_child_workflow",
        "start_child_workflow",
        "continue_as_new",
        "sleep",
        "wait_condition",
        "upsert_search_attributes",
        "upsert_memo",
        "patched",
        "uuid4",
        "random",
        "signal",
        "cancel",
        "create_task",
    }
)
"""Calls that write to a history, or decide in which order others do."""

CALLBACKS: Final = frozenset({"_changed"})
"""Attributes that hold such a call."""

BLOCKS = ast.If | ast.While | ast.For | ast.AsyncFor | ast.Try | ast.With | ast.AsyncWith


class Fingerprint(NamedTuple):
    """One function's."""

    digest: str
    patches: tuple[str, ...]
    """Ids of the patches that guard it."""


def current() -> dict[str, Fingerprint]:
    """Take the fingerprints of the code as it is."""
    functions = dict(_functions(sorted((ROOT / "workflows").glob("*.py"))))
    leading = _leading(functions.values())
    found = {}
    for name, function in functions.items():
        outline = _outline(function.body, leading)
        if outline:
            digest = hashlib.sha256(json.dumps(outline).encode()).hexdigest()[:16]
            found[name] = Fingerprint(digest, tuple(sorted(_patches(function))))
    return found


def baseline() -> dict[str, Fingerprint]:
    """Return the fingerprints that histories were last recorded with."""
    rows = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    return {name: Fingerprint(row["digest"], tuple(row["patches"])) for name, row in rows.items()}


def write(prints: dict[str, Fingerprint]) -> None:
    """Make these the baseline."""
    rows = {name: {"digest": p.digest, "patches": list(p.patches)} for name, p in sorted(prints.items())}
    BASELINE.write_text(json.dumps(rows, indent=1) + "\n")


def changed(before: dict[str, Fingerprint], after: dict[str, Fingerprint]) -> list[str]:
    """Return the functions whose commands have changed, or that have come or gone."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def unversioned(before: dict[str, Fingerprint], after: dict[str, Fingerprint]) -> list[str]:
    """Return those of them that no new patch guards, in a code base that histories may be running on."""
    return [] if _ids(after) - _ids(before) else changed(before, after)


def _ids(prints: dict[str, Fingerprint]) -> set[str]:
    return {patch for each in prints.values() for patch in each.patches}


def _functions(files: Iterable[Path]) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for file in files:
        tree = ast.parse(file.read_text())
        owners: list[ast.Module | ast.ClassDef] = [tree, *(n for n in tree.body if isinstance(n, ast.ClassDef))]
        for owner in owners:
            prefix = f"{file.stem}." + (f"{owner.name}." if isinstance(owner, ast.ClassDef) else "")
            for node in owner.body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield prefix + node.name, node


def _leading(functions: Iterable[ast.FunctionDef | ast.AsyncFunctionDef]) -> frozenset[str]:
    """Return the names of everything that leads to a command, however far down."""
    calls: dict[str, set[str]] = {}
    for function in functions:  # by bare name, so methods that share one are taken together
        calls.setdefault(function.name, set()).update(_called(function))
    leading = COMMANDS | CALLBACKS
    while more := {name for name, called in calls.items() if called & leading} - leading:
        leading |= more
    return leading


def _called(node: ast.AST) -> set[str]:
    return {_name(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _outline(body: Sequence[ast.stmt], leading: frozenset[str]) -> list[object]:
    """Return the commands of a block in order; blocks without any are left out, and with them what leaves them."""
    outline: list[object] = []
    for statement in body:
        if isinstance(statement, BLOCKS):
            outline += _block(statement, leading)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            outline += _calls(statement, leading)
            if isinstance(statement, ast.Return | ast.Raise | ast.Break | ast.Continue):
                outline.append(type(statement).__name__)
    return outline if any(not isinstance(part, str) or part not in _EXITS for part in outline) else []


_EXITS: Final = frozenset({"Return", "Raise", "Break", "Continue"})


def _block(statement: BLOCKS, leading: frozenset[str]) -> list[object]:
    head: list[object] = [type(statement).__name__]
    if isinstance(statement, ast.If | ast.While):
        head.append(ast.unparse(statement.test))
    elif isinstance(statement, ast.For | ast.AsyncFor):
        head.append(ast.unparse(statement.iter))
    inner = [_outline(getattr(statement, part, []), leading) for part in ("body", "orelse", "finalbody")]
    if isinstance(statement, ast.Try):
        inner += [_outline(handler.body, leading) for handler in statement.handlers]
    leaves = any(isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue) for node in ast.walk(statement))
    heads = [node for part in ("test", "iter") if (node := getattr(statement, part, None)) is not None]
    calls = [call for node in heads for call in _calls(node, leading)]
    if isinstance(statement, ast.If) and leaves and not any(inner):
        inner = [["leaves"]]  # a condition that ends the function early decides on every command after it
    return [[*head, calls, inner]] if any(inner) or calls else []


def _calls(node: ast.AST, leading: frozenset[str]) -> list[object]:
    """Return the calls of an expression that lead to commands, innermost first, with what they call in turn."""
    calls: list[object] = []
    for child in ast.iter_child_nodes(node):
        calls += _calls(child, leading)
    if isinstance(node, ast.Call) and (name := _name(node.func)) in leading:
        about = [ast.unparse(arg) for arg in node.args[:1] if isinstance(arg, ast.Attribute) and arg.attr != "state"]
        calls.append([name, *about])
    return calls


def _patches(function: ast.AST) -> Iterator[str]:
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and _name(call.func) == "patched" and isinstance(call.args[0], ast.Constant):
            yield str(call.args[0].value)
