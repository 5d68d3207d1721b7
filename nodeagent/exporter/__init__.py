"""The exporter: a process of its own that shows the node's GPUs, and whose they are, to Prometheus.

    NVML ─▶ telemetry ┐
    NVML events ─▶ xids ├─▶ collector (a thread, every few seconds) ─▶ page: immutable bytes ─▶ server ─▶ scrapes
    attribution ──────┘

A scrape copies bytes. It waits for nothing, asks nothing, and cannot be held up by a GPU, the kubelet or the network.
"""
