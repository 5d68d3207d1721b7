"""The contract of signs of life, in memory and as Leases of a real API server."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kinds import LEASE
from gpubank.adapters.kubernetes.leases import PROMISES_ANNOTATION, KubernetesLeases
from gpubank.lab import Lab
from gpubank.ports import Leases
from gpubank.simulation.leases import SimulatedLeases

LASTS = timedelta(seconds=45)


class LeasesSuite:
    @pytest.fixture
    def leases(self) -> Leases:
        raise NotImplementedError

    @pytest.fixture
    def name(self) -> str:
        return f"heartbeat-local-{uuid.uuid4().hex[:8]}"

    async def test_what_was_never_renewed_is_missing(self, leases: Leases, name: str) -> None:
        assert await leases.read(name) is None

    async def test_every_renewal_is_another_one(self, leases: Leases, name: str) -> None:
        tokens = []
        for _ in range(3):
            await leases.renew(name, holder="gpubank", duration=LASTS)
            found = await leases.read(name)
            assert found is not None
            assert (found.holder, found.duration, found.promises) == ("gpubank", LASTS, {})
            tokens.append(found.token)
        assert len(set(tokens)) == 3
        again = await leases.read(name)
        assert again is not None
        assert again.token == tokens[-1], "looking is no renewal"

    async def test_promises_stand_until_they_are_kept(self, leases: Leases, name: str) -> None:
        await leases.renew(name, holder="gpubank", duration=LASTS, promises={"b": 12, "a": 4})
        found = await leases.read(name)
        assert found is not None
        assert found.promises == {"a": 4, "b": 12}
        await leases.renew(name, holder="gpubank", duration=LASTS)
        found = await leases.read(name)
        assert found is not None
        assert found.promises == {}

    async def test_two_that_renew_at_once_do_not_stop_each_other(self, leases: Leases, name: str) -> None:
        await leases.renew(name, holder="gpubank", duration=LASTS)
        await asyncio.gather(*(leases.renew(name, holder=f"w{n}", duration=LASTS) for n in range(2)))
        found = await leases.read(name)
        assert found is not None
        assert found.holder in ("w0", "w1")


class TestSimulation(LeasesSuite):
    @pytest.fixture
    def leases(self) -> Leases:
        return SimulatedLeases()


class TestKubernetes(LeasesSuite):
    @pytest.fixture
    async def connection(self, lab: Lab) -> AsyncIterator[Connection]:
        async with Connection.open(lab.kubeconfig) as connection:
            yield connection

    @pytest.fixture
    def leases(self, connection: Connection) -> Leases:
        return KubernetesLeases(connection, "default")

    @pytest.mark.parametrize("text", ["", "no json", "[1]", '{"a": -1, "b": true, "c": "8"}'])
    async def test_promises_that_nobody_of_the_bank_wrote_are_none(
        self, leases: Leases, connection: Connection, name: str, text: str
    ) -> None:
        await leases.renew(name, holder="gpubank", duration=LASTS)
        change = {"metadata": {"annotations": {PROMISES_ANNOTATION: text}}}
        await connection.patch(LEASE, name, "default", change)
        found = await leases.read(name)
        assert found is not None
        assert found.promises == {}
