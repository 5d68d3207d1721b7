"""The ledger's store: `LedgerStore` on SQL."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from sqlalchemy import Select, case, func, or_, select, update
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gpubank.adapters.ledger import chain, org, reading, rows, schema, writing
from gpubank.adapters.ledger.chain import Link
from gpubank.adapters.ledger.engine import Database, make_engine, require
from gpubank.adapters.ledger.postings import BORROWER, LENDER, post_some
from gpubank.adapters.ledger.reading import Known
from gpubank.adapters.ledger.tables import audit, keys, lines, pools, postings, uses
from gpubank.adapters.ledger.verify import verify
from gpubank.domain.books import Books
from gpubank.domain.errors import LedgerError
from gpubank.domain.ledger import AuditEvent, Balance, OrgUnit, Posting, VerifyReport, WorkloadUse
from gpubank.domain.loan import Line
from gpubank.domain.transaction import Transaction

T = TypeVar("T")


def _now() -> datetime:
    return datetime.now(UTC)


class SqlLedger:
    """Books, postings and audit trail in one database; safe for any number of processes and tasks at once.

    Every method raises `BackendError` where the database fails or stays locked; then nothing was written.
    """

    def __init__(self, engine: AsyncEngine, *, clock: Callable[[], datetime] = _now) -> None:
        self._database: Final = Database(engine, schema.Guard())
        self._clock = clock
        self._known: dict[tuple[str, str], Known] = {}

    @classmethod
    async def open(cls, url: str | URL, *, upgrade: bool = True, clock: Callable[[], datetime] = _now) -> Self:
        """Open the ledger at `url` and bring its schema up to date, or only check it where `upgrade` is False.

        Close it with `aclose`, or use it in `async with`.
        """
        if not upgrade:
            require(url)
        engine = make_engine(url)
        try:
            if upgrade:
                await schema.upgrade(engine)
            else:
                await schema.check(engine)
        except BaseException:
            await engine.dispose()
            raise
        return cls(engine, clock=clock)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._database.close()

    async def __aenter__(self) -> Self:
        """Return the open ledger."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.aclose()

    # ---- books

    async def books(self, cluster: str, pool: str) -> Books:
        """Return the open books of a pool; empty books where it has none."""
        known = self._known.get((cluster, pool))
        found = await self._database.read(lambda connection: reading.read(connection, cluster, pool, known))
        return self._keep(found).books

    async def commit(self, transaction: Transaction) -> Books:
        """Write one transaction, or nothing; return the books after it.

        A key that was committed before for this pool is success and writes nothing. Raises `ConflictError` and
        `LedgerError` as `Books.applied` does.
        """
        (books,) = await self.commit_all([transaction])
        return books

    async def commit_all(self, transactions: Sequence[Transaction]) -> Sequence[Books]:
        """Write transactions of one pool in order, some at a time; return the books after each that stands.

        Fewer than were given stand where one of them is refused, or where they are many: those before it are written,
        and nothing of the others. Raises what `commit` does where the first is refused.
        """
        if not transactions:
            return ()
        places = {(transaction.cluster, transaction.pool) for transaction in transactions}
        if len(places) > 1:
            raise LedgerError(
                f"transactions of several pools ({', '.join(map('/'.join, sorted(places)))}) in one commit"
            )
        known = self._known.get(places.pop())
        done = await self._database.write(lambda connection: writing.commit(connection, transactions, known))
        self._keep(done.known)
        return done.after

    def _keep(self, found: Known) -> Known:
        """Remember books that were read or committed, so that the next reader reads only what changes."""
        self._known[found.books.cluster, found.books.pool] = found
        return found

    async def beat(self, cluster: str, pool: str) -> None:
        """Commit one write that changes nothing: proof that the database takes writes, by this process, now."""

        async def work(connection: AsyncConnection) -> None:
            await writing.lock(connection, cluster, pool)
            of_pool = pools.c.cluster == cluster, pools.c.pool == pool
            await connection.execute(update(pools).where(*of_pool).values(revision=pools.c.revision))

        await self._database.write(work)

    async def pools(self) -> Sequence[tuple[str, str]]:
        """Every (cluster, pool) that has books."""
        return sorted(await self._read(select(pools), lambda row: (str(row["cluster"]), str(row["pool"]))))

    async def lines(
        self,
        *,
        cluster: str | None = None,
        pool: str | None = None,
        group: str | None = None,
        workload_uid: str | None = None,
        open_only: bool = False,
        limit: int = 1000,
    ) -> Sequence[Line]:
        """Lines, newest first, ended ones included; `group` is lender or borrower."""
        query = select(lines).order_by(lines.c.offered_at.desc(), lines.c.number.desc(), lines.c.cluster, lines.c.pool)
        query = _of(query, lines.c.cluster, cluster)
        query = _of(query, lines.c.pool, pool)
        query = _of(query, lines.c.workload_uid, workload_uid)
        if group is not None:
            query = query.where(or_(lines.c.lender == group, lines.c.borrower == group))
        if open_only:
            query = query.where(lines.c.ended_at.is_(None))
        return await self._read(query.limit(limit), rows.line_of)

    # ---- use and notes

    async def use(self, use: WorkloadUse) -> None:
        """Record when a Workload's term was admitted and when its pods were gone; repeated calls only add.

        The first admission stands, and so does the first end.
        """

        async def work(connection: AsyncConnection) -> None:
            row = rows.use_row(use)
            if not await writing.insert_once(connection, uses, row):
                key = [uses.c[name] == row[name] for name in chain.key_columns(uses)]
                found = (await connection.execute(select(uses).where(*key).with_for_update())).mappings().one()
                if use.gone_at is None or found["gone_at"] is not None:
                    return
                await connection.execute(update(uses).where(*key).values(gone_at=use.gone_at))
                row = {**found, "gone_at": use.gone_at}
            action = "Admitted" if use.gone_at is None else "Gone"
            at = use.gone_at or use.admitted_at
            await chain.append(connection, [Link(at, _LEDGER, use.workload.uid, action, {}, [(uses, row)])])

        await self._database.write(work)

    async def uses(
        self, *, cluster: str | None = None, pool: str | None = None, group: str | None = None, limit: int = 1000
    ) -> Sequence[WorkloadUse]:
        """What was recorded by `use`, newest first."""
        query = select(uses).order_by(uses.c.admitted_at.desc(), uses.c.workload_uid, uses.c.term.desc())
        query = _of(query, uses.c.cluster, cluster)
        query = _of(query, uses.c.pool, pool)
        return await self._read(_of(query, uses.c.business_group, group).limit(limit), rows.use_of)

    async def note(
        self, *, key: str, at: datetime, actor: str, subject: str, action: str, detail: Mapping[str, Any] | None = None
    ) -> None:
        """Append one audit event, once per key; raises `LedgerError` where the detail is not JSON."""
        said = dict(detail or {})
        if chain.ROWS in said:
            raise LedgerError(f"audit detail of {key!r} has a field {chain.ROWS!r}, which is the ledger's; rename it")

        async def work(connection: AsyncConnection) -> None:
            row = {"scope": writing.NOTES, "key": key, "at": at}
            if await writing.insert_once(connection, keys, row):
                await chain.append(connection, [Link(at, actor, subject, action, said, [(keys, row)])])

        await self._database.write(work)

    async def audit(self, *, subject: str | None = None, limit: int = 1000) -> Sequence[AuditEvent]:
        """Audit events, newest first; `detail["rows"]` holds the rows as they were written."""
        query = _of(select(audit).order_by(audit.c.sequence.desc()), audit.c.subject, subject)
        return await self._read(query.limit(limit), lambda row: rows.event_of(row, json.loads(row["detail"])))

    # ---- postings

    async def post(self, *, until: datetime) -> int:
        """Post every hour (and every ended line's last part) up to `until` that is not posted yet; return how many.

        Counts entries, each of which is a debit and a credit. A pool whose postings do not balance is left as it was
        and keeps no other from being posted; then `LedgerError` is raised at the end.
        """
        count, errors = 0, []
        for cluster, pool in await self.pools():
            try:
                count += await self._post(cluster, pool, until)
            except LedgerError as error:
                errors.append(str(error))
        if errors:
            raise LedgerError("; ".join(errors))
        return count

    async def _post(self, cluster: str, pool: str, until: datetime) -> int:
        async def work(connection: AsyncConnection) -> tuple[int, bool]:
            await writing.lock(connection, cluster, pool)
            return await post_some(connection, cluster, pool, until=until, posted_at=self._clock())

        count, more = 0, True
        while more:
            written, more = await self._database.write(work)
            count += written
        return count

    async def postings(
        self, *, cluster: str | None = None, pool: str | None = None, account: str | None = None, limit: int = 1000
    ) -> Sequence[Posting]:
        """Postings, newest first."""
        query = _of(select(postings).order_by(postings.c.id.desc()), postings.c.cluster, cluster)
        query = _of(query, postings.c.pool, pool)
        return await self._read(_of(query, postings.c.account, account).limit(limit), rows.posting_of)

    async def balances(self, *, cluster: str | None = None, pool: str | None = None) -> Sequence[Balance]:
        """What every account has borrowed and lent, as far as it is posted; all of a pool's borrowing is lent."""
        amount = postings.c.gpu_ms
        columns = (postings.c.cluster, postings.c.pool, postings.c.account)
        query: Select[Any] = select(
            *columns,
            func.sum(case((postings.c.half == BORROWER, amount), else_=0)).label("borrowed"),
            func.sum(case((postings.c.half == LENDER, -amount), else_=0)).label("lent"),
        ).group_by(*columns)
        query = _of(_of(query, postings.c.cluster, cluster), postings.c.pool, pool)
        found = await self._read(
            query,
            lambda row: Balance(
                **{column.name: row[column.name] for column in columns},
                borrowed_gpu_ms=int(row["borrowed"]),
                lent_gpu_ms=int(row["lent"]),
            ),
        )
        return sorted(found, key=lambda balance: (balance.cluster, balance.pool, balance.account))

    async def holds(self, head: str) -> bool:
        """Whether the audit chain holds a link with this digest, such as a head that was published once."""
        return bool(await self._read(select(audit.c.sequence).where(audit.c.digest == head), lambda row: row))

    async def verify(self) -> VerifyReport:
        """Check balance, amounts, rows and hash chain; name the first bad row of each kind."""
        return await self._database.read(verify)

    # ---- organisation

    async def assign(self, unit: OrgUnit, *, actor: str) -> None:
        """Record where a group stands in the organisation; what was recorded before stays."""
        await self._database.write(lambda connection: org.assign(connection, unit, actor=actor))

    async def unit(self, group: str, *, at: datetime, known_at: datetime | None = None) -> OrgUnit | None:
        """Where `group` stood at `at`, as far as was known at `known_at` (now where None)."""
        return await self._database.read(lambda connection: org.resolve(connection, group, at=at, known_at=known_at))

    async def units(self, group: str | None = None) -> Sequence[OrgUnit]:
        """Every recorded row, oldest first."""
        return await self._database.read(lambda connection: org.history(connection, group))

    async def _read(self, query: Select[Any], read: Callable[[Any], T]) -> list[T]:
        async def work(connection: AsyncConnection) -> list[T]:
            return [read(row) for row in (await connection.execute(query)).mappings()]

        return await self._database.read(work)


_LEDGER: Final = "ledger"


def _of(query: Select[Any], column: Any, value: str | None) -> Select[Any]:
    return query if value is None else query.where(column == value)
