"""Health of GPUs: what was seen, what it means by policy, and what it takes to be sound again.

    event or poll ─▶ book.HealthBook + policy.Policy ─▶ marks ─▶ unhealthy devices
    mark of a transient class ─▶ gone after a quiet period       mark of any other class ─▶ gone on release only

Marks are kept on disk: a restart heals nothing.
"""
