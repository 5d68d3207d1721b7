"""Temporal on the lab's PostgreSQL, as a component: for whoever evaluates the bank with the server of production."""

from typing import Final

from gpubank.lab.components.base import Component, Context
from gpubank.lab.components.postgres import server as postgres_server
from gpubank.lab.temporal import PORTS, PROGRAM, SQL_TOOL, TemporalServer

NAME: Final = "temporal"
FRONTEND: Final = PORTS[0]
"""Name of the port for clients."""


def server(context: Context) -> TemporalServer:
    """Return the lab's Temporal server."""
    ports = {name: context.port(name) for name in PORTS}
    return TemporalServer(postgres_server(context).url, context.data(NAME), ports=ports)


TEMPORAL = Component(
    name=NAME,
    program=PROGRAM,
    tools=(SQL_TOOL,),
    command=lambda context: server(context).arguments(),
    ready=lambda context: server(context).missing(),
    ports=PORTS,
    depends_on=("postgres",),
    prepare=lambda context: server(context).prepare(),
    settle=lambda context: server(context).settle(),
    # What it has in memory is in PostgreSQL too, and goes with the lab.
    stop_grace=1,
)
