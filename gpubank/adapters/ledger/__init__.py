"""The ledger in SQL: SQLite in the embedded mode, PostgreSQL in production, one code for both."""

from gpubank.adapters.ledger.engine import make_engine
from gpubank.adapters.ledger.schema import migrate
from gpubank.adapters.ledger.store import SqlLedger

__all__ = ["SqlLedger", "make_engine", "migrate"]
