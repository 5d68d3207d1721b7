"""A further address of this machine that only this machine can reach: one on `lo`, as an alias."""

import fcntl
import socket
import struct
from contextlib import suppress
from typing import Final

_ALIAS: Final = b"lo:gpubank-lab"
_SET_ADDRESS: Final = 0x8916
_SET_NETMASK: Final = 0x891C
_SET_FLAGS: Final = 0x8914


def add(address: str) -> None:
    """Give `lo` the address; nothing if it has it. Raises OSError without the right to."""
    _call(_SET_ADDRESS, _internet(address))
    _call(_SET_NETMASK, _internet("255.255.255.255"))


def remove() -> None:
    """Take the address away again; nothing if it is gone."""
    with suppress(OSError):
        # An alias that is set down is no more.
        _call(_SET_FLAGS, struct.pack("H14x", 0))


def _internet(address: str) -> bytes:
    return struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))


def _call(request: int, value: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, request, struct.pack("16s16s", _ALIAS, value))
