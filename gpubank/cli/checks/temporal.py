"""Temporal: whether it answers, knows the bank's search attributes, and has workers that listen."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeVar

from temporalio.api.deployment.v1 import WorkerDeploymentVersion
from temporalio.api.enums.v1 import TaskQueueType, WorkerVersioningMode
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    GetSystemInfoRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.service import __version__ as sdk_version

from activities.interfaces import BANK_QUEUE, cluster_queue
from gpubank.cli.checks.finding import Check, fail, ok, warn
from gpubank.client import ADMIN_ADDS, ADMIN_REPLACES, ATTRIBUTES, CALL_TIMEOUT, REFUSED, BankClient, lacking
from gpubank.domain.errors import BankError
from gpubank.settings import Settings

T = TypeVar("T")
AREA: Final = "temporal"
UNVERSIONED: Final = ("", "")
"""Stands for the version of workers that have none."""

POLLED_LATELY: Final = timedelta(seconds=100)
"""A poll lasts a minute; whoever has not begun one for longer is gone, and is listed for some minutes more."""

LOOK_AGAIN: Final = 1.0
"""Seconds until a queue that nobody listens on is looked at again: a server that has just taken the queue up, after a
restart or as another build is given the work, has not heard from those who poll it."""

LOOKS: Final = 4

_WORKER: Final = "start the worker; until then processes stand still and nothing is lost"


async def check_temporal(settings: Settings) -> list[Check]:
    """Ask the frontend; a part that may not be asked is a warning."""
    try:
        client = (await BankClient.connect(settings.temporal)).temporal
    except (BankError, OSError) as error:
        return [fail(AREA, str(error))]
    checks = []
    for check in (_server, _namespace, _attributes):
        checks.append(await _asked(partial(check, client, settings)))
        if checks[-1].level == "FAIL":
            return checks
    queues = [
        (BANK_QUEUE, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, "workflows"),
        (cluster_queue(settings.cluster.name), TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY, "what touches the cluster"),
    ]
    return [*checks, *await asyncio.gather(*(_asked(partial(_listeners, client, *queue)) for queue in queues))]


async def _asked(check: Callable[[], Awaitable[Check]]) -> Check:
    try:
        return await check()
    except RPCError as error:
        if error.status in REFUSED:
            return warn(AREA, f"not everything may be asked: {error.message}")
        return fail(AREA, f"does not answer ({error.status.name}): {error.message}")


async def _server(client: Client, settings: Settings) -> Check:
    info = await client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=CALL_TIMEOUT)
    where = f", UI {settings.temporal.ui_url}" if settings.temporal.ui_url else ""
    return ok(AREA, f"server {info.server_version} at {settings.temporal.address}, SDK {sdk_version}{where}")


async def _namespace(client: Client, settings: Settings) -> Check:
    name = settings.temporal.namespace
    try:
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=name), timeout=CALL_TIMEOUT)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return fail(AREA, f"namespace {name!r} does not exist", "create it, or set temporal.namespace")
        raise
    return ok(AREA, f"namespace {name!r}")


async def _attributes(client: Client, settings: Settings) -> Check:
    request = ListSearchAttributesRequest(namespace=settings.temporal.namespace)
    known = (await client.operator_service.list_search_attributes(request, timeout=CALL_TIMEOUT)).custom_attributes
    missing, other = lacking(known)
    if missing:
        remedy = f"start a worker, which adds them where it may; else {ADMIN_ADDS}"
        return fail(AREA, f"search attributes are missing: {', '.join(missing)}", remedy)
    if other:
        return fail(AREA, f"search attributes are of another type than {', '.join(other)}", ADMIN_REPLACES)
    return ok(AREA, f"{len(ATTRIBUTES)} search attributes are registered")


async def _listeners(client: Client, queue: str, kind: TaskQueueType.ValueType, what: str) -> Check:
    for _ in range(LOOKS - 1):
        found = await _pollers(client, queue, kind, what)
        if found.level != "FAIL":
            return found
        await asyncio.sleep(LOOK_AGAIN)
    return await _pollers(client, queue, kind, what)


async def _pollers(client: Client, queue: str, kind: TaskQueueType.ValueType, what: str) -> Check:
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
    )
    answer = await client.workflow_service.describe_task_queue(request, timeout=CALL_TIMEOUT)
    if not answer.pollers:
        return fail(AREA, f"no worker listens on task queue {queue!r} ({what})", _WORKER)
    routes = answer.versioning_info
    current = _key(routes.current_deployment_version)
    served = {current, *([_key(routes.ramping_deployment_version)] if routes.ramping_version_percentage else [])}
    workers = {poller.identity for poller in answer.pollers if _version(poller) in served}
    idle = {_version(poller) for poller in answer.pollers if _lately(poller)} - served
    others = " and ".join(map(_said, sorted(idle)))
    if current not in {_version(poller) for poller in answer.pollers}:
        fact = f"task queue {queue!r} ({what}): work goes to {_said(current)}, and none listens"
        return fail(AREA, fact + (f"; there are {others}" if others else ""), _current(idle) if idle else _WORKER)
    many = f"task queue {queue!r} ({what}): {len(workers)} worker{'s' if len(workers) > 1 else ''} listening"
    if idle:
        return warn(AREA, f"{many}; {others} are given nothing", _current(idle))
    return ok(AREA, many)


def _key(version: WorkerDeploymentVersion) -> tuple[str, str]:
    return version.deployment_name, version.build_id


def _version(poller: PollerInfo) -> tuple[str, str]:
    options = poller.deployment_options
    versioned = options.worker_versioning_mode == WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
    return (options.deployment_name, options.build_id) if versioned else UNVERSIONED


def _lately(poller: PollerInfo) -> bool:
    return datetime.now(UTC) - poller.last_access_time.ToDatetime(UTC) < POLLED_LATELY


def _said(version: tuple[str, str]) -> str:
    return f"workers of {version[0]}, build {version[1]}" if version != UNVERSIONED else "unversioned workers"


def _current(idle: set[tuple[str, str]]) -> str:
    """What to do about workers that are given nothing: make their build current, or end them."""
    for name, build in sorted(idle - {UNVERSIONED}):
        return (
            f"`temporal worker deployment set-current-version --deployment-name {name} --build-id {build}`, or end them"
        )
    return "end them, or give them a version by worker.deployment"
