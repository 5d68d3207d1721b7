"""What tests of `gpubank doctor` say about checks."""

from typing import Any

from gpubank.cli.checks.finding import Check, Level


def said(checks: list[Check]) -> list[tuple[str, str, str]]:
    return [(check.level.value, check.area, check.message) for check in checks]


def bad(checks: list[Check]) -> list[Check]:
    return [check for check in checks if check.level is not Level.OK]


# ---- the command


def pool(**conditions: str) -> dict[str, Any]:
    said = {"reason": "Because", "message": "so it is"}
    found = [{"type": name, "status": status, **said} for name, status in conditions.items()]
    return {"metadata": {"name": "h100"}, "spec": {}, "status": {"conditions": found}}
