"""Files on the host that are replaced as a whole: whoever reads one sees one moment, also after a power cut."""

import os
from pathlib import Path


def replace(path: Path, raw: bytes, *, previous: Path | None = None) -> None:
    """Write a file, for its owner alone, in place of the one that is there; that one is kept as `previous`.

    Raises OSError; the one that is there is then as it was.
    """
    folder = path.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = folder / f".{path.name}.new"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    if previous is not None and path.exists():
        previous.unlink(missing_ok=True)
        os.link(path, previous)
    os.replace(fresh, path)
    # The rename itself must survive a power cut, or an older file comes back.
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
