"""How a workflow refuses what a person orders: before anything is written into its history."""

from temporalio.exceptions import ApplicationError


def refuse(why: str) -> None:
    """Refuse an order of a person, if there is a reason to; called by validators of updates."""
    if why:
        raise ApplicationError(why, type="PolicyError")
