from hypothesis import given
from hypothesis import strategies as st

from nodeagent.attribution.identity import Witnesses
from tests.unit.nodeagent_attribution.worlds import GPU, GPU2, RESOURCE, a_snapshot, held, told

NAME = ("team-a", "train-0")
ON_GPU = ("main", RESOURCE, GPU)


def test_the_pods_api_names_a_pod_where_it_knows_one_of_that_name() -> None:
    assert Witnesses(pods={NAME: frozenset({"u1"})}).uid(held()) == "u1"


def test_of_two_pods_of_one_name_the_checkpoint_says_which_holds_the_device() -> None:
    pods = {NAME: frozenset({"old", "new"})}
    checkpoint = {ON_GPU: frozenset({"new"}), ("main", RESOURCE, GPU2): frozenset({"old"})}
    witnesses = Witnesses(pods, checkpoint)
    assert (witnesses.uid(held()), witnesses.uid(held(device=GPU2))) == ("new", "old")


def test_of_two_pods_of_one_name_none_is_taken_without_a_checkpoint() -> None:
    assert Witnesses(pods={NAME: frozenset({"old", "new"})}).uid(held()) is None


def test_a_pod_that_made_way_between_two_questions_is_not_taken_for_its_successor() -> None:
    # List saw the old pod on the device; the Pods API already knows only the new one; the checkpoint has let go.
    assert Witnesses(pods={NAME: frozenset({"new"})}, checkpoint={}).uid(held()) is None
    assert Witnesses(pods={NAME: frozenset({"new"})}, checkpoint={ON_GPU: frozenset({"old"})}).uid(held()) is None


def test_the_checkpoint_names_a_pod_where_the_pods_api_is_off() -> None:
    assert Witnesses(checkpoint={ON_GPU: frozenset({"u1"})}).uid(held()) == "u1"
    assert Witnesses(checkpoint={ON_GPU: frozenset({"u1", "u2"})}).uid(held()) is None


def test_a_checkpoint_that_names_another_pod_of_the_snapshot_is_not_believed() -> None:
    snapshot = a_snapshot(told("u1", name="other-0"))
    assert Witnesses(checkpoint={ON_GPU: frozenset({"u1"})}, snapshot=snapshot).uid(held()) is None


def test_the_snapshot_names_a_pod_only_while_it_is_fresh_and_unambiguous() -> None:
    one, two = a_snapshot(told("u1")), a_snapshot(told("u1"), told("u2"))
    assert Witnesses(snapshot=one).uid(held()) == "u1"
    assert Witnesses(snapshot=two).uid(held()) is None
    assert Witnesses(snapshot=one, fresh=False).uid(held()) is None
    assert Witnesses(pods={}, snapshot=one).uid(held()) is None, "the kubelet answers, and knows no such pod"


UIDS = st.frozensets(st.sampled_from(["u1", "u2", "u3"]), max_size=3)


@given(running=st.none() | UIDS, noted=st.none() | UIDS, named=UIDS)
def test_a_uid_is_one_that_every_witness_who_knows_the_pod_allows(
    running: frozenset[str] | None, noted: frozenset[str] | None, named: frozenset[str]
) -> None:
    witnesses = Witnesses(
        pods={NAME: running} if running is not None else None,
        checkpoint={ON_GPU: noted} if noted is not None else None,
        snapshot=a_snapshot(*(told(uid) for uid in named)),
    )
    uid = witnesses.uid(held())
    if uid is not None:
        assert not running or uid in running
        assert not (running and noted is not None) or uid in noted
        assert uid in (running or frozenset()) | (noted or frozenset()) | named
