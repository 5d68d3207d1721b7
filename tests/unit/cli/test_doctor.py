"""`gpubank doctor`: every check, well and ill."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.enums.v1 import IndexedValueType, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse
from temporalio.service import RPCError, RPCStatusCode
from typer.testing import Result

from gpubank.cli.checks import temporal
from gpubank.cli.checks.finding import Check, Level, fail, ok
from gpubank.cli.checks.ledger import check_ledger
from gpubank.domain.errors import BackendError
from gpubank.settings import Settings
from tests.plugins.ledger import by_hand
from tests.unit.cli.findings import bad, pool
from workflows import attributes

Call = Callable[..., Result]
VERSIONED = WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def embedded(home: Path, books: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An embedded bank that answers as it is told."""
    bank = SimpleNamespace(status={}, pools=[pool(Ready="True")], temporal=[ok("temporal", "server 1.0")])
    bank.status = {
        "version": "0.1.0",
        "pid": 7,
        "temporal": "127.0.0.1:1",
        "ui": "http://127.0.0.1:2",
        "database": f"sqlite:///{books}",
    }

    class Client:
        def __init__(self, socket: Path) -> None:
            self.socket = socket

        async def __aenter__(self) -> "Client":
            return self

        async def __aexit__(self, *_: object) -> None:
            return None

        async def status(self) -> dict[str, Any]:
            return dict(bank.status)

        async def list(self, kind: str) -> list[dict[str, Any]]:
            return list(bank.pools)

    async def checked(settings: Settings) -> list[Check]:
        assert settings.temporal.address == "127.0.0.1:1"
        return list(bank.temporal)

    monkeypatch.setattr("gpubank.adapters.embedded.EmbeddedClient", Client)
    monkeypatch.setattr(temporal, "check_temporal", checked)
    return bank


def test_a_bank_in_order_passes_with_one_line_per_check(embedded: SimpleNamespace, call: Call) -> None:
    result = call("doctor")
    assert result.exit_code == 0, result.output
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [
        ["ok", "program"],
        ["ok", "bank"],
        ["ok", "temporal"],
        ["ok", "ledger"],
        ["ok", "ledger"],
        ["ok", "pools"],
    ]


def test_a_check_that_fails_ends_with_1_and_says_what_to_do(embedded: SimpleNamespace, call: Call) -> None:
    embedded.temporal = [fail("temporal", "no worker listens on task queue 'bank'", "start the worker")]
    embedded.status["version"] = "0.0.9"
    result = call("doctor")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert "FAIL  temporal  no worker listens on task queue 'bank'; start the worker" in lines
    assert any(line.startswith("warn  bank      version 0.0.9") for line in lines)


def test_the_report_as_json_is_for_programs(embedded: SimpleNamespace, call: Call) -> None:
    item = json.loads(call("doctor", "-o", "json").stdout)
    assert (item["mode"], item["ok"]) == ("embedded", True)
    assert item["checks"][2] == {"area": "temporal", "level": "ok", "message": "server 1.0", "remedy": ""}
    embedded.pools = []
    assert call("doctor", "-o", "name").stdout.split()[-1] == "pools/warn"


def test_a_bank_that_does_not_run_fails_and_nothing_is_made(home: Path, call: Call) -> None:
    result = call("--state-dir", str(home / "state"), "doctor")
    assert result.exit_code == 1
    assert "FAIL  bank      no bank answers on" in result.stdout
    assert not (home / "state").exists()


