from pathlib import Path

import httpx2
import pytest

from tests.support import restricted

pytestmark=[pytest.mark.asyncio(loop_scope="session")]
async def test_x(lab_bank):
    async with httpx2.AsyncClient(trust_env=False) as http:
        for p in ("worker","controller"):
            t=(await http.get(f"http://127.0.0.1:{restricted.port(lab_bank.processes,p)}/metrics")).text
            Path(f"/tmp/scrape-{p}.txt").write_text(t)
    calls=list(restricted.calls(lab_bank.lab))
    Path("/tmp/calls.txt").write_text("\n".join(map(str,calls)))
    made=set(calls)
    Path("/tmp/used.txt").write_text("\n".join(sorted({f"{c.process} {c.verb} {c.resource} {c.group} {c.code}" for c in made})))
    assert not [c for c in made if c.code==403]
