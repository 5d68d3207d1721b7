"""kubectl, of the control plane's own release: no server, but what people type at one."""

from typing import Final

from gpubank.lab.build import GoProgram
from gpubank.lab.components.kubernetes import program

# Its modules are listed apart: what only kubectl needs must not make other servers of the API server and its like.
KUBECTL: Final[GoProgram] = program("kubectl", wrapper="kubectl")
