"""Fixture `nvml_facts`: a pretended node under the real NVML binding.

The stand-in for `libnvidia-ml.so.1` is compiled from `tests/native`. Without a compiler the tests are skipped and say
why; with `CI=true` they fail instead.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.build import NoCompilerError, build
from tests.native.facts import ENVIRONMENT, NvmlFacts


@pytest.fixture(scope="session")
def nvml_library() -> Path:
    """Path of the compiled stand-in, alone in its folder, as LD_LIBRARY_PATH wants it."""
    try:
        return build()
    except NoCompilerError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no stand-in for NVML: {error}")
        pytest.skip(f"no stand-in for NVML: {error}")
    except subprocess.CalledProcessError as error:
        pytest.fail(f"the stand-in for NVML does not compile:\n{error.stderr}")


@pytest.fixture
def nvml_facts(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NvmlFacts]:
    """Facts of a node without GPUs, told by the stand-in in this process; what a test leaves hanging is let go."""
    # Loaded by its path, it answers for every library of its name: the binding finds it as it finds the real one.
    ctypes.CDLL(str(nvml_library), mode=ctypes.RTLD_GLOBAL)
    facts = NvmlFacts(tmp_path / "nvml.facts")
    facts.write()
    monkeypatch.setenv(ENVIRONMENT, str(facts.path))
    yield facts
    facts.system.clear()
    for gpu in facts.gpus.values():
        gpu["hang"] = 0
    facts.write()
