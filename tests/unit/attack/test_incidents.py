"""Two incidents at the same moment: whoever stands back keeps what it had."""

from datetime import UTC, datetime
from typing import Any, cast

from activities.incidents import IncidentActivities
from gpubank.domain.incidentpolicy import IncidentPolicy
from gpubank.domain.incidentsteps import IncidentStep
from gpubank.domain.servicing import CordonMark, CordonScope
from gpubank.simulation.clock import ManualClock
from gpubank.simulation.cluster import SimulatedCluster

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


class Crowded:
    """The simulation's nodes; somebody else cordons in the same moment."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._nodes = cluster.servicing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nodes, name)

    async def cordon(self, name: str, mark: CordonMark) -> None:
        await self._nodes.cordon(name, mark)
        if mark.scope is CordonScope.NODE:
            self._nodes.close("node-1")


async def test_a_wider_cordon_that_stands_back_leaves_the_narrow_one_where_it_was() -> None:
    cluster = SimulatedCluster(ManualClock())
    for index in range(2):
        cluster.add_node(f"node-{index}", 8, pool="demo")
    nodes = Crowded(cluster)
    calls = IncidentActivities(
        cast("Any", None),
        nodes=cast("Any", nodes),
        tickets=cast("Any", None),
        notifier=cluster.notices,
        policy=IncidentPolicy(),
    )
    step = IncidentStep(incident="incident/c/node-0/GPU-1", cluster="c", node="node-0", uuid="GPU-1", opened_at=NOON)
    assert (await calls.cordon(step.model_copy(update={"scope": CordonScope.GPU}))).cordoned
    blocked = await calls.cordon(step.model_copy(update={"scope": CordonScope.NODE}))
    assert "out of service" in blocked.blocked
    view = await nodes.view("node-0")
    assert (view.unschedulable, [mark.scope for mark in view.marks]) == (False, [CordonScope.GPU])
