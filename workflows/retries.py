"""How activities are retried, and how long one attempt may take. Only words give up; else people and signals do."""

from datetime import timedelta
from typing import Final

from temporalio.common import RetryPolicy

ATTEMPT: Final = timedelta(seconds=30)
"""Longest attempt of an activity that may have much to do, as orders to many Loans."""

STEP: Final = timedelta(seconds=15)
"""Longest attempt of one step for one Loan or demand: a few reads and writes, which take a second on a busy cluster.

So long is a step in nobody's hands when its worker has died: no step says how far it is.
"""

LONG_ATTEMPT: Final = timedelta(minutes=15)
"""Longest attempt of one that reads a whole checkpoint; it heartbeats."""

HEARTBEAT: Final = timedelta(seconds=30)
"""Longest silence of a long attempt."""

LAST_LOOK: Final = timedelta(seconds=15)
"""Longest look at a checkpoint whose time is over; who hangs is not waited for any longer."""

STEADY: Final = RetryPolicy(
    initial_interval=timedelta(milliseconds=250), backoff_coefficient=2, maximum_interval=timedelta(seconds=30)
)
"""For effects: quick after a lost race, patient with a backend that is down."""

POLL: Final = RetryPolicy(
    initial_interval=timedelta(milliseconds=250), backoff_coefficient=1.3, maximum_interval=timedelta(seconds=2)
)
"""For what is waited for: most comes within a second or two, the rest is looked at every two seconds."""

ONCE: Final = RetryPolicy(maximum_attempts=1)
"""For a look whose failure is an answer."""

NOTICE_LIMIT: Final = timedelta(seconds=15)
"""How long a word to an owner is tried. Events are best effort; no recall and no return may hang on one."""
