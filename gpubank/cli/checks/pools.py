"""Pools: what the bank itself says about them."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpubank.cli.checks.finding import Check, fail, ok, warn


def pool_checks(pools: Iterable[Mapping[str, Any]], place: str) -> list[Check]:
    """Judge pools by their conditions."""
    checks, names = [], []
    for pool in pools:
        name = pool["metadata"]["name"]
        names.append(name)
        conditions = {each["type"]: each for each in (pool.get("status") or {}).get("conditions") or ()}
        ready = conditions.get("Ready")
        if ready is None:
            checks.append(fail("pools", f"pool {name!r} has not been judged yet", "see that the controller runs"))
        elif ready["status"] != "True":
            checks.append(fail("pools", f"pool {name!r} is not ready ({ready['reason']}): {ready.get('message', '')}"))
        for kind in ("FailSafe", "Oversubscribed", "Shrunk", "Frozen"):
            condition = conditions.get(kind)
            if condition is not None and condition["status"] == "True":
                checks.append(warn("pools", f"pool {name!r} is {kind}: {condition.get('message', '')}"))
    if not names:
        return [warn("pools", f"{place} has no pool", "`gpubank apply -f` takes pools, groups and policies")]
    return checks or [ok("pools", f"{place} has {', '.join(sorted(names))}; every pool is ready")]
