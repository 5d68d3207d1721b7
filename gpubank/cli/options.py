"""Options that several commands have, with the same meaning in each."""

from typing import Annotated

import typer

PoolOption = Annotated[str | None, typer.Option("--pool", "-p", help="Only this pool.")]
ReasonOption = Annotated[str, typer.Option("--reason", "-r", help="Why; kept in the audit trail.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be decided, and whether it may be.")]
