"""The models accept every good example and refuse every bad one, with field, value, rule and remedy."""

from typing import Any

import pytest

from gpubank.domain.errors import InvalidObjectError
from gpubank.domain.refusal import read
from gpubank.schema import KINDS
from tests.data.bad_examples import BAD, Bad
from tests.data.good_examples import GOOD, PUBLISHED, name_of


@pytest.mark.parametrize("body", [*GOOD.values(), *PUBLISHED], ids=name_of)
def test_a_good_example_is_accepted_and_survives_the_wire(body: dict[str, Any]) -> None:
    model = KINDS[body["kind"]].model
    resource = read(model, body)
    assert read(model, resource.to_wire()) == resource


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_a_bad_example_is_refused_in_words(bad: Bad) -> None:
    with pytest.raises(InvalidObjectError) as caught:
        read(KINDS[bad.kind].model, bad.body)
    (problem,) = (problem for problem in caught.value.problems if problem.field == bad.field)
    assert bad.rule in problem.rule
    assert problem.remedy


def test_the_table_is_long_enough_and_names_each_row_once() -> None:
    assert len({bad.name for bad in BAD}) == len(BAD) >= 40
    assert {bad.kind for bad in BAD} == set(GOOD) == set(KINDS)


def test_every_problem_is_found_at_once() -> None:
    body = {**GOOD["GPUQuotaPolicy"], "spec": {"businessGroup": "A", "guaranteed": "8", "borowLimit": 1}}
    with pytest.raises(InvalidObjectError) as caught:
        read(KINDS["GPUQuotaPolicy"].model, body)
    problems = {problem.field: str(problem) for problem in caught.value.problems}
    assert set(problems) == {"spec.businessGroup", "spec.guaranteed", "spec.borowLimit", "spec.resourcePool"}
    assert problems["spec.guaranteed"] == (
        'spec.guaranteed is "8": must be a whole number; write digits alone, without quotes or a decimal point'
    )
    assert "write 'borrowLimit', if you meant that" in problems["spec.borowLimit"]


def test_a_rule_between_fields_names_the_other_values() -> None:
    body = next(bad for bad in BAD if bad.name == "guarantee and loans beyond maxCapacity").body
    with pytest.raises(InvalidObjectError) as caught:
        read(KINDS["GPUQuotaPolicy"].model, body)
    assert str(caught.value) == (
        "GPUQuotaPolicy 'search-h100' is refused: spec.borrowLimit is 17: guaranteed (32) + borrowLimit must not"
        " exceed maxCapacity (48); write at most 16, or raise maxCapacity"
    )
