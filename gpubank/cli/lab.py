"""`gpubank lab`: build, start, look at and stop a real control plane on this machine."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from gpubank.lab import DEFAULT, Lab, LabError, Progress, Stage

app = typer.Typer(
    no_args_is_help=True, help="A real control plane on this machine: etcd, Kubernetes, Kueue, fake GPUs."
)

Name = Annotated[str, typer.Option("--name", help="Which lab; several can run side by side.")]
With = Annotated[list[str] | None, typer.Option("--with", help="A component beyond the base set; repeatable.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and no progress.")]

_IN_CACHE: Final = 0.1
"""Seconds: what was built in less was there already, which is no news."""
_SIGNS: Final = {
    Stage.WAITING: "[dim]waiting[/]",
    Stage.BUILDING: "[yellow]building[/]",
    Stage.BUILT: "[green]built[/]",
    Stage.STARTING: "[yellow]starting[/]",
    Stage.READY: "[green]ready[/]",
    Stage.STOPPING: "[yellow]stopping[/]",
    Stage.STOPPED: "stopped",
}


@app.command()
def build(name: Name = DEFAULT, extra: With = None, as_json: AsJson = False) -> None:
    """Compile the servers into the cache; a second time it finds them there."""
    started = time.monotonic()
    with _progress(as_json) as screen, _errors(as_json):
        lab = Lab(name, extra=extra or (), report=screen.show)
        lab.build()
    built = {program.name: program.version for each in lab.components for program in each.programs}
    _say(as_json, f"built in {time.monotonic() - started:.1f} s", built=built)


@app.command()
def up(
    name: Name = DEFAULT,
    extra: With = None,
    nodes: Annotated[int, typer.Option(min=0, help="Fake nodes to start with.")] = 4,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs of each.")] = 8,
    pool: Annotated[str, typer.Option(help="Pool label of the nodes.")] = "h100-pool",
    resource: Annotated[str, typer.Option(help="Resource name of the GPUs.")] = "nvidia.com/gpu",
    as_json: AsJson = False,
) -> None:
    """Start a lab, wait until it serves, and print its kubeconfig."""
    with _progress(as_json) as screen, _errors(as_json):
        lab = Lab(
            name,
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            pool=pool,
            resource=resource,
            extra=extra or (),
            report=screen.show,
        )
        fresh = lab.up()
    state = lab.state
    seconds = state.seconds if state else None
    did = f"lab {name!r} is up after {seconds} s" if fresh else f"lab {name!r} was up already; nothing was changed"
    facts: dict[str, Any] = {"name": name, "started": fresh, "seconds": seconds, "kubeconfig": str(lab.kubeconfig)}
    extras = _extras(lab)
    text = "\n  ".join([did, f"export KUBECONFIG={lab.kubeconfig}", *(text for text, _ in extras)])
    _say(as_json, text, **facts, **{key: value for _, each in extras for key, value in each.items()})


@app.command()
def down(name: Name = DEFAULT, as_json: AsJson = False) -> None:
    """Stop a lab; its logs stay."""
    with _progress(as_json) as screen, _errors(as_json):
        stopped = Lab(name, report=screen.show).down()
    _say(as_json, f"lab {name!r} is down" if stopped else f"lab {name!r} was not up", name=name, stopped=stopped)


@app.command()
def status(name: Name = DEFAULT, as_json: AsJson = False) -> None:
    """Say what of a lab runs; exit 1 unless all of it does."""
    with _errors(as_json):
        lab = Lab(name)
        state = lab.state
    whole = lab.is_up()
    processes = [
        {"component": each.component, "pid": each.pid, "alive": alive, "log": str(each.log)}
        for each in (state.processes if state else ())
        for alive in [state.alive()[each.component] if state else False]
    ]
    extras = _extras(lab)
    if as_json:
        _say(
            as_json, "", name=name, up=whole, kubeconfig=str(lab.kubeconfig), processes=processes,
            ports=state.ports if state else {}, **{key: value for _, each in extras for key, value in each.items()},
        )  # fmt: skip
    elif state is None:
        _say(as_json, f"lab {name!r} is down; `gpubank lab up --name {name}` starts it")
    else:
        table = Table("component", "pid", "state", "log", box=None)
        for each in processes:
            table.add_row(
                str(each["component"]), str(each["pid"]), "runs" if each["alive"] else "[red]dead[/]", str(each["log"])
            )
        Console().print(table)
        for text, _ in extras:
            typer.echo(text)
    raise typer.Exit(0 if whole else 1)


@app.command()
def clean(name: Name = DEFAULT, as_json: AsJson = False) -> None:
    """Stop a lab and remove its folder, logs included; the built servers stay in the cache."""
    with _progress(as_json) as screen, _errors(as_json):
        Lab(name, report=screen.show).clean()
    _say(as_json, f"nothing is left of lab {name!r}", name=name)


def _extras(lab: Lab) -> list[tuple[str, dict[str, str]]]:
    """Return how to reach what runs beyond the base set: for people, and for scripts."""
    running = lab.state.components if lab.state else ()
    found = []
    if "postgres" in running:
        found.append((f"PostgreSQL: {lab.postgres_url}", {"postgres": lab.postgres_url}))
    if "temporal" in running:
        found.append((f"Temporal: {lab.temporal_address}", {"temporal": lab.temporal_address}))
    if "prometheus" in running:
        url, folder = lab.prometheus_url, str(lab.targets)
        found.append((f"Prometheus: {url}, targets in {folder}", {"prometheus": url, "targets": folder}))
    return found


class _Screen:
    """Shows where every component is, redrawn in place on a terminal and line by line elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: dict[str, Progress] = {}
        self._since: dict[str, float] = {}
        self._live: Live | None = None

    def __enter__(self) -> "_Screen":
        if self._console.is_terminal:
            self._live = Live(get_renderable=self._table, console=self._console, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        before = self._last.get(progress.component)
        if before is None or before.stage is not progress.stage:
            self._since[progress.component] = time.monotonic()
            in_cache = progress.stage is Stage.BUILT and (progress.seconds or 0) < _IN_CACHE
            if self._live is None and not self._console.quiet and not in_cache:
                self._console.print(f"{progress.component:<24} {_SIGNS[progress.stage]:<20} {_time(progress)}")
        self._last[progress.component] = progress

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, progress in self._last.items():
            passed = progress.seconds
            if passed is None and progress.stage is not Stage.WAITING:
                passed = time.monotonic() - self._since[name]
            shown = f"{passed:5.1f} s" if passed is not None else ""
            detail = "" if progress.stage in {Stage.READY, Stage.BUILT} else progress.detail
            table.add_row(name, _SIGNS[progress.stage], shown, f"[dim]{detail[:60]}[/]")
        return table


def _time(progress: Progress) -> str:
    return "" if progress.seconds is None else f"{progress.seconds:.1f} s"


@contextmanager
def _progress(as_json: bool) -> Iterator[_Screen]:
    with _Screen(Console(stderr=True, quiet=as_json)) as screen:
        yield screen


@contextmanager
def _errors(as_json: bool) -> Iterator[None]:
    try:
        yield
    except LabError as error:
        if as_json:
            typer.echo(json.dumps({"error": str(error)}))
        else:
            typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def _say(as_json: bool, text: str, **facts: Any) -> None:
    typer.echo(json.dumps(facts) if as_json else text)
