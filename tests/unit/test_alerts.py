"""Alerts, their runbook, the queries of the docs: each leads to the other, and asks for metrics that there are."""

import re
from typing import Any

import pytest
import yaml

from gpubank.metrics import METRICS, MetricType
from nodeagent.exporter.exposition import Kind
from nodeagent.exporter.names import COLLECTED, LIVE
from nodeagent.exporter.quantities import QUANTITIES, Dialect
from tests.support.prometheus import (
    ATTRIBUTION_PAGE,
    ROOT,
    RUNBOOK,
    alerts,
    metric_names,
    queries,
    rule_files,
    scrape_job,
)

OF_THE_SERVER = {"up"}
"""Series that Prometheus makes itself."""


def documented() -> set[str]:
    """Return the names of all series of ours, as they are scraped."""
    names = {metric.name for metric in METRICS if metric.type is not MetricType.HISTOGRAM}
    names |= {f"{m.name}_{part}" for m in METRICS if m.buckets for part in ("bucket", "sum", "count")}
    names |= {name for name, _, _ in (*COLLECTED, *LIVE)}
    return names | {quantity.named(dialect).name for quantity in QUANTITIES for dialect in Dialect}


def headings() -> list[str]:
    return re.findall(r"^## (Gpubank\w+)$", RUNBOOK.read_text(), re.MULTILINE)


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_asks_for_metrics_that_exist_and_says_what_to_do(rule: dict[str, Any]) -> None:
    used = metric_names(rule["expr"]) | (set(re.findall(r"\b\w+\b", rule["expr"])) & OF_THE_SERVER)
    assert used
    assert used - OF_THE_SERVER <= documented()
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["runbook"] == f"docs/how-to/operate.md#{rule['alert'].lower()}"


def test_every_alert_has_its_section_of_the_runbook_and_every_section_its_alert() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert sorted(headings()) == sorted(names)
    assert len(names) == len(set(names)) == 21


def test_no_section_of_the_runbook_is_empty() -> None:
    sections = re.split(r"^## ", RUNBOOK.read_text(), flags=re.MULTILINE)
    bodies = {name: body for name, _, body in (section.partition("\n") for section in sections)}
    assert {name: len(bodies[name]) > 80 for name in headings()} == dict.fromkeys(headings(), True)


@pytest.mark.parametrize(
    "promise", ["heartbeat_silence", "ledger_imbalance", "overdue_demands", "stuck_workflows", "collection_age"]
)
def test_what_must_not_go_unnoticed_has_an_alert(promise: str) -> None:
    assert [rule["alert"] for rule in alerts() if promise in rule["expr"]]


def pages() -> list[Any]:
    return [
        pytest.param(query, id=f"{page.name}: {query.splitlines()[0][:40]}")
        for page in sorted((ROOT / "docs").rglob("*.md"))
        for query in queries(page)
    ]


@pytest.mark.parametrize("query", pages())
def test_a_query_of_the_docs_asks_for_metrics_that_exist(query: str) -> None:
    assert metric_names(query)
    assert metric_names(query) <= documented()


def test_metrics_that_the_runbook_names_exist() -> None:
    named = set(re.findall(r"\bgpubank_\w+", RUNBOOK.read_text() + ATTRIBUTION_PAGE.read_text()))
    assert named <= documented()


def test_every_rule_file_is_in_the_manifests_once() -> None:
    assert set(rule_files()) == {"gpubank.rules.yaml", "gpubank-nodes.rules.yaml"}


def test_the_exporters_job_leaves_the_holder_his_labels() -> None:
    job = scrape_job("gpubank-exporter", 9410)
    assert job["honor_labels"] is True
    (dropped,) = [each["regex"] for each in job["relabel_configs"] if each.get("action") == "labeldrop"]
    assert all(re.fullmatch(dropped, name) for name in ("pod", "namespace", "container"))


def test_jobs_keep_what_the_manifests_run() -> None:
    def kept(job: str, name: str, port: str) -> bool:
        (rule,) = [each for each in scrape_job(job, 1)["relabel_configs"] if each.get("action") == "keep"]
        return re.fullmatch(rule["regex"], f"{name};{port}") is not None

    for path in (ROOT / "manifests").rglob("*.yaml"):
        for body in yaml.safe_load_all(path.read_text()):
            if not body or body.get("kind") not in ("Deployment", "DaemonSet"):
                continue
            spec = body["spec"]["template"]
            name = spec["metadata"]["labels"]["app.kubernetes.io/name"]
            for port in (each["name"] for each in spec["spec"]["containers"][0].get("ports", ())):
                assert kept("gpubank", name, port) != kept("gpubank-exporter", name, port), (name, port)


def test_counters_end_in_total_and_nothing_else_of_ours_does() -> None:
    for name, kind, _ in (*COLLECTED, *LIVE):
        assert name.endswith("_total") == (kind is Kind.COUNTER)
