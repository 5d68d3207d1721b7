"""Local processes that outlive whoever started them, and are never mistaken for another.

Fake nodes run nothing, so a pod's command runs here, beside the lab or the in-memory cluster. Three things make that
safe: a process leads a session of its own, so a signal reaches its whole tree and ours never reaches it by accident;
it is known by pid **and** start time, so a recycled pid is never signalled; and it leaves its exit code in a file, so
that a successor of a crashed caller, which is not its parent, still learns how it ended.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Final

PORTS: Final = range(10_000, 20_000)
"""What servers listen on: below the ports that the kernel gives to connections, which it would also give to the
connection that looks whether a server is there yet; that one then answers itself, and the server ends."""

POLL: Final = 0.02
"""Seconds between two looks at a process that is being waited for."""
KILLED: Final = 128 + signal.SIGKILL
"""Exit code of a process that was killed before it could leave one, in the shell's convention."""

_PROC: Final = Path("/proc")

# The shell stays the leader: `:` as trap, not an empty one, because only a handler is reset for the child, which must
# see SIGTERM. The code appears by rename, so that nobody reads half of it.
_SUPERVISED: Final = """trap : TERM INT HUP
file="$1" folder="$2"; shift 2
cd -- "$folder" || exit 126
"$@"
code=$?
echo "$code" > "$file.part" && mv -f -- "$file.part" "$file"
exit "$code"
"""


@dataclass(frozen=True)
class ProcessId:
    """A process for good: the pid alone names another process after this one is gone."""

    pid: int
    started: str
    """When it started, as the system says it; compared, never interpreted."""

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """Return the identity of the live process `pid`, or None if there is none."""
        started = _start_of(pid)
        return cls(pid, started) if started is not None else None

    def alive(self) -> bool:
        """Tell whether this very process still runs; a zombie does not, and one of our own is laid to rest."""
        if _start_of(self.pid) == self.started:
            return True
        # Only now: one that ended after a wait and before the look would stay a zombie, which others take for alive.
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        return False

    def signal(self, number: signal.Signals) -> bool:
        """Send `number` to the process and its session; False if it is gone."""
        if not self.alive():
            return False
        for send in (os.killpg, os.kill):
            # The second is for a process that leads no group: a child of one that was started here.
            with suppress(ProcessLookupError):
                send(self.pid, number)
                return True
        return False


def launch(argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> ProcessId:
    """Start `argv` as the leader of a new session, its output appended to `log`; it survives the caller.

    Raises OSError if the program cannot be started.
    """
    program = shutil.which(argv[0], path=env.get("PATH"))
    if program is None:
        raise FileNotFoundError(f"no program {argv[0]!r} to start")
    log.parent.mkdir(parents=True, exist_ok=True)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    # subprocess.Popen would warn about a child left running, which is just what is wanted here.
    pid = os.posix_spawn(program, list(argv), dict(env), file_actions=actions, setsid=True)
    return ProcessId.of(pid) or ProcessId(pid, "gone")


def stop(process: ProcessId, grace: float, *, first: signal.Signals = signal.SIGTERM) -> bool:
    """Send `first`, and SIGKILL after `grace` seconds; without grace only SIGKILL.

    Return when the process is gone; False if it took SIGKILL.
    """
    if grace > 0:
        process.signal(first)
    deadline = time.monotonic() + grace
    while process.alive():
        if time.monotonic() >= deadline:
            process.signal(signal.SIGKILL)
            while process.alive():
                time.sleep(POLL)
            return False
        time.sleep(POLL)
    return True


def free_port() -> int:
    """Return a TCP port of loopback that nobody listens on now and no connection is given."""
    random = SystemRandom()
    while True:
        if is_free(port := random.choice(PORTS)):
            return port


def is_free(port: int) -> bool:
    """Tell whether nobody has a TCP port of loopback now."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class LocalProcess:
    """One pod's command as a local process, with the life a kubelet gives a container.

    Exit codes follow the shell: 128 + n for a process that signal n ended.
    """

    def __init__(self, identity: ProcessId, exit_file: Path) -> None:
        self.identity = identity
        self.exit_file = exit_file

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        exit_file: Path,
        log: Path,
        folder: Path | None = None,
    ) -> "LocalProcess":
        """Start `argv` in `folder` (default: the current one); it will leave its exit code in `exit_file`.

        A command that does not exist ends with 127, as in a shell.
        """
        exit_file.parent.mkdir(parents=True, exist_ok=True)
        exit_file.unlink(missing_ok=True)
        shell = ["/bin/sh", "-c", _SUPERVISED, "sh", str(exit_file), str(folder or Path.cwd()), *argv]
        return cls(launch(shell, env=env, log=log), exit_file)

    def exit_code(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        # First alive, then the file: the other way round an end between the two looks would read as killed.
        if self.identity.alive():
            return None
        try:
            return int(self.exit_file.read_text())
        except FileNotFoundError:
            return KILLED

    async def wait(self) -> int:
        """Wait for the end and return the exit code."""
        while (code := self.exit_code()) is None:  # noqa: ASYNC110 - no event tells of a process that is not our child
            await asyncio.sleep(POLL)
        return code

    async def stop(self, grace: float) -> int:
        """Send SIGTERM, SIGKILL after `grace` seconds, and return the exit code when the process is gone."""
        self.identity.signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self.wait(), grace)
        except TimeoutError:
            self.identity.signal(signal.SIGKILL)
            return await self.wait()


def _start_of(pid: int) -> str | None:
    """Return when the live process `pid` started, or None; zombies are not alive."""
    if not _PROC.is_dir():
        done = subprocess.run(
            ["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        state, _, started = done.stdout.strip().partition(" ")
        return started.strip() if started and not state.startswith("Z") else None
    try:
        # The command's name stands in parentheses and may hold anything, parentheses too.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, threads, started = fields[0], int(fields[17]), fields[19]
    # The first thread of a killed server may be a zombie while the others still hold its sockets.
    dead = state in "ZX" and threads <= 1
    return None if dead else started
