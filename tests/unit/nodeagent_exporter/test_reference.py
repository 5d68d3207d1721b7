from pathlib import Path

from nodeagent.exporter import reference
from nodeagent.exporter.names import COLLECTED, LIVE
from nodeagent.exporter.quantities import QUANTITIES

ROOT = Path(__file__).parents[3]


def test_the_written_page_is_that_of_the_code() -> None:
    assert reference.write(ROOT, check=True) == [], "run `gpubank schema write`"


def test_a_page_that_differs_is_found_and_written(tmp_path: Path) -> None:
    assert reference.write(tmp_path, check=True) == [reference.PATH]
    assert not (tmp_path / reference.PATH).exists()
    assert reference.write(tmp_path) == [reference.PATH]
    assert reference.write(tmp_path) == []


def test_the_page_names_every_family_and_says_what_every_setting_means() -> None:
    page = reference.page()
    for name in (*(name for name, _, _ in (*COLLECTED, *LIVE)), *(each.dcgm47.name for each in QUANTITIES)):
        assert f"`{name}`" in page
    settings = page.partition("## Settings")[2].splitlines()
    rows = [line.split(" | ") for line in settings if line.startswith("| `")]
    assert len(rows) > 30
    assert all(len(row[-1].strip(" |")) > 10 for row in rows)
