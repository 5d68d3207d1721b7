"""The lab serves whoever comes with its kubeconfig."""

import stat

from lightkube import Client, KubeConfig
from lightkube.resources.core_v1 import Node

from gpubank.lab import Lab


def test_the_kubeconfig_leads_to_ready_nodes_with_gpus(lab: Lab) -> None:
    assert lab.is_up()
    assert stat.S_IMODE(lab.kubeconfig.stat().st_mode) == 0o600
    client = Client(config=KubeConfig.from_file(lab.kubeconfig), trust_env=False)
    nodes = list(client.list(Node, labels={"accelerator.aik8s.run/pool": "h100-pool"}))
    client.close()
    assert len(nodes) == 16
    for node in nodes:
        assert node.status is not None
        assert (node.status.allocatable or {})["nvidia.com/gpu"] == "8"
        assert any(each.type == "Ready" and each.status == "True" for each in node.status.conditions or ())
