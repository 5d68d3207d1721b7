"""What an incident does next: by the policy, whatever order things are told in, and never too much at once."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.decide.incident import breaker, judge, leaving, mended
from gpubank.domain.errors import IllegalTransitionError
from gpubank.domain.incident import ENDED, MOVES, GpuMark, GpuSight, IncidentPhase, moved_to
from gpubank.domain.incidentpolicy import IncidentPolicy, IncidentRule
from gpubank.domain.incidentsteps import Judgement, Verdict
from gpubank.domain.servicing import CordonMark, CordonScope, NodePod, NodeView, PodName
from nodeagent.health.policy import load

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
POLICY = IncidentPolicy()
NONE, GPU, NODE = CordonScope.NONE, CordonScope.GPU, CordonScope.NODE


def mark(cause: str, fault: str, action: str = "", minutes: float = 0) -> GpuMark:
    at = NOON + timedelta(minutes=minutes)
    return GpuMark(cause=cause, fault=fault, action=action, first_at=at, last_at=at)


def judged(*marks: GpuMark, seen: bool = True, after: float = 0, last: float = 0) -> Judgement:
    return judge(
        marks,
        seen=seen,
        last_edge_at=NOON + timedelta(minutes=last),
        policy=POLICY,
        now=NOON + timedelta(minutes=after),
    )


@pytest.mark.parametrize(
    ("cause", "fault", "action", "scope"),
    [
        ("xid 79", "hardware", "RESTART_BM", NODE),
        ("lost", "hardware", "LOST", NODE),
        ("recovery action NODE_REBOOT", "hardware", "NODE_REBOOT", NODE),
        ("remap-failed", "hardware", "REMAP_FAILED", GPU),
        ("recovery action DRAIN_P2P", "reset", "DRAIN_P2P", NODE),
        ("recovery action GPU_RESET", "reset", "GPU_RESET", GPU),
        ("xid 119 on instance 3/0", "reset", "RESET_GPU", GPU),
        ("ecc-event", "reset", "ECC_EVENT", GPU),
        ("hung", "transient", "HUNG", NONE),
        ("thermal", "transient", "THERMAL", NONE),
        ("xid 31", "application", "RESTART_APP", NONE),
        ("something", "of-another-policy", "", GPU),
    ],
)
def test_the_policy_says_what_a_fault_costs(cause: str, fault: str, action: str, scope: CordonScope) -> None:
    found = judged(mark(cause, fault, action))
    assert (found.verdict, found.scope) == (Verdict.WAIT if scope is NONE else Verdict.ACT, scope)
    assert found.cause == cause
    assert found.reason


def test_the_default_policy_knows_every_class_of_the_health_policy() -> None:
    """A class that it does not know would be treated by its last rule, which is for strangers."""
    health = load()
    rules = [rule for rule in POLICY.rules if rule.faults]
    assert {fault for rule in rules for fault in rule.faults} == set(health._classes)


def test_the_worst_fault_decides_and_the_first_rule_that_fits() -> None:
    found = judged(mark("thermal", "transient"), mark("xid 79", "hardware"), mark("xid 119", "reset"))
    assert (found.scope, found.cause) == (NODE, "xid 79")
    strict = POLICY.model_copy(
        update={"rules": (IncidentRule(causes=("thermal",), scope=NODE, why="this hall is too hot"), *POLICY.rules)}
    )
    found = judge([mark("thermal", "transient")], seen=True, last_edge_at=NOON, policy=strict, now=NOON)
    assert (found.scope, found.reason) == (NODE, "this hall is too hot")


def test_what_should_pass_by_itself_and_does_not_takes_the_gpu_out() -> None:
    hung = mark("hung", "transient")
    before = judged(hung, after=29.9)
    assert (before.verdict, before.again_at) == (Verdict.WAIT, NOON + timedelta(minutes=30))
    after = judged(hung, after=30)
    assert (after.verdict, after.scope) == (Verdict.ACT, GPU)
    assert after.reason == "it should pass by itself and has lasted for 30 min"


def test_it_is_over_only_when_the_node_says_so_and_a_burst_can_be_over() -> None:
    assert judged(after=2.9).again_at == NOON + timedelta(minutes=3)
    assert judged(after=3).verdict is Verdict.RECOVERED
    unseen = judged(seen=False, after=60)
    assert unseen.verdict is Verdict.WAIT
    assert unseen.again_at is not None
    assert unseen.again_at > NOON + timedelta(minutes=60)


@pytest.mark.parametrize(
    ("seen", "after", "burst", "again"),
    [(True, 0.5, 1, 1), (False, 0.5, 1, 1), (False, 1, 1, 2), (False, 1, 4, 4), (False, 4, 4, 8), (False, 4, 0.5, 5)],
)
def test_quiet_is_awaited_for_a_burst_and_then_looked_for_once_in_a_burst_or_a_minute(
    seen: bool, after: float, burst: float, again: float
) -> None:
    policy = POLICY.model_copy(update={"burst": timedelta(minutes=burst)})
    found = judge((), seen=seen, last_edge_at=NOON, policy=policy, now=NOON + timedelta(minutes=after))
    assert (found.verdict, found.again_at) == (Verdict.WAIT, NOON + timedelta(minutes=again))


def test_of_several_that_should_pass_the_oldest_counts_and_is_named() -> None:
    older, newer = mark("hung", "transient", minutes=-10), mark("thermal", "transient")
    for marks in ((older, newer), (newer, older)):
        assert judged(*marks).again_at == NOON + timedelta(minutes=20)
        found = judged(*marks, after=20)
        assert (found.verdict, found.cause) == (Verdict.ACT, "hung")


def test_who_waits_says_why_the_rule_does_or_that_it_may_pass() -> None:
    for why, said in (("it cools down", "it cools down"), ("", "it may pass by itself")):
        rule = IncidentRule(causes=("thermal",), scope=CordonScope.NONE, why=why)
        policy = POLICY.model_copy(update={"rules": (rule,)})
        found = judge([mark("thermal", "transient")], seen=True, last_edge_at=NOON, policy=policy, now=NOON)
        assert (found.verdict, found.reason) == (Verdict.WAIT, said)


MARKS = st.lists(
    st.builds(
        mark,
        st.sampled_from(["xid 79", "lost", "thermal", "remap-failed", "xid 119", "odd"]),
        st.sampled_from(["hardware", "reset", "transient", "application", "odd"]),
        st.sampled_from(["", "DRAIN_P2P", "RESET_GPU"]),
        st.integers(-60, 0).map(float),
    ),
    max_size=5,
)


@given(MARKS, st.randoms(), st.booleans(), st.integers(0, 60))
def test_the_order_in_which_faults_are_told_changes_nothing(
    marks: list[GpuMark], random: object, seen: bool, after: int
) -> None:
    shuffled = list(marks)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert judged(*marks, seen=seen, after=after) == judged(*shuffled, seen=seen, after=after)


@given(MARKS, MARKS, st.integers(0, 60))
def test_one_more_fault_never_makes_less_of_it(one: list[GpuMark], more: list[GpuMark], after: int) -> None:
    assert judged(*one, *more, after=after).scope.width >= judged(*one, after=after).scope.width


@given(MARKS, st.booleans(), st.integers(0, 600))
def test_whoever_waits_is_told_until_when_and_that_lies_ahead(marks: list[GpuMark], seen: bool, after: int) -> None:
    found = judged(*marks, seen=seen, after=after)
    if found.verdict is Verdict.WAIT:
        assert found.again_at is not None
        assert found.again_at > NOON + timedelta(minutes=after)
    else:
        assert found.again_at is None
    if found.verdict is Verdict.RECOVERED:
        assert seen
        assert not marks


def test_a_gpu_that_has_been_taken_away_costs_the_others_of_its_node_nothing() -> None:
    marks = (mark("xid 79", "hardware", "RESTART_BM"),)
    found = judge(marks, seen=False, last_edge_at=NOON, policy=POLICY, now=NOON, removed=True)
    assert (found.verdict, found.scope, found.cause) == (Verdict.ACT, GPU, "xid 79")
    assert "has no such GPU now" in found.reason


# ---- the breaker


def node(name: str, *marks: CordonMark, gpus: int = 8, **state: bool) -> NodeView:
    told = {{"closed": "unschedulable"}.get(key, key): value for key, value in state.items()}
    return NodeView(name=name, pool="h100", gpus=gpus, marks=marks, **told)


def of(incident: str, scope: CordonScope = NODE, uuid: str = "GPU-1") -> CordonMark:
    return CordonMark(incident=incident, scope=scope, uuid=uuid, since=NOON)


def allowed(pool: list[NodeView], name: str, scope: CordonScope = NODE, incident: str = "me") -> bool:
    return not breaker(pool, node=name, incident=incident, scope=scope, policy=POLICY)


def test_the_first_may_always_go_and_then_the_share_decides() -> None:
    assert allowed([node("a"), node("b")], "a")
    two = [node("a", of("other"), closed=True, ours=True), node("b")]
    assert not allowed(two, "b")
    ten = [node(f"n{n}") for n in range(10)]
    ten[0] = node("n0", of("other"), closed=True, ours=True)
    assert allowed(ten, "n1"), "2 of 10 is 20 %"
    ten[1] = node("n1", closed=True)
    assert not allowed(ten, "n2")
    assert breaker(ten, node="n2", incident="me", scope=NODE, policy=POLICY) == (
        "16 of 80 GPUs of pool 'h100' are out of service already; with this one it would be 24, beyond 20 %"
    )


@pytest.mark.parametrize(
    "out",
    [
        pytest.param(node("a", closed=True), id="a person's cordon"),
        pytest.param(node("a", ready=False), id="a node that is not ready"),
        pytest.param(node("a", of("other"), closed=True, ours=True), id="another incident"),
    ],
)
def test_whatever_is_out_for_any_reason_counts(out: NodeView) -> None:
    assert not allowed([out, node("b")], "b")


def test_what_is_out_already_costs_nothing_more() -> None:
    assert allowed([node("a", closed=True), node("b")], "a")
    assert allowed([node("a", of("me"), closed=True, ours=True), node("b")], "a"), "asked again after it was done"


def test_a_mark_on_a_node_that_somebody_has_opened_since_closes_nothing() -> None:
    pool = [node("a", of("retired", NODE, "g1"))]
    assert [each.out_without("me") for each in pool] == [1], "only its GPU"


def test_single_gpus_count_as_such() -> None:
    pool = [node("a", of("o1", GPU, "g1"), of("o2", GPU, "g2")), node("b")]
    assert allowed(pool, "b", GPU), "3 of 16"
    assert not allowed(pool, "b"), "10 of 16"
    pool[1] = node("b", of("o3", GPU, "g3"))
    assert not allowed(pool, "b", GPU), "4 of 16"


def test_a_pool_is_named_by_any_of_its_nodes_that_knows_its_name() -> None:
    nameless = node("a", closed=True).model_copy(update={"pool": ""})
    found = breaker([nameless, node("b")], node="b", incident="me", scope=NODE, policy=POLICY)
    assert found.startswith("8 of 16 GPUs of pool 'h100' are out of service already")


NODES = st.lists(
    st.tuples(st.integers(0, 16), st.sampled_from(["", "closed", "unready", "node", "gpu"])), min_size=1, max_size=12
)


def _pool(shape: list[tuple[int, str]]) -> list[NodeView]:
    return [
        node(
            f"n{number:02}",
            *([of(f"i{number}", NODE if state == "node" else GPU)] if state in ("node", "gpu") else []),
            gpus=gpus,
            closed=state in ("closed", "node"),
            ours=state == "node",
            ready=state != "unready",
        )
        for number, (gpus, state) in enumerate(shape)
    ]


@given(NODES, st.data(), st.integers(0, 100))
def test_whatever_goes_without_approval_is_the_first_or_within_the_share(
    shape: list[tuple[int, str]], data: st.DataObject, percent: int
) -> None:
    pool, policy = _pool(shape), POLICY.model_copy(update={"max_out_percent": percent})
    name = data.draw(st.sampled_from([each.name for each in pool]))
    scope = data.draw(st.sampled_from([GPU, NODE]))
    found = breaker(pool, node=name, incident="me", scope=scope, policy=policy)
    before = sum(each.out_without("me") for each in pool)
    mine = next(each for each in pool if each.name == name)
    own = mine.out_without("me")
    after = before - own + (mine.gpus if scope is NODE else min(mine.gpus, own + 1))
    within = after * 100 <= percent * sum(each.gpus for each in pool)
    assert (found == "") is (after == before or before == 0 or within)


@given(st.lists(st.integers(1, 8), min_size=2, max_size=12), st.randoms(use_true_random=False))
def test_however_cordons_race_never_more_than_the_share_stays(sizes: list[int], random: object) -> None:
    """Each marks, counts anew, and takes its mark back where too many stand; in any interleaving of those steps."""
    marks: dict[str, bool] = {}
    pool = {f"n{number}": gpus for number, gpus in enumerate(sizes)}

    def views() -> list[NodeView]:
        return [
            node(name, *([of(name)] if marks.get(name) else []), gpus=gpus, closed=marks.get(name, False), ours=True)
            for name, gpus in pool.items()
        ]

    steps = dict.fromkeys(pool, 0)
    while waiting := [name for name, step in steps.items() if step < 2]:
        name = random.choice(waiting)  # type: ignore[attr-defined]
        if steps[name] == 0 and allowed(views(), name, incident=name):
            marks[name] = True
            steps[name] = 1
        else:
            if steps[name] == 1 and not allowed(views(), name, incident=name):
                marks[name] = False
            steps[name] = 2
    out = [pool[name] for name, standing in marks.items() if standing]
    assert len(out) <= 1 or sum(out) * 100 <= POLICY.max_out_percent * sum(sizes)


# ---- who leaves, and what is mended


def pod(name: str, gpus: int = 1, *, stays: bool = False) -> NodePod:
    return NodePod(namespace="t", name=name, uid=name, node="n", gpus=gpus, stays=stays)


def test_only_who_uses_a_gpu_and_can_go_leaves() -> None:
    pods = [pod("b"), pod("a"), pod("web", 0), pod("dcgm", stays=True)]
    everybody = leaving(pods, scope=NODE, holders=None)
    assert everybody is not None
    assert [each.name for each in everybody] == ["a", "b"]
    only = leaving(pods, scope=GPU, holders=[PodName(namespace="t", name="b"), PodName(namespace="x", name="a")])
    assert only is not None
    assert [each.name for each in only] == ["b"]
    assert leaving(pods, scope=GPU, holders=None) is None
    assert leaving(pods, scope=NONE, holders=None) == ()


@pytest.mark.parametrize(
    ("sight", "is_mended"),
    [
        (GpuSight(verdict="NONE"), True),
        (GpuSight(verdict="NONE", wrong="lost"), False),
        (GpuSight(verdict="GPU_RESET"), False),
        (GpuSight(verdict=""), False),
        (GpuSight(found=False, verdict="NONE"), False),
    ],
)
def test_only_a_driver_that_says_so_makes_a_gpu_mended(sight: GpuSight, is_mended: bool) -> None:
    assert mended(sight) is is_mended


# ---- the table


def test_every_phase_can_end_and_what_has_ended_stays_so() -> None:
    assert set(MOVES) == set(IncidentPhase)
    for phase, following in MOVES.items():
        assert (not following) is (phase in ENDED)
        assert phase in ENDED or IncidentPhase.RETIRED in following
    reached = {IncidentPhase.SUSPECT}
    while more := {each for phase in reached for each in MOVES[phase]} - reached:
        reached |= more
    assert reached == set(IncidentPhase)


def test_a_move_that_the_table_does_not_have_is_refused() -> None:
    assert moved_to("incident", IncidentPhase.SUSPECT, IncidentPhase.CORDONED) is IncidentPhase.CORDONED
    with pytest.raises(IllegalTransitionError, match="is Suspect: it cannot become Repaired"):
        moved_to("incident", IncidentPhase.SUSPECT, IncidentPhase.REPAIRED)
