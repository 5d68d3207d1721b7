"""`gpubank nodeagent …`: what the node agent makes of a node's GPUs."""

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gpubank.cli.context import ExitCode, say
from gpubank.cli.output import Column, Output, OutputOption, show, show_one
from gpubank.domain.errors import PolicyError
from nodeagent.classes import rules
from nodeagent.classes.classify import Verdict, classify
from nodeagent.classes.facts import Facts
from nodeagent.classes.factsfile import read_facts
from nodeagent.classes.rulebook import Rulebook
from nodeagent.classes.text import read_file

app = typer.Typer(help="What the node agent makes of a node's GPUs.", no_args_is_help=True)

_COLUMNS: Final = (
    Column("INDEX", "index", right=True),
    Column("NAME", "name"),
    Column("MEMORY MIB", "memory_mib", right=True),
    Column("CLASS", "class"),
    Column("PARTITION", "partition"),
    Column("RESOURCE", "resource"),
    Column("UUID", "uuid", wide=True),
    Column("CAPABILITY", "compute_capability", wide=True),
    Column("PCI", "pci_device_id", wide=True),
    Column("REASON", "reason"),
)


@app.callback()
def nodeagent() -> None:
    """What the node agent makes of a node's GPUs."""


@app.command("classify")
def classify_command(
    facts: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="JSON list of facts instead of this node's GPUs; '-' is standard input."),
    ] = None,
    rules_path: Annotated[
        Path | None, typer.Option("--rules", help="Rules file, or the folder of a mounted ConfigMap.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show class, resource and reason of each GPU, in order; a GPU that no rule names is class `unknown`.

    Exits with 0 also if some GPUs are unknown, 1 if NVML or facts say nothing that can be judged, 2 if a file cannot be
    read, 5 if this node's NVML does not answer.
    """
    try:
        rulebook = rules.load(rules_path or rules.DEFAULT_RULES)
        found = _from_file(facts) if facts is not None else _from_node()
    except PolicyError as error:
        say(str(error))
        raise typer.Exit(ExitCode.USAGE) from error
    rows = [_row(index, uuid, item, classify(item, rulebook)) for index, (uuid, item) in enumerate(found)]
    show(rows, _COLUMNS, output, name=lambda row: str(row["class"]), empty="no GPU to classify")
    if unknown := sum(row["class"] == "unknown" for row in rows):
        say(f"{unknown} of {len(rows)} GPUs are in quarantine: {_remedy(rulebook)}")


@app.command("rules")
def rules_command(
    configmap: Annotated[bool, typer.Option(help="As a ConfigMap, to be changed and applied.")] = False,
) -> None:
    """Print the rules that come with the agent."""
    text = rules.DEFAULT_RULES.read_text()
    sys.stdout.write(rules.as_configmap(text) if configmap else text)


def _from_file(name: str) -> list[tuple[str, Facts]]:
    if name == "-":
        try:
            text = sys.stdin.buffer.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise PolicyError("facts file 'standard input' is no text in UTF-8; save it so") from error
        return [("", item) for item in read_facts(text, "standard input")]
    return [("", item) for item in read_facts(read_file(Path(name), "facts file"), name)]


def _from_node() -> list[tuple[str, Facts]]:
    """Read this node's GPUs; NvmlError passes on as what could not be reached."""
    from nodeagent.classes.observed import facts_of_node
    from nodeagent.nvml.guard import Guarded
    from nodeagent.nvml.library import PynvmlSession
    from nodeagent.nvml.reading import read_node

    nvml = Guarded(PynvmlSession())
    driver = nvml.open()
    try:
        snapshot = read_node(nvml, driver)
    finally:
        nvml.close()
    for lost in snapshot.unreadable:
        say(f"GPU {lost.index} cannot be read: {lost.reason}")
    return list(facts_of_node(snapshot))


def _row(index: int, uuid: str, facts: Facts, verdict: Verdict) -> dict[str, Any]:
    return {
        "index": index,
        "class": verdict.device_class,
        "partition": verdict.partition,
        "resource": verdict.resource,
        "reason": verdict.reason,
        "name": facts.name,
        "memory_mib": facts.memory_mib,
        "compute_capability": facts.compute_capability or None,
        "pci_device_id": facts.pci_device_id or None,
        "mig_profile": facts.mig_profile or None,
        "uuid": uuid or None,
    }


def _remedy(rulebook: Rulebook) -> str:
    if rulebook.quarantine_resource:
        return "only administrators can ask for them; list their products in a class to sell them"
    return "nobody can ask for them; list their products in a class to sell them"


StateOption = Annotated[
    Path,
    typer.Option("--state-dir", help="State folder of the agent on this host.", envvar="GPUBANK_NODEAGENT_STATE_DIR"),
]
_STATE: Final = Path("/var/lib/gpubank/nodeagent")


@app.command("inspect")
def inspect_command(state_dir: StateOption = _STATE, output: OutputOption = Output.TABLE) -> None:
    """Show the GPUs of this host as its running agent sees them, with what is held against each."""
    from nodeagent.plugin.client import ask

    node = ask(state_dir, order="inspect")["node"]
    if output in (Output.JSON, Output.YAML):
        show_one(node, output, name="", text=lambda: None)
        return
    rows = [{**gpu, "against": "; ".join(mark["cause"] for mark in gpu["marks"])} for gpu in node["gpus"]]
    columns = (
        Column("UUID", "uuid"),
        Column("NAME", "name"),
        Column("CLASS", "class"),
        Column("AGAINST IT", "against"),
    )
    show(rows, columns, output, name=lambda row: str(row["uuid"]), empty="the agent sees no GPU")
    for problem in node["problems"]:
        say(problem)
    for withheld in node["withheld"]:
        say(f"{withheld['uuid']} is withheld: {withheld['reason']}")


@app.command("quarantine")
def quarantine_command(
    uuid: Annotated[str, typer.Argument(help="UUID of the GPU.")],
    reason: Annotated[str, typer.Option(help="Shown to whoever asks why.")],
    state_dir: StateOption = _STATE,
) -> None:
    """Take a GPU of this host out: no new pod gets it, running ones are not touched."""
    from gpubank.cli.identity import check_reason, os_identity
    from nodeagent.plugin.client import ask

    check_reason(reason)
    ask(state_dir, order="quarantine", uuid=uuid, by=str(os_identity()), reason=reason)
    typer.echo(f"{uuid}: in quarantine")


@app.command("release")
def release_command(
    uuid: Annotated[str, typer.Argument(help="UUID of the GPU.")], state_dir: StateOption = _STATE
) -> None:
    """Put a GPU of this host back; refused while the GPU itself still reports a fault."""
    from nodeagent.plugin.client import ask

    changed = ask(state_dir, order="release", uuid=uuid)["changed"]
    typer.echo(f"{uuid}: {'released' if changed else 'nothing was held against it'}")
