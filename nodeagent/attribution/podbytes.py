"""Name, namespace and UID out of a marshalled v1.Pod, without its schema.

The kubelet's Pods API answers with whole pods, some ten kilobytes each, of which three fields matter. Only the
wire format is read: a field is a number, a kind, and as many bytes as the kind says.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

_METADATA: Final = 1
_NAME: Final = 1
_NAMESPACE: Final = 3
_UID: Final = 5

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class PodName(NamedTuple):
    """Which pod."""

    namespace: str
    name: str
    uid: str


def read_pod(raw: bytes) -> PodName | None:
    """Return which pod it is; None if the bytes are no pod."""
    try:
        metadata = next((value for number, value in _fields(memoryview(raw)) if number == _METADATA), None)
        if metadata is None:
            return None
        found = {number: bytes(value).decode() for number, value in _fields(metadata) if number in _WANTED}
    except (ValueError, UnicodeDecodeError):
        return None
    if not all(number in found for number in _WANTED):
        return None
    return PodName(found[_NAMESPACE], found[_NAME], found[_UID])


_WANTED: Final = frozenset({_NAME, _NAMESPACE, _UID})


def _fields(raw: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield number and bytes of every field that has bytes. Raises ValueError where the format breaks."""
    place = 0
    while place < len(raw):
        tag, place = _varint(raw, place)
        kind = tag & 7
        if kind == _BYTES:
            length, place = _varint(raw, place)
            if length > len(raw) - place:
                raise ValueError("a field is longer than the message")
            yield tag >> 3, raw[place : place + length]
            place += length
        elif kind == _VARINT:
            _, place = _varint(raw, place)
        elif kind in (_FIXED64, _FIXED32):
            place += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError("a field is of no kind that is known")


def _varint(raw: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(raw):
            raise ValueError("the message ends inside a number")
        byte = raw[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, place
    raise ValueError("a number is too long")
