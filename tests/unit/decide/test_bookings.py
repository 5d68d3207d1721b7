"""Where a namespace's work is booked, as the organisation changes."""

from datetime import timedelta

from gpubank.decide.attribution import bookings
from gpubank.domain.group import BusinessGroup
from gpubank.domain.ledger import OrgUnit
from tests.unit.decide.parts import NOW

DAY = timedelta(days=1)


def test_a_move_that_leaves_the_cost_center_as_it_is_is_no_news_to_a_node() -> None:
    group = BusinessGroup.from_wire(
        {
            "apiVersion": "platform.aik8s.run/v1alpha1",
            "kind": "BusinessGroup",
            "metadata": {"name": "search"},
            "spec": {"owner": "lin@example.com", "namespaces": ["team-search"], "costCenter": "CC-1"},
        }
    )
    rows = [
        OrgUnit(
            business_group="search",
            cost_center=cost_center,
            department=department,
            valid_from=NOW + start * DAY,
            valid_to=NOW + end * DAY,
            recorded_at=NOW,
        )
        for cost_center, department, start, end in [("CC-9", "north", -1, 1), ("CC-9", "south", 1, 2)]
    ]
    spans = bookings([group], rows, now=NOW)["team-search"]
    assert [(span.cost_center, span.effective_from - NOW) for span in spans[1:]] == [("CC-1", 2 * DAY)]
    assert spans[0].cost_center == "CC-9"
