"""The spool: what was seen outlives the process, and goes only when it was delivered."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nodeagent.reporting.edges import Look, look
from nodeagent.reporting.spool import MEMORY_FILE, Spool


def seen(spool: Spool, *causes: str, at: float = 100.0, last: float | None = None) -> Look:
    marks: list[dict[str, Any]] = [
        {"cause": c, "fault": "reset", "action": "", "first_at": at, "last_at": last or at, "count": 1} for c in causes
    ]
    inspected = {"gpus": [{"uuid": "GPU-1", "marks": marks}]}
    return look(inspected, spool.memory(), node="n1", boot_id="", burst=180)


def test_what_waits_is_there_after_a_restart_in_the_order_of_its_beginning(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    assert spool.take(seen(spool, "xid 119", at=200.0)) == 1
    assert spool.take(seen(spool, "xid 119", "lost", at=200.0)) == 1
    again = Spool(tmp_path)
    assert sorted(waiting.edge.cause for waiting in again.waiting()) == ["lost", "xid 119"]
    assert again.take(seen(again, "xid 119", "lost", at=200.0)) == 0
    for waiting in again.waiting():
        again.delivered(waiting)
        again.delivered(waiting)
    assert Spool(tmp_path).waiting() == []


def test_a_process_that_dies_before_it_notes_what_it_told_keeps_every_edge_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def dies(source: str | Path, target: str | Path) -> None:
        if Path(target).name == MEMORY_FILE:
            raise OSError("killed")
        replace(source, target)

    spool = Spool(tmp_path)
    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(OSError, match="killed"):
        spool.take(seen(spool, "lost", "xid 79"))
    monkeypatch.undo()
    again = Spool(tmp_path)
    assert again.memory() == {}
    again.take(seen(again, "lost", "xid 79"))
    assert sorted(waiting.edge.cause for waiting in again.waiting()) == ["lost", "xid 79"]


def test_a_half_written_file_is_nobodys_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(source: str | Path, target: str | Path) -> None:
        raise OSError("killed")

    spool = Spool(tmp_path)
    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(OSError, match="killed"):
        spool.take(seen(spool, "lost"))
    monkeypatch.undo()
    assert Spool(tmp_path).waiting() == []


def test_a_file_that_cannot_be_read_is_set_aside_and_holds_nothing_up(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.take(seen(spool, "lost"))
    bad = tmp_path / "waiting" / "000000000000001-x.json"
    bad.write_text('{"uuid": "GPU-1", "edge": {')
    assert [waiting.edge.cause for waiting in spool.waiting()] == ["lost"]
    assert bad.with_name(bad.name + ".unreadable").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "gpus": {"g": {"c": "no"}}}'])
def test_a_memory_that_cannot_be_read_tells_everything_once_more(tmp_path: Path, text: str) -> None:
    spool = Spool(tmp_path)
    spool.take(seen(spool, "lost"))
    (ids,) = ([waiting.edge.id for waiting in spool.waiting()],)
    (tmp_path / MEMORY_FILE).write_text(text)
    spool.take(seen(spool, "lost"))
    assert [waiting.edge.id for waiting in spool.waiting()] == ids


def test_a_full_spool_leaves_out_repetitions_and_never_a_new_fault(tmp_path: Path) -> None:
    spool = Spool(tmp_path, most=2)
    assert spool.take(seen(spool, "a", "b", "c")) == 3
    assert spool.take(seen(spool, "a", "b", "c", last=1000.0)) == 0
    assert spool.take(seen(spool, "a", "b", "c", "d", last=1000.0)) == 1
    assert json.loads((tmp_path / MEMORY_FILE).read_text())["gpus"]["GPU-1"].keys() == {"a", "b", "c", "d"}
