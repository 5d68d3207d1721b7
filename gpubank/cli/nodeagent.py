"""`gpubank nodeagent …`: what the node agent makes of a node's GPUs."""

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gpubank.cli.context import ExitCode, say
from gpubank.cli.output import Column, Output, OutputOption, show
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
