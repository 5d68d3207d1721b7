import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from gpubank.domain.attribution import FIELDS
from gpubank.domain.errors import PolicyError
from nodeagent.exporter.apart import read_apart
from nodeagent.exporter.quantities import Dialect
from nodeagent.exporter.settings import AttributionField, load


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "exporter.yaml"
    path.write_text(text)
    return path


def test_without_a_file_everything_has_its_default() -> None:
    settings = load(None)
    assert (settings.listen.port, settings.show.dialect, settings.show.label_budget) == (9410, Dialect.CLASSIC, 30)


def test_settings_read_apart_are_those_of_the_models(tmp_path: Path) -> None:
    path = written(tmp_path, "show: {dialect: dcgm47, measure: attribution}\nlisten: {port: 9500}\n")
    read, rulebook = read_apart(path)
    assert _same(read, load(path))
    assert rulebook.by_name


def _same(plain: Any, model: BaseModel) -> bool:
    names = type(model).model_fields
    return set(vars(plain)) == set(names) and all(
        _same(getattr(plain, name), getattr(model, name))
        if isinstance(getattr(model, name), BaseModel)
        else getattr(plain, name) == getattr(model, name)
        for name in names
    )


def test_every_attribution_field_can_be_chosen() -> None:
    assert get_args(AttributionField) == FIELDS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("listen: {certificate: /tls.crt}", "certificate and key go together"),
        ("listen: {clientAuthorities: /ca.crt}", "needs a certificate of the server"),
        ("metadata: {address: 'x:1'}", "is required with an address"),
        ("show: {fields: [owner_id, owner_id]}", "is listed twice"),
        ("show: {fields: [email]}", "owner_id"),
        ("show: {labelBudget: 3}", "at least 16"),
        ("show: {dialekt: classic}", "'dialect'"),
        ("timing: {collect: 0}", "collect"),
    ],
)
def test_impossible_settings_are_refused_with_a_remedy_also_from_the_other_process(
    tmp_path: Path, text: str, words: str
) -> None:
    for read in (load, read_apart):
        with pytest.raises(PolicyError, match=words):
            read(written(tmp_path, text))


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(PolicyError, match="'/nowhere'"):
        read_apart(Path("/nowhere"))


def test_the_process_that_stays_imports_neither_temporal_nor_pydantic_nor_yaml() -> None:
    code = (
        "import sys; from nodeagent.exporter.apart import read_apart; read_apart(None);"
        "import nodeagent.exporter.main, nodeagent.exporter.wiring, pynvml;"
        "print(sorted({m.split('.')[0] for m in sys.modules}"
        " & {'temporalio', 'pydantic', 'yaml', 'sqlalchemy', 'lightkube', 'typer'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
