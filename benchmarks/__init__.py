"""Measurements: one runnable module per comparison, each prints a table and takes `--json FILE`.

    python -m benchmarks.decide      decisions over 1,000 to 100,000 loans
    python -m benchmarks.turn        rounds of a pool's loop with 1,000 groups and 10,000 Workloads
    python -m benchmarks.worker      idle Loans' memory, a Loan's events, recalls a second; SQLite and PostgreSQL
    python -m benchmarks.kueue       Kueue's admissions a second with the bank over without it (lab)
    python -m benchmarks.reclaim     from a demand to its admission, over Kueue's own preemption (lab)
    python -m benchmarks.scale       many groups under traffic: how soon demands are acted on, at what cost (lab)
    python -m benchmarks.plugin      registering and handing out of the device plugin over NVIDIA's
    python -m benchmarks.exporter    what a scrape costs, and a node's whole agent
    python -m benchmarks.metadata    how late nodes know a new pod, and what that costs
    python -m benchmarks.mutation    of small wrong changes to domain and decisions, how many a test notices

Results with machine, versions and date are in docs/benchmarks.md.
"""
