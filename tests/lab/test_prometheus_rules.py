"""What promtool says of the alerts, of how they fire, of the shipped scrape configuration, and of the docs' queries."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.prometheus import (
    ATTRIBUTION_PAGE,
    ROOT,
    Promtool,
    alerts,
    queries,
    query_with,
    rule_files,
    scrape_file,
)

CASES: Final = ROOT / "tests" / "data" / "alerts"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """Folder with every shipped rule file, and the cases beside them."""
    for name, text in rule_files().items():
        (tmp_path / name).write_text(text)
    for case in CASES.glob("*.test.yaml"):
        (tmp_path / case.name).write_text(case.read_text())
    return tmp_path


def cases() -> list[dict[str, Any]]:
    return [test for path in CASES.glob("*.test.yaml") for test in yaml.safe_load(path.read_text())["tests"]]


@pytest.mark.parametrize("name", sorted(rule_files()))
def test_promtool_finds_no_fault_in_a_rule_file(promtool: Promtool, rules: Path, name: str) -> None:
    assert "SUCCESS" in promtool("check", "rules", "--lint=all", "--lint-fatal", rules / name)


@pytest.mark.parametrize("name", [path.name for path in sorted(CASES.glob("*.test.yaml"))])
def test_every_alert_fires_when_it_should_and_not_before(promtool: Promtool, rules: Path, name: str) -> None:
    assert "SUCCESS" in promtool("test", "rules", rules / name)


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    expected = [each for case in cases() for each in case["alert_rule_test"]]
    names = {rule["alert"] for rule in alerts()}
    assert {each["alertname"] for each in expected if each.get("exp_alerts")} == names
    assert {each["alertname"] for each in expected if not each.get("exp_alerts")} == names


def test_a_case_that_expects_too_little_fails(promtool: Promtool, rules: Path) -> None:
    case = rules / "gpubank.test.yaml"
    content = yaml.safe_load(case.read_text())
    content["tests"] = content["tests"][:1]
    for each in content["tests"][0]["alert_rule_test"]:
        each.pop("exp_alerts", None)
    case.write_text(yaml.safe_dump(content))
    assert "FAILED" in promtool("test", "rules", case, code=1)


def test_the_shipped_scrape_configuration_is_one(promtool: Promtool, tmp_path: Path) -> None:
    (tmp_path / "gpubank.scrape.yaml").write_text(scrape_file())
    config = {"scrape_config_files": ["gpubank.scrape.yaml"], "rule_files": ["*.rules.yaml"]}
    for name, text in rule_files().items():
        (tmp_path / name).write_text(text)
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    said = promtool("check", "config", "--lint=all", "--lint-fatal", tmp_path / "prometheus.yaml")
    assert "valid prometheus config" in said
    assert said.count("rules found") == len(rule_files())
    (tmp_path / "gpubank.scrape.yaml").write_text(scrape_file().replace("honor_labels", "honour_labels"))
    assert "honour_labels" in promtool("check", "config", tmp_path / "prometheus.yaml", code=1)


def test_every_query_of_the_docs_is_promql(promtool: Promtool, tmp_path: Path) -> None:
    found = [query for page in sorted((ROOT / "docs").rglob("*.md")) for query in queries(page)]
    assert len(found) >= 5
    group = {"name": "docs", "rules": [{"record": f"docs:{n}", "expr": query} for n, query in enumerate(found)]}
    (tmp_path / "docs.rules.yaml").write_text(yaml.safe_dump({"groups": [group]}))
    assert f"{len(found)} rules found" in promtool("check", "rules", tmp_path / "docs.rules.yaml")


def test_a_days_energy_is_each_holders_own_and_nobodys_twice(promtool: Promtool, tmp_path: Path) -> None:
    """One GPU changes hands at noon, one is shared, one is in MIG mode and has its power on every instance."""

    def power(labels: str) -> dict[str, str]:
        return {"series": f"DCGM_FI_DEV_POWER_USAGE{{{labels}}}", "values": "600x1500"}

    def held(labels: str, values: str = "1x1500") -> dict[str, str]:
        return {"series": f"gpubank_gpu_pod_info{{{labels}}}", "values": values}

    series = [
        power('UUID="GPU-1", gpu="0"'),
        held('UUID="GPU-1", mapping_status="mapped", pod_uid="a", cost_center="CC-1"', "1x719 stale"),
        held('UUID="GPU-1", mapping_status="mapped", pod_uid="b", cost_center="CC-2"', "_x720 1x780"),
        power('UUID="GPU-2", gpu="1"'),
        held('UUID="GPU-2", mapping_status="shared", pod_uid="c", cost_center="CC-1"'),
        held('UUID="GPU-2", mapping_status="shared", pod_uid="d", cost_center="CC-2"'),
        *(power(f'UUID="GPU-3", gpu="2", GPU_I_ID="{gi}", GPU_I_PROFILE="1g.10gb"') for gi in (7, 8)),
        *(
            held(f'UUID="GPU-3", GPU_I_ID="{gi}", mapping_status="mapped", pod_uid="m{gi}", cost_center="CC-1"')
            for gi in (7, 8)
        ),
    ]
    # Half a day each of 600 W; the last minute of the day is the second holder's too.
    expected = [
        {"labels": '{cost_center="CC-1"}', "value": 600 * 719 / 60 / 1000},
        {"labels": '{cost_center="CC-2"}', "value": 600 * 721 / 60 / 1000},
    ]
    query = query_with(ATTRIBUTION_PAGE, "[1d:1m]")
    case = {"expr": query, "eval_time": "1d", "exp_samples": expected}
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [case]}
    file = tmp_path / "energy.test.yaml"
    file.write_text(yaml.safe_dump({"fuzzy_compare": True, "tests": [test]}))
    assert "SUCCESS" in promtool("test", "rules", file)
