from nodeagent.attribution.identity import Witnesses
from nodeagent.attribution.inventory import Inventory
from nodeagent.attribution.mapping import Attribution, MappingStatus, attribute
from nodeagent.attribution.memory import Memory
from tests.unit.nodeagent_attribution.worlds import GPU, NOW, RESOURCE, a_snapshot, an_inventory, held, told

PODS = {("team-a", "train-0"): frozenset({"u1"}), ("team-a", "train-1"): frozenset({"u2"})}


def found(*pods: str, known: bool = True, told_uids: tuple[str, ...] = ("u1",)) -> Attribution:
    metadata = a_snapshot(*(told(uid, name="train-0" if uid == "u1" else "train-1") for uid in told_uids))
    witnesses = Witnesses(pods=PODS if known else {})
    return attribute([held(pod) for pod in pods], an_inventory(), witnesses, metadata, now=NOW)


def test_a_pods_last_samples_are_its_own_until_the_tombstone_ends() -> None:
    memory, inventory = Memory(120), an_inventory()
    before = memory.complete(found("train-0"), inventory, now=0).of(GPU)
    after = memory.complete(found(), inventory, now=119)
    assert after.of(GPU) == before
    assert after.tombstones == {GPU}
    ended = memory.complete(found(), inventory, now=121)
    assert (ended.of(GPU).status, ended.tombstones) == (MappingStatus.UNALLOCATED, frozenset())


def test_the_next_holder_ends_a_tombstone_at_once() -> None:
    memory, inventory = Memory(120), an_inventory()
    memory.complete(found("train-0"), inventory, now=0)
    memory.complete(found(), inventory, now=10)
    after = memory.complete(found("train-1"), inventory, now=20)
    assert ([holder.uid for holder in after.of(GPU).holders], after.tombstones) == (["u2"], frozenset())


def test_a_holder_whom_nobody_knows_is_not_taken_for_the_one_before() -> None:
    memory, inventory = Memory(120), an_inventory()
    memory.complete(found("train-0"), inventory, now=0)
    assert memory.complete(found("train-1", known=False), inventory, now=10).of(GPU).status is MappingStatus.UNKNOWN
    assert memory.complete(found(), inventory, now=20).tombstones == frozenset()


def test_a_device_that_is_gone_has_no_tombstone() -> None:
    memory = Memory(120)
    memory.complete(found("train-0"), an_inventory(), now=0)
    other = Inventory([an_inventory().gpus[0].__class__(uuid="GPU-other000", index=0, name="x", memory_mib=1)])
    assert memory.complete(Attribution(), other, now=1).tombstones == frozenset()


def test_what_was_told_about_a_pod_stays_while_it_holds_its_device() -> None:
    memory, inventory = Memory(120), an_inventory()
    memory.complete(found("train-0"), inventory, now=0)
    # The control plane forgets a pod when it is deleted; the kubelet lists it until its containers have ended.
    forgotten = memory.complete(found("train-0", told_uids=()), inventory, now=10).of(GPU).holders[0]
    assert forgotten.fields["business_group"] == "search"
    again = memory.complete(found("train-0", told_uids=()), inventory, now=20).of(GPU).holders[0]
    assert again.fields["business_group"] == "search"


def test_what_was_told_about_a_pod_is_not_its_successors() -> None:
    memory, inventory = Memory(120), an_inventory()
    memory.complete(found("train-0"), inventory, now=0)
    assert memory.complete(found("train-1", told_uids=()), inventory, now=10).of(GPU).holders[0].fields == {}


def test_memory_holds_only_devices_and_pods_that_are_or_just_were_here() -> None:
    memory, inventory = Memory(60), an_inventory()
    for number in range(500):
        name = ("team-a", f"train-{number}")
        checkpoint = {("main", RESOURCE, GPU): frozenset({f"u{number}"})}
        witnesses = Witnesses({name: frozenset({f"u{number}"})}, checkpoint)
        metadata = a_snapshot(told(f"u{number}", name=name[1]))
        memory.complete(
            attribute([held(name[1])], inventory, witnesses, metadata, now=NOW), inventory, now=float(number)
        )
    assert (len(memory._last), len(memory._told)) == (1, 1)
