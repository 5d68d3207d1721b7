"""The embedded mode: Temporal's dev server, worker, controller, simulated cluster and SQLite in one process."""
