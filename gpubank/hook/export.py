"""The hook as one file: its modules one after the other, imports of each other left out, other imports on top."""

from __future__ import annotations

import ast
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FILE_NAME = "gpubank_hook.py"
_PACKAGE = "gpubank.hook"
_MODULES = ("protocol", "store", "desk", "responder", "training", "command")
"""In the order of their imports of each other."""

_HEAD = '''"""The checkpoint hook of gpubank {version} in one file: standard library only, Python 3.9 and newer.

Written by `gpubank hook export`; export again instead of editing. In a training script:

    from gpubank_hook import Hook

On the command line: `python {name} checkpoint --help`, `python {name} relay --help`.
"""

# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

{imports}

__all__ = ["Answer", "Checkpoint", "Hook", "Request", "RequestRefusedError", "Save"]
'''
_TAIL = '\n\nif __name__ == "__main__":\n    sys.exit(main())\n'


def single_file() -> str:
    """Return the hook as the source of one module.

    Raises ValueError if two of its modules give different things the same name.
    """
    imports: set[str] = set()
    owners: dict[str, str] = {}
    bodies = []
    for module in _MODULES:
        source = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
        body, needed = _split(source)
        for name in _defined(source):
            if owners.setdefault(name, module) != module:
                raise ValueError(f"{name!r} is defined by {owners[name]} and by {module}; one file has room for one")
        imports |= needed
        bodies.append(f"\n\n# --- {module} ---\n\n{body}")
    head = _HEAD.format(version=_version(), name=FILE_NAME, imports="\n".join(sorted(imports)))
    return head + "".join(bodies) + _TAIL


def _split(source: str) -> tuple[str, set[str]]:
    """Return the source without docstring and imports, and the imports from outside the package."""
    lines = source.splitlines()
    needed: set[str] = set()
    for position, node in enumerate(ast.parse(source).body):
        is_docstring = position == 0 and isinstance(node, ast.Expr)
        if is_docstring or isinstance(node, (ast.Import, ast.ImportFrom)):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
            if isinstance(node, ast.Import):
                needed.update(f"import {ast.unparse(alias)}" for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not f"{node.module}".startswith((_PACKAGE, "__future__")):
                needed.update(f"from {node.module} import {ast.unparse(alias)}" for alias in node.names)
    return "\n".join(lines).strip() + "\n", needed


def _defined(source: str) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def _version() -> str:
    try:
        return version("gpubank")
    except PackageNotFoundError:
        return "(unknown version)"
