"""`gpubank lease ...`: whose borrowed work no recall takes, until when, and who agreed."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gpubank.cli.context import run, settings_of
from gpubank.cli.door import Door, open_door
from gpubank.cli.identity import Identity, check_reason, identity_of, said
from gpubank.cli.objects import NamespaceOption
from gpubank.cli.options import DryRunOption, ReasonOption
from gpubank.cli.output import Column, Output, OutputOption, instant, print_facts, show_one
from gpubank.cli.watch import Row, WatchOption, check_whole, present
from gpubank.domain.errors import PolicyError

if TYPE_CHECKING:
    from gpubank.cli.leasebook import Leases, LeaseView
    from gpubank.domain.lease import CapacityLease, CapacityLeaseStatus

app = typer.Typer(no_args_is_help=True, help="The leases: whose borrowed work no recall takes, and until when.")

COLUMNS: Final = (
    Column("NAMESPACE", "namespace"),
    Column("NAME", "name"),
    Column("GROUP", "group"),
    Column("FOR", "shownFor"),
    Column("UNTIL", "shownUntil"),
    Column("STATE", "state"),
    Column("APPROVED BY", "approvedBy"),
    Column("REASON", "reason", wide=True),
    Column("MESSAGE", "message", wide=True),
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the CapacityLease.")]
ByOption = Annotated[
    str,
    typer.Option("--by", help="Who decides, where nobody confirms identities.", show_default="who runs the command"),
]


@app.callback()
def lease() -> None:
    """The leases: whose borrowed work no recall takes, and until when."""


@app.command("list")
def list_command(
    context: typer.Context,
    namespace: NamespaceOption = None,
    pool: Annotated[str | None, typer.Option("--pool", "-p", help="Only leases of GPUs of this pool.")] = None,
    output: OutputOption = Output.TABLE,
    follow: WatchOption = False,
) -> None:
    """List leases: what each is for, until when, whether it protects, and if not why."""

    async def main() -> None:
        from gpubank.cli.leasebook import find_leases

        async with open_door(settings_of(context)) as door:

            async def look() -> tuple[Sequence[Row], str]:
                found = await find_leases(door, namespace=namespace, pool=pool)
                return [view.model_dump(mode="json", exclude={"protects"}) for view in found.views], ""

            await door.check_pool(pool)
            await present(look, COLUMNS, output, name=_name, empty="there is no lease", follow=follow, shown=_shown)

    run(main)


@app.command("show")
def show_command(
    context: typer.Context, name: NameArgument, namespace: NamespaceOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Show everything about the lease NAME: whether it protects, whom at the moment, and who agreed."""

    async def main() -> None:
        from gpubank.cli.leasebook import find_leases, pick, with_protected

        async with open_door(settings_of(context)) as door:
            found = await find_leases(door, namespace=namespace)
            view, missing = await with_protected(door, pick(found, name)[1], found.agreement)
            show_one(view.model_dump(mode="json"), output, name=_key(view), text=lambda: _print(view))
        check_whole(missing)

    run(main)


@app.command("approve")
def approve_command(
    context: typer.Context,
    name: NameArgument,
    namespace: NamespaceOption = None,
    reason: ReasonOption = "",
    by: ByOption = "",
    dry_run: DryRunOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Approve the lease NAME as it stands; somebody of the platform does, never of the group itself."""
    from gpubank.cli.leasebook import approved, check_approval

    _decide(context, name, namespace, reason, by, "approved", check_approval, approved, dry_run=dry_run, output=output)


@app.command("revoke")
def revoke_command(
    context: typer.Context,
    name: NameArgument,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; whoever asked for it reads it.")],
    namespace: NamespaceOption = None,
    by: ByOption = "",
    dry_run: DryRunOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take the approval of the lease NAME back; what it protected may be recalled from now on."""
    from gpubank.cli.leasebook import revoked

    _decide(context, name, namespace, reason, by, "revoked", _check_revocation, revoked, dry_run=dry_run, output=output)


def _check_revocation(lease: "CapacityLease", leases: "Leases", who: Identity) -> None:
    if not lease.approved:
        raise PolicyError(f"CapacityLease {lease.key!r} is not approved as it stands: there is nothing to take back")


Check = Callable[["CapacityLease", "Leases", Identity], None]
Decide = Callable[["CapacityLease", Identity, str, datetime], "CapacityLeaseStatus"]


def _decide(
    context: typer.Context,
    name: str,
    namespace: str | None,
    reason: str,
    by: str,
    verb: str,
    check: Check,
    decided: Decide,
    *,
    dry_run: bool,
    output: Output,
) -> None:
    async def main() -> None:
        from gpubank.cli.leasebook import find_leases, pick, write_status

        check_reason(reason)
        async with open_door(settings_of(context)) as door:
            found = await find_leases(door, namespace=namespace)
            lease, view = pick(found, name)
            who = await _who(door, by)
            check(lease, found, who)
            status = decided(lease, who, reason, datetime.now(UTC).replace(microsecond=0))
            await write_status(door, lease, status, dry_run=dry_run)
            item = _decided(view, who, status, verb=verb, reason=reason, dry_run=dry_run)
            done = f"would be {verb} by {who} (dry run)" if dry_run else f"{verb} by {who}"
            text = f"capacitylease/{name} {done}: {_for(view.model_dump(mode='json'))} until {instant(view.until)}"
            show_one(item, output, name=_key(view), text=lambda: typer.echo(text))

    run(main)


async def _who(door: Door, by: str) -> Identity:
    """Return who decides; where the API server confirms a name, nobody can give another."""
    who = await identity_of(door.cluster)
    if not by or by == who.name:
        return who
    if who.verified:
        raise PolicyError(f"the API server knows you as {who.name!r}: nobody decides as {by!r}; leave --by out")
    return Identity(by, verified=False)


def _decided(
    view: "LeaseView", who: Identity, status: "CapacityLeaseStatus", *, verb: str, reason: str, dry_run: bool
) -> dict[str, Any]:
    return {
        "lease": _key(view),
        "decision": verb,
        **said(who, reason, dry_run=dry_run),
        "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
    }


def _key(view: "LeaseView") -> str:
    return f"{view.namespace}/{view.name}"


def _name(row: Row) -> str:
    return f"{row['namespace']}/{row['name']}"


def _for(row: Mapping[str, Any]) -> str:
    return row["workload"] or f"{row['gpus']} GPUs of {row['pool']}"


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Add what the columns of a table need."""
    return {**row, "shownFor": _for(row), "shownUntil": instant(row["until"])}


def _print(view: "LeaseView") -> None:
    """Print everything about one lease."""
    from gpubank.cli.leasebook import names_of

    facts = {
        "Lease": _key(view),
        "Group": view.group,
        "For": _for(view.model_dump(mode="json")),
        "Until": instant(view.until),
        "Reason": view.reason,
        "State": view.state,
        "Message": view.message,
        "Approved": f"by {view.approved_by} at {instant(view.approved_at)}" if view.approved_by else "",
        "Revoked": f"by {view.revoked_by}" if view.revoked_by else "",
        "Protects": ", ".join(names_of(view.protects)) or ("nobody now" if view.state == "Protecting" else ""),
    }
    print_facts(facts, width=10)
