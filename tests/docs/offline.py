"""Scenes of the pages whose commands need no cluster: what each page takes for granted, and its walk."""

import contextlib
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from nodeagent.plugin.control import CONTROL_SOCKET
from tests.docs.reading import ROOT, written
from tests.docs.shell import Shell
from tests.docs.walk import Walk
from tests.native.facts import NvmlFacts
from tests.support.waiting import until

DEMO_SECONDS: Final = 180.0


@dataclass(frozen=True)
class Desk:
    """A reader's machine."""

    folder: Path
    """The reader's copy of the project, where commands are typed."""
    env: Mapping[str, str]
    gpus: NvmlFacts
    """What the machine's driver says of its GPUs."""

    @contextlib.contextmanager
    def walk(self, page: str, names: Mapping[str, str] | None = None, **env: str) -> Iterator[Walk]:
        """Open a page in a terminal of its own."""
        with Shell(self.folder / ".terminal", {**self.env, **env}, self.folder) as shell:
            walk = Walk(page, shell, names)
            yield walk
            assert not walk.left, f"{walk.left[0]} was not reached"


async def readme(desk: Desk) -> None:
    with desk.walk("README.md") as walk:
        await walk.on_to("make demo", timeout=DEMO_SECONDS)
        await walk.to_the_end()


async def crash_matrix(desk: Desk) -> None:
    with desk.walk("docs/crash-matrix.md") as walk:
        await walk.to_the_end()


async def attribute_gpus(desk: Desk) -> None:
    with desk.walk("docs/how-to/attribute-gpus.md") as walk:
        await walk.to_the_end()
    assert (desk.folder / "users").read_text().startswith("prometheus:")


async def classify_gpus(desk: Desk) -> None:
    page = "docs/how-to/classify-gpus.md"
    gpu = desk.gpus.gpu("GPU-0")
    state = desk.folder / "state"
    with desk.walk(page, {"GPU-…": gpu}, GPUBANK_NODEAGENT_STATE_DIR=str(state)) as walk:
        (shown,) = [each.shown for each in walk.left if each.text == "cat facts.json"]
        (desk.folder / "facts.json").write_text("\n".join(shown) + "\n")
        await walk.on_to("gpubank nodeagent rules")
        (added,) = next(each for each in written(page) if isinstance(each, list))
        _add_class(desk.folder / "rules.yaml", added)
        await walk.on_to("gpubank nodeagent classify")
        with _plugin(desk, state):
            await walk.to_the_end()


def _add_class(file: Path, added: Mapping[str, object]) -> None:
    """Do to the rules what the page asks of their owner."""
    configmap = yaml.safe_load(file.read_text())
    ((name, text),) = configmap["data"].items()
    rules = yaml.safe_load(text)
    rules["classes"].append(added)
    configmap["data"][name] = yaml.safe_dump({**rules, "revision": "with-x200"})
    file.write_text(yaml.safe_dump(configmap))


@contextlib.contextmanager
def _plugin(desk: Desk, state: Path) -> Iterator[None]:
    """Run the device plugin, as the DaemonSet does on a node."""
    folders = {"pluginDirectory": desk.folder / "plugins", "registryDirectory": desk.folder / "registry"}
    for folder in (*folders.values(), state):
        folder.mkdir()
    config = {"stateDirectory": str(state), **{name: str(path) for name, path in folders.items()}}
    (desk.folder / "nodeagent.yaml").write_text(yaml.safe_dump(config))
    log = desk.folder / "plugin.log"
    with log.open("w") as output:
        command = [sys.executable, "-m", "nodeagent.plugin", "--config", str(desk.folder)]
        process = subprocess.Popen(command, cwd=ROOT, env=desk.env, stdout=output, stderr=output)
    try:
        until((state / CONTROL_SOCKET).exists, "the plugin's control socket", say=log.read_text)
        yield
    finally:
        process.kill()
        process.wait()


async def make_training_recallable(desk: Desk) -> None:
    names = {"/tmp/digits": str(desk.folder / "digits")}
    with desk.walk("docs/how-to/make-training-recallable.md", names) as walk:
        await walk.to_the_end()
    assert (desk.folder / "train" / "gpubank_hook.py").is_file()


SCENES: Final[Mapping[str, Callable[[Desk], Awaitable[None]]]] = {
    "README.md": readme,
    "docs/crash-matrix.md": crash_matrix,
    "docs/how-to/attribute-gpus.md": attribute_gpus,
    "docs/how-to/classify-gpus.md": classify_gpus,
    "docs/how-to/make-training-recallable.md": make_training_recallable,
}
