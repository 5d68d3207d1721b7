"""`python -m nodeagent.plugin.alive [FOLDER]`: exits with 0 if the agent of this node answers on its control socket.

For the kubelet's probes: standard library only, for it is started again and again.
"""

import sys
from pathlib import Path
from typing import Final

from gpubank.domain.errors import BankError
from nodeagent.plugin.client import ask

STATE: Final = Path("/var/lib/gpubank/nodeagent")
"""Where the agent's state is by default (`stateDirectory`)."""


def main() -> int:
    """Ask once; says why not on standard error."""
    try:
        ask(Path(sys.argv[1]) if len(sys.argv) > 1 else STATE, order="inspect")
    except BankError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
