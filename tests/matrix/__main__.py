"""Play the crash matrix: `python -m tests.matrix [CELL ...]`, as in worker+kueue@stop.after.

Without a CELL all are played of which the results know nothing on this code and these servers. A run may be
interrupted at any time; the next one goes on. Exit code 1 says that something was not as if nothing had happened.
"""

import argparse
import asyncio
import logging
import shutil
import signal
import sys
import tempfile
import time
import uuid
from contextlib import AsyncExitStack
from pathlib import Path

from gpubank.domain.errors import BankError
from gpubank.lab import Lab, LabError
from gpubank.lab.postgres import Postgres
from tests.matrix.cells import CELLS, Cell, rounds
from tests.matrix.crash import Machine
from tests.matrix.play import Result, Stage
from tests.matrix.results import DATA, PAGE, Results
from tests.support.running import running_bank


def main() -> int:
    """Play what is asked for."""
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=summary)
    parser.add_argument("cells", nargs="*", metavar="CELL", help="cells to play, whether they are known or not")
    parser.add_argument(
        "--lanes", type=int, default=15, help="recalls that live through one crash (default: %(default)s)"
    )
    parser.add_argument("--again", action="store_true", help="forget all results first")
    parser.add_argument("--failed", action="store_true", help="play those once more that went wrong")
    parser.add_argument("--rounds", type=int, default=None, help="play at most so many rounds")
    parser.add_argument("--keep", type=Path, default=None, help="folder for logs, which stays")
    given = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    if given.again:
        DATA.unlink(missing_ok=True)
    results = Results()
    cells = [Cell.of(text) for text in given.cells] or results.missing(CELLS, failed=given.failed)
    if not cells:
        _line(f"all {len(CELLS)} cells were played on this code and these servers; --again plays them once more")
        return 0
    folder = given.keep or Path(tempfile.mkdtemp(prefix="gpubank-matrix-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        bad = asyncio.run(play(cells, results, folder, given.lanes, given.rounds))
    except asyncio.CancelledError:
        _line("interrupted; what was played stands in the results, and the next run goes on")
        return 130
    finally:
        PAGE.write_text(results.page())
        if given.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if bad else 0


async def play(cells: list[Cell], results: Results, folder: Path, lanes: int, most: int | None) -> int:
    """Play cells on a lab of its own; return how many went wrong."""
    myself = asyncio.current_task()
    assert myself is not None
    for number in (signal.SIGINT, signal.SIGTERM):  # whoever ends it in the background too leaves no lab behind
        asyncio.get_running_loop().add_signal_handler(number, myself.cancel)
    bad = 0
    planned = rounds(cells, lanes)[:most]
    async with AsyncExitStack() as stack:
        lab = await stack.enter_async_context(Lab(f"matrix-{uuid.uuid4().hex[:8]}", nodes=1))
        postgres = stack.enter_context(Postgres())
        running = await stack.enter_async_context(running_bank(lab, postgres.create_database(), folder / "bank"))
        stage = await stack.enter_async_context(Stage.opened(running, Machine(running, postgres), folder))
        for count, round_ in enumerate(planned, 1):
            began = time.monotonic()
            try:
                played = await stage.play(round_)
            except (AssertionError, BankError, LabError) as error:
                # Nothing is said of its cells: the next run plays them.
                _line(f"{count}/{len(planned)} {'+'.join(round_.kill)}: not played: {error}")
                await stage.begin_anew()
                bad += 1
                continue
            results.add(played)
            PAGE.write_text(results.page())
            bad += sum(bool(each.violations) for each in played)
            _say(f"{count}/{len(planned)}", "+".join(round_.kill), played, time.monotonic() - began)
    return bad


def _line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _say(number: str, kill: str, played: list[Result], took: float) -> None:
    wrong = [each for each in played if each.violations]
    _line(f"{number} {kill}: {len(played) - len(wrong)} of {len(played)} as if nothing, {took:.0f} s")
    for note in sorted({note for each in played for note in each.notes}):
        _line(f"  {note}")
    for each in wrong:
        for violation in each.violations:
            _line(f"  {each.cell}: {violation}")


if __name__ == "__main__":
    sys.exit(main())
