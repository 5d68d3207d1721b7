"""Measurements: one runnable module per comparison, each prints a table and takes `--json FILE`.

python -m benchmarks.decide      decisions over 1,000 to 100,000 loans
python -m benchmarks.turn        one turn of a pool's loop with 1,000 groups and 10,000 workloads
python -m benchmarks.reclaim     from a demand to its admission, over Kueue's own preemption (lab)
python -m benchmarks.kueue       Kueue's admission rate with the bank over without (lab)
python -m benchmarks.worker      memory, events and recalls per second of the worker (dev server)
"""
