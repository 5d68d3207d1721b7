"""A real Prometheus of a test, what it is asked, and promtool; rule files and queries as the project ships them."""

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx2
import yaml

from gpubank.lab.access import documents
from gpubank.simulation.processes import free_port

ROOT: Final = Path(__file__).parents[2]
MONITORING: Final = ROOT / "manifests" / "components" / "monitoring"
ATTRIBUTION_PAGE: Final = ROOT / "docs" / "how-to" / "attribute-gpus.md"
RUNBOOK: Final = ROOT / "docs" / "how-to" / "operate.md"

Vector = list[tuple[dict[str, str], float]]


class Prometheus:
    """A server that runs."""

    def __init__(self, url: str, log: Path | None = None) -> None:
        self.url, self._log = url, log
        self._http = httpx2.Client(base_url=url, trust_env=False, timeout=10)

    def query(self, expression: str) -> Vector:
        """Return what an expression is now."""
        return [(row["metric"], float(row["value"][1])) for row in self.get("query", query=expression)["result"]]

    def number(self, expression: str) -> float:
        """Return what an expression is now that has one value."""
        ((_, value),) = self.query(expression)
        return value

    def get(self, what: str, **params: str) -> Any:
        """Ask the API."""
        answer = self._http.get(f"/api/v1/{what}", params=params)
        assert answer.status_code == httpx2.codes.OK, f"{params}: {answer.text}"
        return answer.json()["data"]

    def until(self, holds: Callable[[], bool], what: str, seconds: float = 30) -> None:
        """Wait until something can be seen."""
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                targets = [(t["scrapeUrl"], t["health"], t["lastError"]) for t in self.get("targets")["activeTargets"]]
                raise AssertionError(f"{what}: not within {seconds:g} s; {targets}; {self._said()}")
            time.sleep(0.05)

    def until_up(self, *jobs: str) -> None:
        """Wait until every target of the jobs was scraped."""

        def up() -> bool:
            found = self.query(f'up{{job=~"{"|".join(jobs)}"}}')
            return {labels["job"] for labels, _ in found} == set(jobs) and all(value == 1 for _, value in found)

        self.until(up, f"{', '.join(jobs)} scraped")

    def close(self) -> None:
        """Close every socket of this side."""
        self._http.close()

    def _said(self) -> str:
        return self._log.read_text()[-2000:] if self._log is not None else ""


@contextmanager
def running(binary: Path, folder: Path, jobs: Iterable[Mapping[str, Any]]) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes these jobs five times a second."""
    every = {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"}
    config = folder / "prometheus.yaml"
    config.write_text(yaml.safe_dump({"global": every, "scrape_configs": [dict(job) for job in jobs]}))
    address, log = f"127.0.0.1:{free_port()}", folder / "prometheus.log"
    command = [str(binary), f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    command += [f"--web.listen-address={address}", "--log.level=warn"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    server = Prometheus(f"http://{address}", log)
    try:
        wait_for(f"http://{address}/-/ready", process, log)
        yield server
    finally:
        server.close()
        process.kill()
        process.wait()
        shutil.rmtree(folder / "tsdb", ignore_errors=True)


def wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path, seconds: float = 30) -> None:
    """Wait until an address answers 200."""
    deadline = time.monotonic() + seconds
    while True:
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < deadline, f"{url} does not answer: {log.read_text()[-2000:]}"
        try:
            if httpx2.get(url, trust_env=False).status_code == httpx2.codes.OK:
                return
        except httpx2.HTTPError:
            pass
        time.sleep(0.05)


# ---- promtool


class Promtool:
    """Runs promtool; what it refuses is a failure of the test, in promtool's words."""

    def __init__(self, binary: Path) -> None:
        self._binary = binary

    def __call__(self, *arguments: str | Path, given: str | None = None, code: int = 0) -> str:
        """Run it and return what it says on both outputs; any other exit code than `code` fails."""
        done = subprocess.run([self._binary, *arguments], input=given, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        assert done.returncode == code, f"promtool {arguments[:2]} exits with {done.returncode}:\n{said[-4000:]}"
        return said


# ---- what is shipped


def rule_files() -> dict[str, str]:
    """Return every rule file in the manifests, by its name."""
    bodies = (body for path in sorted((ROOT / "manifests").rglob("*.yaml")) for body in documents(path))
    found: dict[str, str] = {}
    for body in bodies:
        if body.get("kind") == "ConfigMap":
            found.update({name: text for name, text in body["data"].items() if name.endswith(".rules.yaml")})
    return found


def alerts() -> list[dict[str, Any]]:
    """Return every alert of every rule file."""
    groups = (group for text in rule_files().values() for group in yaml.safe_load(text)["groups"])
    return [rule for group in groups for rule in group["rules"]]


def scrape_file() -> str:
    """Return the shipped `scrape_config_files` entry."""
    (body,) = documents(MONITORING / "scrape.yaml")
    (text,) = body["data"].values()
    return str(text)


def scrape_job(name: str, port: int, **meta: str) -> dict[str, Any]:
    """Return a shipped job with its discovery replaced by one target and what discovery would say of it."""
    (job,) = [job for job in yaml.safe_load(scrape_file())["scrape_configs"] if job["job_name"] == name]
    del job["kubernetes_sd_configs"]
    labels = {f"__meta_kubernetes_{key}": value for key, value in meta.items()}
    return {**job, "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": labels}]}


def queries(page: Path) -> list[str]:
    """Return the PromQL queries that a page shows, each without its comment."""
    blocks = re.findall(r"^```promql\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    parts = (part for block in blocks for part in re.split(r"\n\s*\n", block))
    bare = (re.sub(r"^\s*#.*\n", "", part, flags=re.MULTILINE).strip() for part in parts)
    return [query for query in bare if query]


def query_with(page: Path, text: str) -> str:
    """Return the one query of a page that has `text` in it."""
    (found,) = [query for query in queries(page) if text in query]
    return found


def metric_names(expression: str) -> set[str]:
    """Return the names of ours, and of DCGM's form, that an expression asks for."""
    return set(re.findall(r"\b(?:gpubank_\w+|DCGM_FI_\w+)", expression))


def series_of(labels: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return those of the labels that are there."""
    return {name: labels[name] for name in names if name in labels}
