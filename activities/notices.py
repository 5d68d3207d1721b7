"""Words to the owners of Workloads."""

from temporalio import activity

from activities.interfaces import NoticeCalls
from gpubank.domain.steps import Notice
from gpubank.ports import Notifier


class NoticeActivities(NoticeCalls):
    """Implements `NoticeCalls` on any notifier."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier

    @activity.defn(name="notices.tell")
    async def tell(self, notice: Notice) -> None:
        """Tell the owner of a Workload, once per key."""
        await self._notifier.notify(
            key=notice.key,
            pool=notice.pool,
            workload=notice.workload,
            reason=notice.reason,
            message=notice.message,
        )
