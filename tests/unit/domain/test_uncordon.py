"""Whether a node takes pods again when an incident's mark is taken off it."""

from datetime import UTC, datetime

import pytest

from gpubank.domain.servicing import CordonMark, CordonScope, NodeView, Uncordoned

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
GPU, NODE = CordonScope.GPU, CordonScope.NODE


def mark(incident: str, scope: CordonScope = NODE) -> CordonMark:
    return CordonMark(incident=incident, scope=scope, uuid="GPU-1", since=NOON)


def node(*marks: CordonMark, unschedulable: bool = True, ours: bool = True) -> NodeView:
    return NodeView(name="a", pool="h100", gpus=8, marks=marks, unschedulable=unschedulable, ours=ours)


@pytest.mark.parametrize(
    ("seen", "mine", "expected"),
    [
        pytest.param(
            node(mark("me")), mark("me"), Uncordoned(opened=True), id="the last mark on a node that we closed"
        ),
        pytest.param(
            node(mark("me"), mark("other", GPU)),
            mark("me"),
            Uncordoned(opened=True),
            id="another incident that is content with its GPU",
        ),
        pytest.param(
            node(mark("me"), mark("other")),
            mark("me"),
            Uncordoned(note="it stays cordoned for other"),
            id="another incident that wants the node closed",
        ),
        pytest.param(
            node(mark("me"), ours=False),
            mark("me"),
            Uncordoned(note="it stays cordoned: somebody else cordoned it"),
            id="a person's cordon",
        ),
        pytest.param(
            node(mark("me"), unschedulable=False),
            mark("me"),
            Uncordoned(note="somebody has opened it already"),
            id="a node that a person opened",
        ),
        pytest.param(
            node(mark("me", GPU), unschedulable=False), mark("me", GPU), Uncordoned(), id="a GPU of an open node"
        ),
        pytest.param(
            node(mark("me", GPU), mark("other")),
            mark("me", GPU),
            Uncordoned(note="the node is cordoned for another reason"),
            id="a GPU of a node that is closed for more",
        ),
    ],
)
def test_a_node_is_opened_by_whoever_closed_it_and_when_nobody_else_wants_it_closed(
    seen: NodeView, mine: CordonMark, expected: Uncordoned
) -> None:
    assert seen.without(mine) == expected
