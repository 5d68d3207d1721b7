"""Basic auth: a file of users with salted hashes, and a command that writes a line of it.

    echo -n 'a long password' | python -m nodeagent.exporter.auth prometheus >> users

The hash is slow on purpose; what was accepted once is remembered as a keyed digest, so that a scrape every few seconds
costs nothing.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
import sys
from pathlib import Path
from typing import Final, Self

from gpubank.domain.errors import PolicyError

ROUNDS: Final = 310_000
_SCHEME: Final = "pbkdf2-sha256"
_MOST_ROUNDS: Final = 10_000_000
_REMEMBERED: Final = 64


class Users:
    """Who may scrape."""

    def __init__(self, hashes: dict[str, tuple[int, bytes, bytes]]) -> None:
        """Take rounds, salt and hash by user."""
        self._hashes = hashes
        self._key = secrets.token_bytes(32)
        self._accepted: set[bytes] = set()
        self._nobody = (ROUNDS, secrets.token_bytes(16), secrets.token_bytes(32))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file of lines `user:pbkdf2-sha256$rounds$salt$hash`. Raises PolicyError that names the line."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PolicyError(f"users file {str(path)!r} cannot be read: {error}; name a file that can") from error
        hashes = {}
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            user, _, rest = line.strip().partition(":")
            try:
                scheme, rounds, salt, digest = rest.split("$")
                if scheme != _SCHEME or not user or not 0 < int(rounds) <= _MOST_ROUNDS:
                    raise ValueError(scheme)
                hashes[user] = (int(rounds), bytes.fromhex(salt), bytes.fromhex(digest))
            except ValueError as error:
                remedy = "write it with `python -m nodeagent.exporter.auth USER`"
                raise PolicyError(
                    f"users file {str(path)!r}, line {number}: is no user with a hash; {remedy}"
                ) from error
        if not hashes:
            raise PolicyError(f"users file {str(path)!r} names nobody, so nobody could scrape; add a line or unset it")
        return cls(hashes)

    def allows(self, header: str) -> bool:
        """Whether an Authorization header names a user and the user's password."""
        scheme, _, encoded = header.partition(" ")
        if scheme.lower() != "basic" or len(encoded) > 1024:
            return False
        mark = hmac.digest(self._key, encoded.encode("utf-8", "replace"), "sha256")
        if mark in self._accepted:
            return True
        try:
            user, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return False
        # A user who does not exist takes as long as one who does.
        rounds, salt, wanted = self._hashes.get(user, self._nobody)
        if not colon or not hmac.compare_digest(_hash(password, salt, rounds), wanted):
            return False
        if len(self._accepted) < _REMEMBERED:
            self._accepted.add(mark)
        return True


def line(user: str, password: str, *, rounds: int = ROUNDS) -> str:
    """Write the line of a user."""
    if not user or ":" in user or not user.isprintable():
        raise PolicyError(f"user {user!r} cannot be one: a name is printable and has no colon")
    if not password:
        raise PolicyError(f"user {user!r} has no password; give one on standard input")
    salt = secrets.token_bytes(16)
    return f"{user}:{_SCHEME}${rounds}${salt.hex()}${_hash(password, salt, rounds).hex()}"


def _hash(password: str, salt: bytes, rounds: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", password.encode(), salt, rounds)


def main() -> None:
    """Write a user's line to standard output; the password comes on standard input."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m nodeagent.exporter.auth USER < password\n")
        raise SystemExit(2)
    try:
        sys.stdout.write(line(sys.argv[1], sys.stdin.read().rstrip("\n")) + "\n")
    except PolicyError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
