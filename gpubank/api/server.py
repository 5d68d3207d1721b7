"""The embedded mode's door: HTTP on a Unix socket that only its user can open.

| route | answers |
|---|---|
| GET /v1/status | versions, addresses, process |
| GET /v1/pools/{pool}/facts | what the scheduler sees of a pool |
| GET /v1/objects/{kind} | every object of a kind; `?name=` and `?namespace=` pick one |
| POST /v1/objects | applies one manifest: an object of the bank, a Job, or a Deployment |
| PUT /v1/objects/{kind}/{name}/status | replaces a status decided on `?seen=`; `&dryRun=All` only checks |
| DELETE /v1/objects/{kind}/{name} | `?namespace=` where the kind has one |
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from aiohttp import web

from gpubank.domain.errors import BankError, ConflictError, InvalidObjectError, PolicyError
from gpubank.ports import ObjectStore, QuotaBackend

MAX_BODY = 1024 * 1024
"""Bytes of one request; a manifest is far smaller."""


class JobDoor(Protocol):
    """Where work is submitted that a cluster's API server would take."""

    async def submit(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create a Job or Deployment, or scale a Deployment that is there; `PolicyError` where it is refused."""
        ...

    async def jobs(self) -> Sequence[dict[str, Any]]:
        """Every Job and Deployment, with status."""
        ...

    async def delete_job(self, kind: str, namespace: str, name: str) -> bool:
        """Delete one; False when there was none."""
        ...


JOB_KINDS = ("Job", "Deployment")


class EmbeddedApi:
    """Routes of the socket, on the same ports that the controller uses."""

    def __init__(
        self, *, objects: ObjectStore, backend: QuotaBackend, jobs: JobDoor, status: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._objects, self._backend, self._jobs, self._status = objects, backend, jobs, status

    def app(self) -> web.Application:
        """Build the application."""
        app = web.Application(client_max_size=MAX_BODY, middlewares=[_errors])
        app.add_routes(
            [
                web.get("/v1/status", self._get_status),
                web.get("/v1/pools/{pool}/facts", self._get_facts),
                web.get("/v1/objects/{kind}", self._get_objects),
                web.post("/v1/objects", self._apply),
                web.put("/v1/objects/{kind}/{name}/status", self._put_status),
                web.delete("/v1/objects/{kind}/{name}", self._delete),
            ]
        )
        return app

    async def _get_status(self, _: web.Request) -> web.Response:
        return web.json_response(dict(self._status()))

    async def _get_facts(self, request: web.Request) -> web.Response:
        facts = await self._backend.observe(request.match_info["pool"])
        return web.Response(text=facts.model_dump_json(by_alias=True), content_type="application/json")

    async def _get_objects(self, request: web.Request) -> web.Response:
        kind, name = request.match_info["kind"], request.query.get("name")
        namespace = request.query.get("namespace")
        if kind in JOB_KINDS:
            items = [job for job in await self._jobs.jobs() if job["kind"] == kind]
        else:
            items = list(await self._objects.list(kind))
        picked = [
            item
            for item in items
            if (name is None or item["metadata"]["name"] == name)
            and (namespace is None or item["metadata"].get("namespace", "") == namespace)
        ]
        return web.json_response({"items": picked})

    async def _put_status(self, request: web.Request) -> web.Response:
        kind, name = request.match_info["kind"], request.match_info["name"]
        body = await _json(request)
        if not isinstance(body, dict):
            raise PolicyError("the body is no status; send a mapping")
        namespace, seen = request.query.get("namespace"), request.query.get("seen", "")
        dry_run = request.query.get("dryRun") == "All"
        await self._objects.patch_status(kind, name, namespace, body, seen=seen, dry_run=dry_run)
        return web.json_response({"written": not dry_run})

    async def _apply(self, request: web.Request) -> web.Response:
        body = await _json(request)
        if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
            raise PolicyError("the body is no manifest; it has no kind")
        if body["kind"] in JOB_KINDS:
            return web.json_response(await self._jobs.submit(body))
        return web.json_response(await self._objects.apply(body))

    async def _delete(self, request: web.Request) -> web.Response:
        kind, name = request.match_info["kind"], request.match_info["name"]
        namespace = request.query.get("namespace")
        if kind in JOB_KINDS:
            done = await self._jobs.delete_job(kind, namespace or "default", name)
        else:
            done = await self._objects.delete(kind, name, namespace)
        if not done:
            return _refusal(404, f"{kind} {name!r} does not exist")
        return web.json_response({"deleted": True})


async def _json(request: web.Request) -> Any:
    try:
        return await request.json()
    except json.JSONDecodeError as error:
        raise PolicyError(f"the body is not JSON ({error.msg}); send one manifest") from error


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn the bank's errors into status codes; what is no error of ours is a bug and stays a 500."""
    try:
        return await handler(request)
    except InvalidObjectError as error:
        problems = [str(problem) for problem in error.problems]
        return web.json_response({"error": str(error), "problems": problems}, status=422)
    except ConflictError as error:
        return _refusal(409, str(error))
    except PolicyError as error:
        return _refusal(422, str(error))
    except BankError as error:
        return _refusal(503, str(error))
