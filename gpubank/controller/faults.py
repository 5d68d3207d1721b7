"""Gates around what the controller tells the workflows, for crash tests only: where `faults.folder` is set."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from gpubank.decide.step import LoanSignal, SignalKind
from gpubank.domain.faults import FaultPoint, Position, Spot
from gpubank.faultgate import FaultGate
from gpubank.ports import Processes

POINTS: Final = {SignalKind.OFFERED: FaultPoint.OFFER, SignalKind.GRANTED: FaultPoint.GRANT}


class GatedProcesses:
    """`Processes` that come by a gate before and after every word."""

    def __init__(self, processes: Processes, gate: FaultGate) -> None:
        self._processes, self._gate = processes, gate

    async def signal_loan(self, cluster: str, pool: str, signal: LoanSignal) -> None:
        """Tell a Loan what the controller did or saw."""
        point = POINTS.get(signal.kind)
        if point is not None:
            await self._gate.at(pool, Spot(point, Position.BEFORE))
        await self._processes.signal_loan(cluster, pool, signal)
        if point is not None:
            await self._gate.at(pool, Spot(point, Position.AFTER))

    async def signal_needs(self, cluster: str, pool: str, lender: str, demands: Sequence[str], *, at: datetime) -> None:
        """Tell a lender's Reclaim which demands are open."""
        await self._gate.at(pool, Spot(FaultPoint.DEMAND, Position.BEFORE))
        await self._processes.signal_needs(cluster, pool, lender, demands, at=at)
        await self._gate.at(pool, Spot(FaultPoint.DEMAND, Position.AFTER))
