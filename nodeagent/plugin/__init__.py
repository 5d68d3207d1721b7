"""The device plugin: GPUs by class, one resource and one gRPC server each, in one process.

monitor (NVML, health) ─▶ inventory (pure) ─▶ agent ─▶ one server.ResourceServer per resource ◀─▶ kubelet
                                               ▲ watch: the kubelet's folder       ▲ control: quarantine, release
"""
