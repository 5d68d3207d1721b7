"""Who gives an order: what the API server says where there is one, else the OS user, who nobody vouches for."""

import getpass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gpubank.cli.door import Cluster


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
    try:
        return Identity(getpass.getuser(), verified=False)
    except (OSError, KeyError):  # a uid without a name, as in a container
        return Identity("unknown", verified=False)
