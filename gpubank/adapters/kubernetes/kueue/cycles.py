"""Where Kueue says how long its admission cycles last: its own endpoint, or a Prometheus that scrapes it.

    kueue_admission_attempt_duration_seconds   a histogram; one attempt is one cycle, from its snapshot of the quotas
                                               to the last Workload that it assumed

Counts are told apart by process, for each has counted since its own start: at the endpoint by when it started, in
Prometheus by the labels that it gave the target.
"""

import asyncio
import re
import ssl
from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import inf, isnan
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import httpx2
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gpubank.adapters.kubernetes.transport import KeptTransport
from gpubank.decide.cycles import CycleCounts
from gpubank.domain.errors import BackendError, PolicyError

CYCLE: Final = "kueue_admission_attempt_duration_seconds"
"""Histogram of Kueue 0.19, by `result` and `replica_role`."""

_KUEUE: Final = "kueue_build_info"
_STARTED: Final = "process_start_time_seconds"
_TIMEOUT: Final = 5.0
_OF_A_SERIES: Final = frozenset({"__name__", "le", "result", "replica_role"})
"""Labels that tell series of one process apart, and no processes."""

_OURS: Final = re.compile(rf"^(?:{CYCLE}|{_KUEUE}|{_STARTED})[^\n]*$", re.MULTILINE)
"""Lines that matter. With 1,000 groups Kueue's page has 14 MB, and parsing it whole takes a second of a core."""

Samples = Iterable[tuple[str, Mapping[str, str], float]]


class CycleSource(Protocol):
    """Somebody who knows how long admission cycles lasted."""

    where: str
    """Address, for people."""

    async def read(self) -> Mapping[str, CycleCounts]:
        """Return what every process of the scheduler has counted; raise `BackendError` where nobody says."""
        ...


class _Http:
    """What both sources need of HTTP: verified TLS, a token that may be renewed, errors in words."""

    def __init__(self, where: str, *, authorities: Path | None = None, token: Path | None = None) -> None:
        """Prepare; raises `PolicyError` where the address or the authorities cannot be used."""
        self.where, self._token = where, token
        refusal = f"address {where!r} is no URL of Kueue's cycles: write http://… or https://…"
        try:
            url = httpx2.URL(where)
        except httpx2.InvalidURL as error:
            raise PolicyError(f"{refusal} ({error})") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise PolicyError(refusal)
        if token is not None and url.scheme != "https":
            raise PolicyError(f"a token would be sent to {where!r} in the clear: use https, or no kueue.token")
        try:
            trust = ssl.create_default_context(cafile=str(authorities) if authorities is not None else None)
        except OSError as error:
            raise PolicyError(f"kueue.authorities {str(authorities)!r} cannot be used: {error}") from error
        # No proxy stands between two services of one cluster.
        self._http = httpx2.AsyncClient(transport=KeptTransport(trust), trust_env=False, timeout=_TIMEOUT)

    async def get(self, url: str, **params: str) -> httpx2.Response:
        """Ask once. Raises `BackendError`."""
        headers = {}
        if self._token is not None:
            try:
                headers["Authorization"] = f"Bearer {(await asyncio.to_thread(self._token.read_text)).strip()}"
            except OSError as error:
                raise BackendError(f"kueue.token {str(self._token)!r} cannot be read: {error.strerror}") from error
        try:
            answer = await self._http.get(url, params=params, headers=headers)
        except httpx2.HTTPError as error:
            raise BackendError(f"{url!r} does not answer: {type(error).__name__}: {error}") from error
        if answer.status_code != httpx2.codes.OK:
            raise BackendError(f"{url!r} answers {answer.status_code}: {answer.text[:200]}")
        return answer

    async def close(self) -> None:
        """Close every socket."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class KueueEndpoint(_Http):
    """Kueue's own metrics, such as `https://kueue-controller-manager-metrics-service.kueue-system.svc:8443/metrics`."""

    async def read(self) -> Mapping[str, CycleCounts]:
        """Return the counts of the process that answers; see `CycleSource`."""
        answer = await self.get(self.where)
        try:
            # Kueue has a series per queue and per Workload's state: the page is long, and the loop has others waiting.
            families = await asyncio.to_thread(_families, answer)
        except ValueError as error:
            raise BackendError(f"{self.where!r} answers no metrics: {error}") from error
        samples = [(each.name, each.labels, each.value) for family in families for each in family.samples]
        values = {name: value for name, _, value in samples}
        if _KUEUE not in values and f"{CYCLE}_count" not in values:
            raise BackendError(f"{self.where!r} answers with metrics, and none of them is Kueue's: mend the address")
        return {str(values.get(_STARTED, 0.0)): counts for counts in counted(samples).values()}


def _families(answer: httpx2.Response) -> list[Metric]:
    # Of a page without any such line the whole says what it is instead.
    return list(text_string_to_metric_families("\n".join([*(_OURS.findall(answer.text) or [answer.text]), ""])))


class PrometheusServer(_Http):
    """A Prometheus that scrapes Kueue, by the address of its API, such as `http://prometheus.monitoring.svc:9090`."""

    async def read(self) -> Mapping[str, CycleCounts]:
        """Return the counts of every process that it scrapes; see `CycleSource`."""
        url = f"{self.where.rstrip('/')}/api/v1/query"
        answer = await self.get(url, query=f'{{__name__=~"{CYCLE}_(bucket|sum)|{_KUEUE}"}}')
        try:
            result: list[Any] = answer.json()["data"]["result"]
            samples = [(row["metric"]["__name__"], row["metric"], float(row["value"][1])) for row in result]
        except (ValueError, KeyError, TypeError) as error:
            raise BackendError(f"{url!r} answers nothing that Prometheus would: {error!r}") from error
        if not samples:
            raise BackendError(f"Prometheus at {self.where!r} has no metrics of Kueue: have it scrape Kueue")
        return counted(samples)


def counted(samples: Samples) -> Mapping[str, CycleCounts]:
    """Return the histogram of every process, the outcomes of its cycles together; none while no cycle has ended."""
    buckets: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    seconds: dict[str, float] = defaultdict(float)
    for name, labels, value in samples:
        if isnan(value):
            continue
        process = ",".join(f"{key}={labels[key]}" for key in sorted(labels.keys() - _OF_A_SERIES))
        if name == f"{CYCLE}_bucket":
            buckets[process][float(labels["le"])] += value
        elif name == f"{CYCLE}_sum":
            seconds[process] += value
    return {
        process: CycleCounts(tuple(sorted(found.items())), seconds[process])
        for process, found in sorted(buckets.items())
        if inf in found
    }
