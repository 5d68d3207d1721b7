from pathlib import Path
from typing import Any

import pytest

from gpubank.controller.metadata import MetadataSync, metadata_for_nodes
from gpubank.domain.errors import BackendError, PolicyError
from gpubank.settings import MetadataSettings


async def test_metadata_is_served_over_mutual_tls_or_not_at_all() -> None:
    source: Any = None
    settings = MetadataSettings(address="127.0.0.1:0", certificate=Path("a"), key=Path("b"))
    with pytest.raises(PolicyError, match=r"metadata\.client_authorities is not set"):
        async with metadata_for_nodes(settings, source):
            pass


async def test_a_node_is_told_nothing_before_the_cluster_was_seen() -> None:
    source: Any = None
    with pytest.raises(BackendError, match="cannot be read"):
        MetadataSync(source).snapshot("gpu-0")
