"""Compile the real servers from pinned Go modules into a cache outside the tree.

    recipe + go.mod + go.sum ──digest──▶ <cache>/<name>-<version>-<digest>/{<name>, assets/…, build.json}

A folder appears by one rename after everything in it is complete, so whoever sees it may use it. The Go release is not
part of the digest: a newer compiler does not make a pinned server another server. What a server needs beside its
binary (CRDs, webhook manifests) is copied from the same modules, so a warm start needs no Go at all.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from gpubank.lab import golang
from gpubank.lab.errors import BuildError, tail
from gpubank.lab.paths import cache_root
from gpubank.lab.progress import Progress, Report, Stage, silent

RECIPE: Final = 1
"""Raise it when this module changes what ends up in a cache folder."""

_SOURCE: Final = "source"
_SCRATCH: Final = ".scratch-"


@dataclass(frozen=True)
class ModuleFiles:
    """Files of a Go module that belong to the server: one file, or a folder's YAML files."""

    module: str
    path: str
    """Inside the module."""
    to: str
    """Inside the component's `assets` folder."""


@dataclass(frozen=True)
class SourceEdit:
    """One literal of a module's source that must be something else; it has to occur exactly once."""

    module: str
    file: str
    old: str
    new: str


@dataclass(frozen=True)
class GoProgram:
    """How one server is built."""

    name: str
    version: str
    wrapper: str
    """Folder below `gpubank/lab/go` whose go.mod and go.sum pin every module."""
    package: str
    """Import path of the main package."""
    variables: tuple[tuple[str, str], ...] = ()
    """Go variables set by the linker."""
    tags: tuple[str, ...] = ()
    edits: tuple[SourceEdit, ...] = ()
    assets: tuple[ModuleFiles, ...] = ()

    def digest(self) -> str:
        """Return what names the cache folder: equal inputs give equal digests, whichever machine or Go release."""
        pins = {file: hashlib.sha256(text.encode()).hexdigest() for file, text in self.pins().items()}
        recipe = {"recipe": RECIPE, "program": asdict(self), "pins": pins}
        return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()

    def pins(self) -> dict[str, str]:
        """Return the texts of go.mod and go.sum."""
        folder = resources.files("gpubank.lab") / "go" / self.wrapper
        return {file: (folder / file).read_text() for file in ("go.mod", "go.sum")}


@dataclass(frozen=True)
class Built:
    """A server in the cache."""

    program: GoProgram
    folder: Path

    @property
    def binary(self) -> Path:
        return self.folder / self.program.name

    @property
    def assets(self) -> Path:
        return self.folder / "assets"


def cached(program: GoProgram, root: Path | None = None) -> Built | None:
    """Return the built server, or None if the cache has not got it."""
    folder = (root or cache_root()) / f"{program.name}-{program.version}-{program.digest()[:12]}"
    return Built(program, folder) if folder.is_dir() else None


def build(program: GoProgram, *, report: Report = silent, root: Path | None = None) -> Built:
    """Return the built server, compiling it first if the cache has not got it.

    Two callers that want the same server compile it once: the second waits and finds it. Raises BuildError.
    """
    root = root or cache_root()
    if found := cached(program, root):
        return found
    root.mkdir(parents=True, exist_ok=True)
    report(Progress(program.name, Stage.BUILDING, "waiting for another build"))
    # One build at a time: the linker of a Kubernetes server takes all cores and gigabytes of memory.
    with _locked(root / ".build.lock"):
        if found := cached(program, root):
            return found
        for left_over in root.glob(f"{_SCRATCH}*"):
            # Of a build that was killed: whoever holds the lock is the only one at work.
            shutil.rmtree(left_over, ignore_errors=True)
        started = time.monotonic()
        toolchain = golang.find_toolchain()
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=root) as scratch:
            _compile(program, toolchain, Path(scratch), root / f"{program.name}.build.log", report)
            made = Path(scratch) / "made"
            facts = {"go": toolchain.version, "seconds": round(time.monotonic() - started, 1)}
            (made / "build.json").write_text(json.dumps(facts | asdict(program), indent=2) + "\n")
            target = root / f"{program.name}-{program.version}-{program.digest()[:12]}"
            made.rename(target)
        report(Progress(program.name, Stage.BUILT, str(target), time.monotonic() - started))
    return Built(program, target)


def _compile(program: GoProgram, toolchain: golang.Toolchain, scratch: Path, log: Path, report: Report) -> None:
    module, made = scratch / "module", scratch / "made"
    module.mkdir()
    made.mkdir()
    for file, text in program.pins().items():
        (module / file).write_text(text)
    go = _Go(program, toolchain, module, log)
    go.log.write_text("")
    report(Progress(program.name, Stage.BUILDING, "downloading modules"))
    go.run("list", "-deps", "-tags", ",".join(program.tags), program.package)
    for edited in sorted({edit.module for edit in program.edits}):
        _edit(go, scratch / _SOURCE / edited, edited, [edit for edit in program.edits if edit.module == edited])
    report(Progress(program.name, Stage.BUILDING, f"compiling with Go {toolchain.version}"))
    linker = " ".join(["-s", "-w", *(f"-X {variable}={value}" for variable, value in program.variables)])
    flags = ["-trimpath", "-ldflags", linker, "-tags", ",".join(program.tags)]
    go.run("build", *flags, "-o", str(made / program.name), program.package)
    for files in program.assets:
        _copy(go.folder_of(files.module) / files.path, made / "assets" / files.to)


class _Go:
    """Runs `go` in the wrapper module; what it says goes to the log."""

    def __init__(self, program: GoProgram, toolchain: golang.Toolchain, module: Path, log: Path) -> None:
        self.program, self.log = program, log
        self._toolchain, self._module = toolchain, module

    def run(self, *arguments: str) -> str:
        with self.log.open("a") as log:
            log.write(f"$ go {' '.join(arguments)}\n")
            log.flush()
            done = subprocess.run(
                [self._toolchain.go, *arguments],
                cwd=self._module,
                env=self._toolchain.environment(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                check=False,
            )
        if done.returncode:
            raise BuildError(
                f"{self.program.name} {self.program.version}: `go {arguments[0]}` failed with {done.returncode};"
                f" all of it is in {self.log}, the end is\n{tail(self.log)}"
            )
        return done.stdout

    def folder_of(self, module: str) -> Path:
        return Path(self.run("list", "-m", "-f", "{{.Dir}}", module).strip())


def _edit(go: _Go, copy: Path, module: str, edits: Iterable[SourceEdit]) -> None:
    """Build `module` from an edited copy; a build overlay would do, but Go refuses one inside its module cache."""
    shutil.copytree(go.folder_of(module), copy, copy_function=shutil.copyfile)
    for folder, _, _ in os.walk(copy):
        # copytree repeats the read-only modes of Go's module cache, which could be neither edited nor removed.
        os.chmod(folder, 0o755)
    for edit in edits:
        source = copy / edit.file
        text = source.read_text()
        if text.count(edit.old) != 1:
            raise BuildError(
                f"{go.program.name} {go.program.version}: {edit.old!r} occurs {text.count(edit.old)} times in"
                f" {edit.file} of {module}, not once; the edit in gpubank.lab.components needs a look"
            )
        source.write_text(text.replace(edit.old, edit.new))
    go.run("mod", "edit", f"-replace={module}={copy}")


def _copy(source: Path, target: Path) -> None:
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        return
    target.mkdir(parents=True)
    for file in sorted(source.glob("*.yaml")):
        shutil.copyfile(file, target / file.name)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
