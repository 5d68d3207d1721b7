"""Device classes: what a GPU is called, by rules that a platform can read and change.

    NVML's facts ─▶ facts.Facts ─▶ classify(facts, rulebook) ─▶ Verdict: class, partition, resource, reason
    rules.yaml or a ConfigMap's mount ─▶ rules.load ─▶ rulebook.Rulebook

A GPU belongs to the class that lists its exact product name and whose memory band holds its memory, or to none.
"""
