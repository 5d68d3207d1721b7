"""The commands of the hook file: `checkpoint` for the exec transport, `relay` for the annotation transport.

    python gpubank_hook.py checkpoint --id ID --epoch N --deadline TIME --reason TEXT [--wait SECONDS]
    python gpubank_hook.py checkpoint --id ID --status
    python gpubank_hook.py relay --pod NAME

`checkpoint` asks the trainer in the same container over its HTTP responder; the last line of its output is the answer
as JSON. Exit codes: 0 durable; 75 not yet, ask again; 1 failed; 66 the id is unknown (with --status); 64 there is no
hook here.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import ssl
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

from gpubank.hook.protocol import parse_time, utc_now
from gpubank.hook.responder import CHECKPOINT_PATH

EXIT_DURABLE = 0
EXIT_FAILED = 1
EXIT_UNSUPPORTED = 64
EXIT_UNKNOWN = 66
EXIT_RETRY = 75
STATUS_ANNOTATION = "checkpoint.platform.aik8s.run/status"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_SECONDS = 10.0
_MAX_REPLY_BYTES = 1 << 20


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_UNSUPPORTED, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    options = _parser().parse_args(arguments)
    return int(options.run(options))


def checkpoint(options: argparse.Namespace) -> int:
    """Ask for a checkpoint, or with --status how far one is, and wait for it to be durable."""
    address = options.url or _own_address()
    if not address:
        sys.stderr.write("there is no checkpoint hook here: set GPUBANK_HOOK_PORT, or name the responder by --url\n")
        return EXIT_UNSUPPORTED
    try:
        end = time.monotonic() + _patience(options)
        status, answer = _call(address, options)
        while status in (200, 202) and answer.get("state") in ("accepted", "saving") and time.monotonic() < end:
            time.sleep(min(0.2, max(0.0, end - time.monotonic())))
            status, answer = _call(address, options)
    except (OSError, ValueError, http.client.HTTPException) as error:
        sys.stderr.write(f"the checkpoint hook at {address} does not answer: {error}\n")
        return EXIT_RETRY
    if status == 404 and options.status:
        sys.stderr.write(f"{answer.get('message', 'unknown request')}\n")
        return EXIT_UNKNOWN
    if status in (404, 501):
        sys.stderr.write(f"{address} is no checkpoint hook: {answer.get('message', status)}\n")
        return EXIT_UNSUPPORTED
    if status not in (200, 202):
        answer = {"id": options.id, "state": "failed", "message": str(answer.get("message", f"HTTP status {status}"))}
    sys.stdout.write(json.dumps(answer) + "\n")
    return {"durable": EXIT_DURABLE, "failed": EXIT_FAILED}.get(str(answer.get("state")), EXIT_RETRY)


def relay(options: argparse.Namespace) -> int:
    """Copy the status file into the annotation of the pod whenever it changes, until SIGTERM."""
    stop = False

    def note_stop(signum: int, frame: FrameType | None) -> None:
        nonlocal stop
        stop = True

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, note_stop)
    if not options.status_file or not options.namespace or not options.api_server:
        sys.stderr.write("relay needs --status-file, --namespace and --api-server outside a pod\n")
        return EXIT_UNSUPPORTED
    published = ""
    while not stop:
        try:
            content = Path(options.status_file).read_text(encoding="utf-8").strip()
            if content != published:
                _annotate(options, content)
                published = content
        except FileNotFoundError:
            pass  # the trainer has not been asked anything yet
        except (OSError, ValueError, http.client.HTTPException) as error:
            sys.stderr.write(f"cannot publish the status of pod {options.pod!r}, trying again: {error}\n")
        if options.once:
            return EXIT_DURABLE if published else EXIT_RETRY
        time.sleep(options.every)
    return EXIT_DURABLE


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="gpubank_hook", description="The checkpoint hook of a training run.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    ask = commands.add_parser("checkpoint", help="ask the trainer in this container for a checkpoint")
    ask.add_argument("--id", required=True, help="idempotency key of the request")
    ask.add_argument("--epoch", type=int, default=0, help="ordinal of the recall")
    ask.add_argument("--deadline", help="RFC 3339 time by which the checkpoint must be durable")
    ask.add_argument("--reason", default="", help="why, for the log of the trainer")
    ask.add_argument("--status", action="store_true", help="only ask how far the request is")
    ask.add_argument("--wait", type=float, help="seconds to wait for durable; by default until the deadline")
    ask.add_argument("--url", help="base URL of the responder; by default that of GPUBANK_HOOK_HOST and _PORT")
    ask.set_defaults(run=checkpoint)
    copy = commands.add_parser("relay", help="publish the status file as the pod's annotation (sidecar)")
    copy.add_argument("--pod", default=os.environ.get("POD_NAME") or os.environ.get("HOSTNAME"))
    copy.add_argument("--namespace", default=os.environ.get("POD_NAMESPACE") or _read(_ACCOUNT / "namespace"))
    copy.add_argument("--uid", default=os.environ.get("GPUBANK_HOOK_UID"), help="publish only on the pod with this uid")
    copy.add_argument("--status-file", default=os.environ.get("GPUBANK_HOOK_STATUS_FILE"))
    copy.add_argument("--api-server", default=_api_server(), help="https URL; by default that of the pod's cluster")
    copy.add_argument("--ca-file", default=str(_ACCOUNT / "ca.crt"))
    copy.add_argument("--token-file", default=str(_ACCOUNT / "token"))
    copy.add_argument("--every", type=float, default=0.5, help="seconds between two looks at the file")
    copy.add_argument("--once", action="store_true", help="look once and end")
    copy.set_defaults(run=relay)
    return parser


def _own_address() -> str:
    try:
        return Path(os.environ["GPUBANK_HOOK_ADDRESS_FILE"]).read_text(encoding="utf-8").strip()
    except (KeyError, OSError):
        host, port = os.environ.get("GPUBANK_HOOK_HOST", "127.0.0.1"), os.environ.get("GPUBANK_HOOK_PORT")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if port and ":" in host else f"http://{host}:{port}" if port else ""


def _patience(options: argparse.Namespace) -> float:
    if options.wait is not None:
        return float(options.wait)
    if options.status or not options.deadline:
        return 0.0
    return (parse_time(options.deadline) - utc_now()).total_seconds()


def _call(address: str, options: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    if options.status:
        return _exchange(address, "GET", f"{CHECKPOINT_PATH}/{quote(options.id, safe='')}", None)
    request = {"id": options.id, "epoch": options.epoch, "deadline": options.deadline, "reason": options.reason}
    return _exchange(address, "POST", CHECKPOINT_PATH, json.dumps(request))


def _exchange(address: str, method: str, path: str, body: str | None) -> tuple[int, dict[str, Any]]:
    # http.client, not urllib: a proxy from the environment must not get between two processes of one container.
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=_SECONDS)
    try:
        connection.request(method, path, body=body, headers={"Content-Type": "application/json"})
        response = connection.getresponse()
        found = json.loads(response.read(_MAX_REPLY_BYTES))
        if not isinstance(found, dict):
            raise ValueError("the answer is not a JSON object")
        return response.status, found
    finally:
        connection.close()


def _annotate(options: argparse.Namespace, content: str) -> None:
    metadata: dict[str, Any] = {"annotations": {STATUS_ANNOTATION: content}}
    if options.uid:
        metadata["uid"] = options.uid  # immutable: the patch is refused by a later pod of the same name
    server = urlsplit(options.api_server)
    context = ssl.create_default_context(cafile=options.ca_file)
    connection = http.client.HTTPSConnection(server.netloc, timeout=_SECONDS, context=context)
    try:
        connection.request(
            "PATCH",
            f"/api/v1/namespaces/{quote(options.namespace)}/pods/{quote(options.pod)}",
            body=json.dumps({"metadata": metadata}),
            headers={
                "Authorization": f"Bearer {_read(Path(options.token_file))}",
                "Content-Type": "application/merge-patch+json",
                "Accept": "application/json",
            },
        )
        response = connection.getresponse()
        detail = response.read(_MAX_REPLY_BYTES)
        if response.status != 200:
            raise OSError(f"the API server answers {response.status}: {detail[:300].decode(errors='replace')}")
    finally:
        connection.close()


def _api_server() -> str:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        return ""
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
