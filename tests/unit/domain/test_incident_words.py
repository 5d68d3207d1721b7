"""What people may say of an incident, and what they are told where it does not count."""

import pytest

from gpubank.domain.incident import (
    ENDED,
    REPAIRABLE,
    Asks,
    IncidentPhase,
    IncidentState,
    IncidentWord,
    Word,
    word_refusal,
)

P = IncidentPhase
WORDS: tuple[Word, ...] = ("repaired", "retire", "approve")
ANN = IncidentWord(identity="ann")


@pytest.mark.parametrize("phase", IncidentPhase)
def test_each_word_counts_in_its_phases_and_nowhere_else(phase: IncidentPhase) -> None:
    state = IncidentState(phase=phase)
    assert {word: word_refusal("incident/x", state, word) for word in WORDS} == {
        "repaired": ""
        if phase in REPAIRABLE
        else f"incident 'incident/x': it is {phase}:"
        " only what is cordoned and not yet repaired can be said to be repaired",
        "retire": f"incident 'incident/x': it is {phase}: it cannot be retired any more" if phase in ENDED else "",
        "approve": f"incident 'incident/x': it is {phase}: nothing waits for approval",
    }


@pytest.mark.parametrize("asks", [Asks.CORDON, Asks.PODS])
def test_whatever_is_asked_can_be_approved(asks: Asks) -> None:
    assert word_refusal("incident/x", IncidentState(asks=asks), "approve") == ""


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("phase", [phase for phase in IncidentPhase if phase not in ENDED])
def test_nothing_counts_any_more_while_a_person_has_it_retired(phase: IncidentPhase, word: Word) -> None:
    state = IncidentState(phase=phase, asks=Asks.PODS, retired=ANN)
    assert word_refusal("incident/x", state, word) == (
        f"incident 'incident/x': it is {phase}: ann (unverified) has it retired, and no other word counts"
    )


def test_what_was_retired_cannot_be_retired_again() -> None:
    state = IncidentState(phase=P.RETIRED, retired=ANN)
    assert word_refusal("incident/x", state, "retire") == (
        "incident 'incident/x': it is Retired: it cannot be retired any more"
    )