def test_in_cluster_mode_every_part_is_checked_by_itself(
    home: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(settings: Settings) -> list[Check]:
        return [fail("temporal", "does not answer")]

    monkeypatch.setattr(temporal, "check_temporal", down)
    result = call("--mode", "cluster", "--kubeconfig", "/nowhere", "doctor")
    assert result.exit_code == 1
    failed = [line.split()[1] for line in result.stdout.splitlines() if line.startswith("FAIL")]
    assert failed == ["temporal", "ledger", "cluster"]
    assert "set GPUBANK_LEDGER__URL" in result.stdout


# ---- ledger


async def test_a_ledger_in_order_is_named_with_its_version(books: Path) -> None:
    first, second = await check_ledger(f"sqlite:///{books}")
    assert first.message.startswith("SQLite 3.")
    assert second.message == "schema 0002_from_0001, as this program's; pools with books: 1"


async def test_a_ledger_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    (check,) = await check_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    assert (check.level, check.remedy) == (Level.FAIL, "`gpubank up` or `gpubank ledger migrate` makes it")
    assert os.listdir(tmp_path) == []


async def test_a_ledger_of_another_schema_fails_with_the_command_that_helps(books: Path, tmp_path: Path) -> None:
    copy = shutil.copy(books, tmp_path / "ledger.db")
    await asyncio.to_thread(by_hand, f"sqlite:///{copy}", "UPDATE alembic_version SET version_num = '0000'")
    (failed,) = bad(await check_ledger(f"sqlite:///{copy}"))
    assert failed.message == "ledger schema is 0000, this program speaks 0002_from_0001; run `gpubank ledger migrate`"


async def test_a_ledger_url_that_nobody_reads_fails_without_its_password() -> None:
    (check,) = await check_ledger("mysql://me:secret@db/ledger")
    assert check.level is Level.FAIL
    assert "secret" not in check.message
    (unreachable,) = await check_ledger("postgresql://me:secret@127.0.0.1:1/ledger")
    assert unreachable.level is Level.FAIL
    assert "secret" not in unreachable.message


# ---- Temporal


class FakeTemporal:
    """What the checks ask of Temporal's services."""

    namespace = "default"

    def __init__(self) -> None:
        self.known = {key.name: IndexedValueType.ValueType(key.indexed_value_type) for key in attributes.ALL}
        self.pollers = {"bank": ["w-1"], "cluster-local": ["w-1", "w-2"]}
        self.current = ""
        self.deaf = 0
        """How often it still says that nobody polls."""
        self.refusals: dict[str, RPCError] = {}
        self.workflow_service = self.operator_service = self

    async def get_system_info(self, _: Any, *, timeout: Any) -> Any:
        return SimpleNamespace(server_version="1.30.0")

    async def describe_namespace(self, _: Any, *, timeout: Any) -> Any:
        self._refuse("namespace")

    async def list_search_attributes(self, _: Any, *, timeout: Any) -> Any:
        self._refuse("attributes")
        return SimpleNamespace(custom_attributes=self.known)

    async def describe_task_queue(self, request: Any, *, timeout: Any) -> Any:
        names = self.pollers.get(request.task_queue.name, []) if not self.deaf else []
        self.deaf = max(0, self.deaf - 1)
        answer = DescribeTaskQueueResponse(pollers=[self._poller(name) for name in names])
        if self.current:
            answer.versioning_info.current_deployment_version.deployment_name = "gpubank"
            answer.versioning_info.current_deployment_version.build_id = self.current
        return answer

    def _poller(self, name: str) -> PollerInfo:
        """Return a poller; one called `worker@build` is versioned, and `worker@build?` was so some minutes ago."""
        poller, (_, _, build) = PollerInfo(identity=name), name.partition("@")
        age = timedelta(minutes=3 if name.endswith("?") else 0)
        poller.last_access_time.FromDatetime(datetime.now(UTC) - age)
        if build:
            poller.deployment_options.deployment_name = "gpubank"
            poller.deployment_options.build_id = build.removesuffix("?")
            poller.deployment_options.worker_versioning_mode = VERSIONED
        return poller

    def _refuse(self, what: str) -> None:
        if what in self.refusals:
            raise self.refusals[what]


@pytest.fixture
def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTemporal:
    found = FakeTemporal()

    async def connect(settings: Any) -> Any:
        return SimpleNamespace(temporal=found)

    monkeypatch.setattr(temporal, "BankClient", SimpleNamespace(connect=connect))
    monkeypatch.setattr(temporal, "LOOK_AGAIN", 0.0)
    return found


async def test_a_temporal_in_order_passes(server: FakeTemporal) -> None:
    checks = await temporal.check_temporal(Settings.load())
    assert bad(checks) == []
    assert checks[0].message.startswith("server 1.30.0 at 127.0.0.1:7233, SDK ")
    assert [check.message for check in checks[2:]] == [
        "13 search attributes are registered",
        "task queue 'bank' (workflows): 1 worker listening",
        "task queue 'cluster-local' (what touches the cluster): 2 workers listening",
    ]


async def test_what_temporal_lacks_is_named(server: FakeTemporal) -> None:
    del server.known["GpuBankPool"], server.known["GpuBankLenders"]
    (missing,) = bad(await temporal.check_temporal(Settings.load()))
    assert missing.message == "search attributes are missing: GpuBankPool (Keyword), GpuBankLenders (KeywordList)"
    assert missing.remedy == "start a worker, which adds them where it may; else have the namespace's admin add them"
    server.known["GpuBankLenders"] = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST
    server.known["GpuBankPool"] = IndexedValueType.INDEXED_VALUE_TYPE_INT
    (other,) = bad(await temporal.check_temporal(Settings.load()))
    assert other.message == "search attributes are of another type than GpuBankPool (Keyword)"
    assert other.remedy == "have the namespace's admin remove them and add them anew"
    server.refusals["namespace"] = RPCError("no", RPCStatusCode.NOT_FOUND, b"")
    (absent,) = bad(await temporal.check_temporal(Settings.load()))
    assert absent.message == "namespace 'default' does not exist"


async def test_a_worker_that_is_missing_is_named_by_its_queue(server: FakeTemporal) -> None:
    server.pollers = {"bank": ["w-1"]}
    (failed,) = bad(await temporal.check_temporal(Settings.load()))
    assert failed.message == "no worker listens on task queue 'cluster-local' (what touches the cluster)"


async def test_a_worker_whose_first_poll_the_server_has_not_heard_yet_is_not_called_missing(
    server: FakeTemporal,
) -> None:
    server.deaf = 2
    assert bad(await temporal.check_temporal(Settings.load())) == []


async def test_a_versioned_worker_that_is_not_current_is_named_with_the_command_that_makes_it_so(
    server: FakeTemporal,
) -> None:
    server.pollers = {name: ["w-1@b"] for name in ("bank", "cluster-local")}
    command = "`temporal worker deployment set-current-version --deployment-name gpubank --build-id b`, or end them"
    nobody = bad(await temporal.check_temporal(Settings.load()))
    assert [(check.level, check.remedy) for check in nobody] == [(Level.FAIL, command)] * 2
    assert nobody[0].message == (
        "task queue 'bank' (workflows): work goes to unversioned workers, and none listens;"
        " there are workers of gpubank, build b"
    )
    server.current = "a"
    server.pollers = {name: ["w-0@a", "w-1@b"] for name in ("bank", "cluster-local")}
    waiting = bad(await temporal.check_temporal(Settings.load()))
    assert [(check.level, check.remedy) for check in waiting] == [(Level.WARN, command)] * 2
    assert waiting[0].message == (
        "task queue 'bank' (workflows): 1 worker listening; workers of gpubank, build b are given nothing"
    )
    server.current = "b"
    server.pollers = {name: ["w-0@a?", "w-1@b"] for name in ("bank", "cluster-local")}
    assert bad(await temporal.check_temporal(Settings.load())) == []


async def test_what_may_not_be_asked_is_a_warning(server: FakeTemporal) -> None:
    server.refusals["attributes"] = RPCError("denied", RPCStatusCode.PERMISSION_DENIED, b"")
    (warned,) = bad(await temporal.check_temporal(Settings.load()))
    assert (warned.level, warned.message) == (Level.WARN, "not everything may be asked: denied")


async def test_a_temporal_that_does_not_answer_is_one_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(settings: Any) -> Any:
        raise BackendError("Temporal at '127.0.0.1:7233' does not answer: start it")

    monkeypatch.setattr(temporal, "BankClient", SimpleNamespace(connect=connect))
    (failed,) = await temporal.check_temporal(Settings.load())
    assert failed.message == "Temporal at '127.0.0.1:7233' does not answer: start it"


# ---- cluster
