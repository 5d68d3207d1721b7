"""The watchdog: hands a pool to the scheduler when the bank is dead, and back when it lives again; nothing else."""
