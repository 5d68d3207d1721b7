"""A process that writes to a ledger until it is ended, or refused: `python -m tests.contract.ledger_writer URL`.

It says `wrote NUMBER` after every transaction, and `refused: …` when it ends because of an error of the bank.
"""

import asyncio
import sys

from gpubank.adapters.ledger import SqlLedger
from gpubank.domain.errors import BankError
from gpubank.domain.loan import LineState
from tests.plugins.ledger import CLUSTER, POOL, founding, move, offer, only, tx


async def write(url: str) -> None:
    """Offer and withdraw a line again and again."""
    async with await SqlLedger.open(url, upgrade=False) as ledger:
        await ledger.commit(founding())
        number = 0
        while True:
            number += 1
            await ledger.commit(tx(f"offer/{number}", offers=(offer(),)))
            line = only(await ledger.books(CLUSTER, POOL))
            await ledger.commit(tx(f"withdraw/{number}", moves=(move(line, LineState.WITHDRAWN),)))
            sys.stdout.write(f"wrote {number}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    try:
        asyncio.run(write(sys.argv[1]))
    except BankError as error:
        sys.stdout.write(f"refused: {error}\n")
