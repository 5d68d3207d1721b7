"""`gpubank policy …`: check policies before anybody applies them."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gpubank.cli.context import ExitCode
from gpubank.cli.output import Output, OutputOption, show_one
from gpubank.schema.manifest import Document, UnreadableError, read_documents
from gpubank.schema.validate import Finding, Verdict, validate

app = typer.Typer(help="Check policies before anybody applies them.", no_args_is_help=True)


@app.callback()
def policy() -> None:
    """Check policies before anybody applies them."""


@app.command("validate")
def validate_command(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="YAML or JSON files; '-' is standard input.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Judge the objects in FILE offline: each by its own rules, and all of them against each other.

    Exits with 0 if every object is fine, 1 if any is refused, 2 if a file cannot be read.
    """
    documents: list[Document] = []
    unreadable: list[str] = []
    for name in files:
        try:
            documents += _read(name)
        except UnreadableError as error:
            unreadable.append(str(error))
    findings = validate(documents, now=datetime.now(UTC).replace(microsecond=0))
    if output is Output.NAME:
        for finding in findings:
            typer.echo(f"{finding.kind}/{finding.key}")
    else:
        show_one(_report(findings, unreadable), output, name="", text=lambda: _print_lines(findings))
    for problem in unreadable:
        typer.echo(f"unreadable  {problem}", err=True)
    if not documents and not unreadable:
        typer.echo("nothing to validate: the files hold no object", err=True)
        raise typer.Exit(ExitCode.USAGE)
    if unreadable:
        raise typer.Exit(ExitCode.USAGE)
    if any(finding.verdict is Verdict.REFUSED for finding in findings):
        raise typer.Exit(ExitCode.REFUSED)


def _read(name: str) -> list[Document]:
    source = "standard input" if name == "-" else name
    try:
        text = sys.stdin.buffer.read().decode() if name == "-" else Path(name).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UnreadableError(f"{source}: {error.strerror or error}; name a file that can be read") from error
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{source}: is no text in UTF-8; save it so") from error
    return list(read_documents(text, source))


def _print_lines(findings: Sequence[Finding]) -> None:
    for finding in findings:
        typer.echo(_line(finding))


def _line(finding: Finding) -> str:
    place = f"{finding.document.source}:{finding.document.line}"
    head = f"{finding.verdict:<8}  {finding.kind} {finding.key}  ({place})"
    if finding.verdict is Verdict.SKIPPED:
        return f"{head}: no kind of the bank"
    return f"{head}: {' | '.join(str(problem) for problem in finding.problems)}" if finding.problems else head


def _report(findings: Sequence[Finding], unreadable: Sequence[str]) -> dict[str, Any]:
    return {
        "schema": "gpubank/policy-validate/v1",
        "objects": [
            {
                "source": finding.document.source,
                "line": finding.document.line,
                "kind": finding.kind,
                "key": finding.key,
                "verdict": str(finding.verdict),
                "problems": [
                    {
                        "field": problem.field,
                        "value": problem.value,
                        "rule": problem.rule,
                        "remedy": problem.remedy,
                    }
                    for problem in finding.problems
                ],
            }
            for finding in findings
        ],
        "unreadable": list(unreadable),
        "counts": {str(verdict): sum(finding.verdict is verdict for finding in findings) for verdict in Verdict},
    }
