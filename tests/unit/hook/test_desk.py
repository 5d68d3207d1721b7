"""What the desk answers, whatever order requests and saves come in."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpubank.hook.desk import Answer, Desk
from gpubank.hook.protocol import Request, RequestRefusedError, format_time, parse_request, parse_time
from gpubank.hook.store import Checkpoint

DEADLINE = datetime(2026, 3, 1, 12, tzinfo=UTC)


def request(name: str, epoch: int = 1) -> Request:
    return Request(name, epoch, DEADLINE, "wanted back")


def desk(changes: list[Answer] | None = None) -> Desk:
    told: list[Answer] = [] if changes is None else changes
    return Desk(uid="pod-1", world_size=8, uri="file:///run/", on_change=told.append)


def a_checkpoint(step: int) -> Checkpoint:
    return Checkpoint(Path(f"/run/step-{step}"), f"step-{step}", step, None, "pod-1", "", 2, 9, "ab" * 32)


def test_request_goes_from_accepted_over_saving_to_durable() -> None:
    changes: list[Answer] = []
    there = desk(changes)
    there.step = 41
    asked = request("r-1")

    assert there.ask(asked)["state"] == "accepted"
    assert there.waiting == asked
    there.begin(asked, step=42)
    assert there.waiting is None
    there.finish(asked, a_checkpoint(42))

    assert [change["state"] for change in changes] == ["accepted", "saving", "durable"]
    answer = there.answer("r-1")
    assert answer == changes[-1]
    started, durable = parse_time(answer.pop("startedAt")), parse_time(answer.pop("durableAt"))
    assert started <= durable
    assert answer == {
        "id": "r-1",
        "state": "durable",
        "step": 42,
        "stepAtRequest": 41,
        "worldSize": 8,
        "uri": "file:///run/step-42",
        "manifest": {"uri": "file:///run/step-42/manifest.json", "sha256": "ab" * 32, "files": 2, "bytes": 9},
        "trainerUID": "pod-1",
        "message": "",
    }


def test_same_id_again_returns_the_same_record_even_when_it_is_done() -> None:
    there = desk()
    asked = request("r-1")
    there.ask(asked)
    there.begin(asked, step=1)
    there.finish(asked, a_checkpoint(1))
    assert there.ask(request("r-1", epoch=9))["state"] == "durable"
    assert there.waiting is None


def test_newer_epoch_supersedes_what_waits_and_an_older_one_is_refused() -> None:
    there = desk()
    there.ask(request("r-1", epoch=1))
    there.ask(request("r-2", epoch=2))
    assert there.waiting == request("r-2", epoch=2)
    superseded = there.answer("r-1")
    assert superseded is not None
    assert (superseded["state"], superseded["message"]) == ("failed", "superseded by request 'r-2'")
    with pytest.raises(RequestRefusedError, match="older than 2") as refusal:
        there.ask(request("r-0", epoch=1))
    assert refusal.value.status == 409
    assert there.answer("r-0") is None


def test_save_that_has_begun_is_finished_although_a_newer_request_came() -> None:
    there = desk()
    first, second = request("r-1", epoch=1), request("r-2", epoch=2)
    there.ask(first)
    there.begin(first, step=5)
    there.ask(second)
    there.finish(first, a_checkpoint(5))
    answer = there.answer("r-1")
    assert answer is not None
    assert answer["state"] == "durable"
    assert there.waiting == second


def test_ended_answers_are_forgotten_only_when_there_are_too_many() -> None:
    there = desk()
    for number in range(200):
        there.ask(request(f"r-{number}"))
    assert there.answer("r-0") is None
    assert there.answer("r-199") is not None
    assert there.answer("r-150") is not None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 10_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"epoch":1,"deadline":"2026-03-01T12:00:00Z"}', "id: must be"),
        (b'{"id":"","epoch":1,"deadline":"2026-03-01T12:00:00Z"}', "id: must be"),
        (b'{"id":"a\\nb","epoch":1,"deadline":"2026-03-01T12:00:00Z"}', "id: must be"),
        (b'{"id":7,"epoch":1,"deadline":"2026-03-01T12:00:00Z"}', "id: must be"),
        (b'{"id":"a","epoch":"1","deadline":"2026-03-01T12:00:00Z"}', "epoch: must be"),
        (b'{"id":"a","epoch":true,"deadline":"2026-03-01T12:00:00Z"}', "epoch: must be"),
        (b'{"id":"a","epoch":-1,"deadline":"2026-03-01T12:00:00Z"}', "epoch: must be"),
        (b'{"id":"a","epoch":9007199254740992,"deadline":"2026-03-01T12:00:00Z"}', "epoch: must be"),
        (b'{"id":"a","epoch":1}', "deadline: must be"),
        (b'{"id":"a","epoch":1,"deadline":"soon"}', "deadline: 'soon' is not"),
        (b'{"id":"a","epoch":1,"deadline":"2026-03-01T12:00:00"}', "with a zone"),
        (b'{"id":"a","epoch":1,"deadline":"2026-13-01T12:00:00Z"}', "deadline:"),
        (b'{"id":"a","epoch":1,"deadline":"2026-03-01T12:00:00Z","reason":5}', "reason: must be"),
    ],
)
def test_malformed_request_is_refused_with_field_and_rule(body: bytes, message: str) -> None:
    with pytest.raises(RequestRefusedError, match=message) as refusal:
        parse_request(body)
    assert refusal.value.status == 400


def test_request_beyond_the_size_limit_is_refused() -> None:
    with pytest.raises(RequestRefusedError) as refusal:
        parse_request(b" " * 20_000)
    assert refusal.value.status == 413


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-03-01T12:00:00Z", DEADLINE),
        ("2026-03-01t13:00:00+01:00", DEADLINE),
        ("2026-03-01T12:00:00.5Z", DEADLINE + timedelta(milliseconds=500)),
        ("2026-03-01T12:00:00.123456789Z", DEADLINE + timedelta(microseconds=123456)),
    ],
)
def test_every_form_of_rfc_3339_is_read(text: str, moment: datetime) -> None:
    assert parse_time(text) == moment
    assert parse_time(format_time(moment)) == moment


class DeskMachine(RuleBasedStateMachine):
    """Any sequence of requests and saves; an answer never goes back and never changes once it is final."""

    ORDER = ("accepted", "saving", "durable", "failed")

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Answer] = []
        self.desk = desk(self.changes)
        self.saving: Request | None = None
        self.final: dict[str, Any] = {}
        self.newest = -1

    @rule(name=st.sampled_from("abcdef"), epoch=st.integers(0, 4))
    def ask(self, name: str, epoch: int) -> None:
        known = self.desk.answer(name)
        try:
            answer = self.desk.ask(request(name, epoch))
        except RequestRefusedError:
            assert known is None
            assert epoch < self.newest
            return
        if known is not None:
            assert answer == known
        else:
            assert epoch >= self.newest
            self.newest = epoch
            assert self.desk.waiting is not None
            assert self.desk.waiting.id == name

    @precondition(lambda self: self.saving is None and self.desk.waiting is not None)
    @rule(steps=st.integers(1, 5))
    def begin(self, steps: int) -> None:
        self.desk.step += steps
        self.saving = self.desk.waiting
        assert self.saving is not None
        self.desk.begin(self.saving, step=self.desk.step)

    @precondition(lambda self: self.saving is not None)
    @rule(works=st.booleans())
    def end(self, works: bool) -> None:
        assert self.saving is not None
        if works:
            self.desk.finish(self.saving, a_checkpoint(self.desk.step))
        else:
            self.desk.fail(self.saving, "disk full")
        self.saving = None

    @invariant()
    def answers_only_go_forward(self) -> None:
        last: dict[str, Answer] = {}
        for change in self.changes:
            before = last.get(change["id"])
            if before is not None:
                assert self.ORDER.index(before["state"]) < self.ORDER.index(change["state"])
                assert before["state"] not in ("durable", "failed")
                assert before["stepAtRequest"] == change["stepAtRequest"]
            if change["state"] == "durable":
                assert change["step"] >= change["stepAtRequest"]
            last[change["id"]] = change

    @invariant()
    def one_request_waits_at_most_and_is_the_newest_accepted(self) -> None:
        accepted = [name for name in "abcdef" if (self.desk.answer(name) or {}).get("state") == "accepted"]
        assert accepted == ([self.desk.waiting.id] if self.desk.waiting else [])


TestDeskMachine = DeskMachine.TestCase
