"""Who gives an order: what the API server says where there is one, else the OS user, who nobody vouches for."""

import getpass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpubank.domain.errors import PolicyError

if TYPE_CHECKING:
    from gpubank.cli.door import Cluster


LONGEST_REASON: Final = 1024


class Identity(NamedTuple):
    """A person's name, and whether the API server confirmed it."""

    name: str
    verified: bool

    def __str__(self) -> str:
        return self.name if self.verified else f"{self.name} (unverified)"


async def identity_of(cluster: "Cluster") -> Identity:
    """Return who is asking; an OS user is marked unverified, for anybody may set it."""
    confirmed = await cluster.whoami()
    if confirmed is not None:
        return Identity(confirmed, verified=True)
    return os_identity()


def os_identity() -> Identity:
    """Return the OS user, for orders that reach no cluster."""
    try:
        return Identity(getpass.getuser(), verified=False)
    except (OSError, KeyError):  # a uid without a name, as in a container
        return Identity("unknown", verified=False)


def said(who: Identity, reason: str, *, dry_run: bool) -> dict[str, Any]:
    """Who gave an order, and why, for programs."""
    return {"dryRun": dry_run, "identity": who.name, "verified": who.verified, "reason": reason}


def check_reason(reason: str) -> None:
    """Refuse a reason that is too long to be shown."""
    if len(reason) > LONGEST_REASON:
        raise PolicyError(f"the reason has {len(reason)} characters; shorten it to {LONGEST_REASON}")
