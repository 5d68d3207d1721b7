"""etcd: where the API server keeps everything. It forgets with the lab, so it need not flush to disk."""

from gpubank.lab.access import ADMIN, MASTERS, look
from gpubank.lab.build import GoProgram
from gpubank.lab.components.base import Component, Context

PROGRAM = GoProgram(name="etcd", version="3.7.3", wrapper="etcd", package="go.etcd.io/etcd/server/v3")


def _command(context: Context) -> list[str]:
    client, peer = f"https://{context.address('etcd')}", f"https://{context.address('etcd-peer')}"
    own, trusted = context.certificate("etcd"), context.authority.certificate
    return [
        "--name=lab",
        f"--data-dir={context.data('etcd')}",
        # A crash of the machine loses the lab anyway; a crash of the process loses nothing.
        "--unsafe-no-fsync",
        # A member alone wins every election; it need not wait a second before it stands for one.
        "--heartbeat-interval=20",
        "--election-timeout=200",
        # The API server sends bookmarks of a kind that nothing has happened to only once etcd told of progress. The
        # default of 10 minutes leaves such watches silent, and who takes silence for a dead connection loses sight.
        "--watch-progress-notify-interval=5s",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=lab={peer}",
        "--client-cert-auth",
        f"--trusted-ca-file={trusted}",
        f"--cert-file={own.certificate}",
        f"--key-file={own.key}",
        "--peer-client-cert-auth",
        f"--peer-trusted-ca-file={trusted}",
        f"--peer-cert-file={own.certificate}",
        f"--peer-key-file={own.key}",
        "--log-level=warn",
    ]


def _ready(context: Context) -> str | None:
    admin = context.authority.issue(ADMIN, group=MASTERS)
    return look(context.address("etcd"), "/readyz", context=context.authority.client_context(admin))


ETCD = Component(
    name="etcd",
    program=PROGRAM,
    command=_command,
    ready=_ready,
    ports=("etcd", "etcd-peer"),
)
