"""Attribution: which pod holds which GPU or MIG device, and to whom that pod is booked.

    kubelet: PodResources List ─▶ allocations ─┐
    kubelet: Pods API | checkpoint | snapshot ─┴▶ mapping.attribute ─▶ memory (tombstones) ─▶ exporter
    control plane ─▶ sync ─▶ store (signed, on the host) ─────────────────┘

Nothing here runs on a scrape, and nothing here has Kubernetes credentials.
"""
