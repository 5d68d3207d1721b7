"""The cache of built servers, with a `go` that only pretends: what is built when, and what a failure says."""

import dataclasses
import json
import re
import stat
import threading
from pathlib import Path

import pytest

from gpubank.lab import BuildError, golang
from gpubank.lab.build import GoProgram, ModuleFiles, SourceEdit, build, cached

PROGRAM = GoProgram(
    name="server",
    version="1.2.3",
    wrapper="etcd",
    package="example.test/server",
    variables=(("example.test/version", "v1"),),
    assets=(ModuleFiles("example.test/server", "crds", "crds"),),
)

# Answers what the build asks, writes each call down, and takes a moment to compile.
GO = """#!/bin/sh
echo "$*" >> {folder}/calls
case "$1" in
  version) echo "go version go{version} linux/amd64" ;;
  list) case "$*" in *Dir*) echo {folder}/module ;; esac ;;
  mod) exit 0 ;;
  build)
    test -e {folder}/broken && {{ echo "main.go:1: a great mess" >&2; exit 2; }}
    sleep 0.2
    while [ "$1" != -o ]; do shift; done
    echo binary > "$2" ;;
esac
"""


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a pretended Go toolchain that is the only one to be found."""
    folder = tmp_path / "go"
    (folder / "module" / "crds").mkdir(parents=True)
    (folder / "module" / "crds" / "kind.yaml").write_text("kind: CustomResourceDefinition\n")
    (folder / "module" / "main.go").write_text('const certs = "/etc/certs"\n')
    install(folder, "1.26.8")
    monkeypatch.setattr(golang, "_candidates", lambda: iter([folder / "go"]))
    return folder


def install(folder: Path, version: str) -> None:
    binary = folder / "go"
    binary.write_text(GO.format(folder=folder, version=version))
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)


def compilations(go: Path) -> int:
    return sum(line.startswith("build") for line in (go / "calls").read_text().splitlines())


def test_a_second_build_takes_what_the_first_has_made_and_asks_no_go(go: Path, tmp_path: Path) -> None:
    first = build(PROGRAM, root=tmp_path / "cache")
    (go / "go").unlink()
    second = build(PROGRAM, root=tmp_path / "cache")
    assert first == second == cached(PROGRAM, tmp_path / "cache")
    assert second.binary.read_text() == "binary\n"
    assert (second.assets / "crds" / "kind.yaml").exists()
    assert json.loads((second.folder / "build.json").read_text())["go"] == "1.26.8"


def test_a_newer_go_makes_no_other_server(go: Path, tmp_path: Path) -> None:
    before = build(PROGRAM, root=tmp_path / "cache")
    install(go, "1.28.1")
    assert build(PROGRAM, root=tmp_path / "cache") == before
    assert compilations(go) == 1


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"version": "1.2.4"}, id="version"),
        pytest.param({"wrapper": "kwok"}, id="pinned modules"),
        pytest.param({"variables": (("example.test/version", "v2"),)}, id="linker flags"),
        pytest.param({"tags": ("nothing",)}, id="build tags"),
        pytest.param({"assets": ()}, id="assets"),
        pytest.param({"edits": (SourceEdit("example.test/server", "main.go", "a", "b"),)}, id="edits"),
    ],
)
def test_whatever_changes_a_server_changes_its_folder(change: dict[str, object]) -> None:
    other = dataclasses.replace(PROGRAM, **change)  # type: ignore[arg-type]
    assert other.digest() != PROGRAM.digest()
    assert dataclasses.replace(PROGRAM).digest() == PROGRAM.digest()


def test_two_builds_at_once_compile_once(go: Path, tmp_path: Path) -> None:
    threads = [threading.Thread(target=build, args=(PROGRAM,), kwargs={"root": tmp_path / "cache"}) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compilations(go) == 1


def test_a_failed_build_shows_the_compilers_words_and_leaves_nothing_usable(go: Path, tmp_path: Path) -> None:
    (go / "broken").touch()
    with pytest.raises(BuildError, match="a great mess"):
        build(PROGRAM, root=tmp_path / "cache")
    assert cached(PROGRAM, tmp_path / "cache") is None
    (go / "broken").unlink()
    assert build(PROGRAM, root=tmp_path / "cache").binary.exists()
    assert [each.name for each in (tmp_path / "cache").glob(".scratch-*")] == []


def test_what_a_killed_build_left_is_cleared_by_the_next(go: Path, tmp_path: Path) -> None:
    (tmp_path / "cache" / ".scratch-dead").mkdir(parents=True)
    build(PROGRAM, root=tmp_path / "cache")
    assert not (tmp_path / "cache" / ".scratch-dead").exists()


def test_an_edit_that_no_longer_fits_its_source_stops_the_build(go: Path, tmp_path: Path) -> None:
    edit = SourceEdit("example.test/server", "main.go", '"/etc/certs"', 'os.Getenv("CERTS")')
    assert build(dataclasses.replace(PROGRAM, edits=(edit,)), root=tmp_path / "cache")
    stale = dataclasses.replace(edit, old='"/etc/other"')
    with pytest.raises(BuildError, match="occurs 0 times"):
        build(dataclasses.replace(PROGRAM, edits=(stale,)), root=tmp_path / "cache")
    assert (go / "module" / "main.go").read_text() == 'const certs = "/etc/certs"\n', "the module cache stays as it is"


@pytest.mark.parametrize("version", ["1.19.8", "1.26", "1.26.7", "1.26rc1", "1.26.7-vendor"])
def test_a_go_that_is_too_old_for_one_of_the_servers_is_named_with_the_remedy(
    go: Path, tmp_path: Path, version: str
) -> None:
    install(go, version)
    with pytest.raises(BuildError, match=rf"1\.26\.8 or newer.*is {re.escape(version)}\).*gpubank\[lab\]"):
        build(PROGRAM, root=tmp_path / "cache")
