"""Alembic's entry: runs the migrations on the connection that `gpubank.adapters.ledger.schema` hands over."""

from alembic import context

from gpubank.adapters.ledger.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("the ledger is migrated by `gpubank ledger migrate`; do not call alembic yourself")
# The connection's transaction is already open: schema and version move together, on SQLite too.
context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
