"""Names of conditions and of their reasons; every reader and writer takes them from here."""

from typing import Final

# Types -----------------------------------------------------------------------------------------------------

READY: Final = "Ready"
"""Every kind: the object is well, and what it says is in force."""

OVERSUBSCRIBED: Final = "Oversubscribed"
"""GPUPool: the guarantees exceed the capacity; those beyond it are not in force."""

SHRUNK: Final = "Shrunk"
"""GPUPool: the nodes offer fewer GPUs than the platform vouches for."""

FROZEN: Final = "Frozen"
"""GPUPool: no new loan and no new recall."""

FAIL_SAFE: Final = "FailSafe"
"""GPUPool: the watchdog has handed the pool to Kueue's own borrowing."""

APPROVED: Final = "Approved"
"""CapacityLease: an admin of the platform has agreed to this very spec; only then it protects."""

PRIORITY_UNLISTED: Final = "PriorityUnlisted"
"""GPUPool: work in its queues names a priority class that the pool does not allow."""

# Reasons ---------------------------------------------------------------------------------------------------

APPLIED: Final = "Applied"
"""What the spec says is in force."""

INVALID: Final = "Invalid"
"""The spec breaks a rule of its kind; the message names it."""

POOL_NOT_FOUND: Final = "PoolNotFound"
GROUP_NOT_FOUND: Final = "GroupNotFound"

NO_SHARE: Final = "NoShare"
"""The pool gives this group no share."""

BEYOND_SHARE: Final = "BeyondShare"
"""The policy asks more than the group's share of the pool."""

FOREIGN_NAMESPACE: Final = "ForeignNamespace"
"""The policy stands in a namespace that is not its group's."""

DUPLICATE: Final = "Duplicate"
"""An older policy for the same group and pool is in force."""

NAMESPACE_TAKEN: Final = "NamespaceTaken"
"""An older group already has the namespace."""

BEYOND_CAPACITY: Final = "BeyondCapacity"
"""The guarantee does not fit what the pool has left."""

BACKEND_CONFLICT: Final = "BackendConflict"
"""Kueue and Volcano would both own the pool."""

BACKEND_MISCONFIGURED: Final = "BackendMisconfigured"
"""Kueue lacks a setting that explicit loans need; the message names it."""

DELETING: Final = "Deleting"
"""The policy, its pool or its group is being deleted: it guarantees nothing any more, and what it lends comes back."""

LOANS_OPEN: Final = "LoansOpen"
"""Deletion waits until the open loans have ended."""

QUEUE_IN_USE: Final = "QueueInUse"
"""Something still runs on a queue that is no longer wanted."""

BACKEND_UNREACHABLE: Final = "BackendUnreachable"
"""The scheduler does not answer; nothing is changed until it does."""

SHARES_EXCEED_CAPACITY: Final = "SharesExceedCapacity"
"""The shares may ask for more than the pool has."""

WITHIN_CAPACITY: Final = "WithinCapacity"
"""What is promised or expected is there."""

NODES_MISSING: Final = "NodesMissing"
"""The ready nodes offer less than the platform vouches for."""

FREEZE_ORDERED: Final = "FreezeOrdered"
"""Somebody set spec.freeze."""

NOT_ORDERED: Final = "NotOrdered"
"""Nobody asked for it."""

AWAITING_APPROVAL: Final = "AwaitingApproval"
"""Nobody of the platform has agreed to the lease as it stands."""

LEASE_APPROVED: Final = "Approved"
"""Reason of `Approved` while it is true."""

REVOKED: Final = "Revoked"
"""The approval of a lease was taken back."""

EXPIRED: Final = "Expired"
"""The lease has ended."""

TOO_LONG: Final = "TooLong"
"""The lease ends later than 24 h, or the pool's maxLease, after it was made."""

NO_POLICY: Final = "NoPolicy"
"""The group has no policy in force in the pool."""

BEYOND_LIMIT: Final = "BeyondLimit"
"""The group's leases in the pool are for more GPUs than it may borrow."""

CLASS_NOT_ALLOWED: Final = "ClassNotAllowed"
"""Work names a priority class that allowedPriorityClasses does not list."""

CLASSES_ALLOWED: Final = "ClassesAllowed"
"""All work names allowed priority classes, or none."""

WATCHDOG_ACTED: Final = "WatchdogActed"
"""The bank's heartbeat was missing for failSafeAfter."""
