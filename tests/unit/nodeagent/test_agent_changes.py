"""The plugin while the hardware changes: faults, recovery, hot-plug, MIG, hangs, new rules."""

import asyncio
import json
import threading
from collections.abc import Callable

import pytest

from gpubank.domain.errors import ConflictError, PolicyError
from nodeagent.classes import rules
from nodeagent.health import policy
from nodeagent.nvml.snapshot import Condition
from nodeagent.plugin.control import CONTROL_SOCKET, answer, listening
from nodeagent.plugin.report import REPORT_FILE
from tests.fakes.kubelet import AdmissionError
from tests.unit.nodeagent.conftest import PREFIX, Node

H100 = f"{PREFIX}h100-80gb"


async def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"it never came to be that {what}")


def impatient(node: Node) -> str:
    """A health policy whose quiet period is over at once."""
    file = node.folder / "health.yaml"
    file.write_text(policy.DEFAULT_POLICY.read_text().replace("quietPeriodSeconds: 300", "quietPeriodSeconds: 0"))
    return str(file)


async def test_a_fault_takes_out_one_gpu_of_one_class_only(node: Node) -> None:
    node.facts.gpu("GPU-0")
    node.facts.gpu("GPU-1")
    node.facts.gpu("GPU-l", "NVIDIA L40S")
    agent = await node.start_agent()
    await node.sees(h100_80gb=2, l40s_48gb=1)
    await until(lambda: bool(agent.monitor._listening), "events are listened to")
    told = node.kubelet.messages[f"{PREFIX}l40s-48gb"]
    node.facts.event("GPU-1", xid=79)
    await node.sees(h100_80gb=1, l40s_48gb=1)
    assert node.kubelet.healthy(H100) == {"GPU-0"}
    assert node.kubelet.messages[f"{PREFIX}l40s-48gb"] == told
    assert node.kubelet.capacity()[H100] == 2


async def test_an_applications_xid_takes_nothing_out(node: Node) -> None:
    node.facts.gpu("GPU-0")
    agent = await node.start_agent()
    await node.sees(h100_80gb=1)
    node.facts.event("GPU-0", xid=31)
    node.facts.event("GPU-0", xid=79)  # so that the first is known to have been heard
    await node.sees(h100_80gb=0)
    assert list(agent.monitor.book.marks["GPU-0"]) == ["xid 79"]


async def test_an_unhealthy_gpu_survives_a_restart_of_the_agent_and_comes_back_on_release(node: Node) -> None:
    node.facts.gpu("GPU-0")
    agent = await node.start_agent()
    await node.sees(h100_80gb=1)
    node.facts.change("GPU-0", recovery=1)
    await node.sees(h100_80gb=0)
    node.facts.change("GPU-0", recovery=0)
    await node.stop_agent(agent)
    agent = await node.start_agent()
    await node.sees(h100_80gb=0)
    await until(lambda: agent.monitor.book.still_wrong("GPU-0") == "", "the driver asks for nothing")
    assert await agent.release("GPU-0", key="r/1")
    await node.sees(h100_80gb=1)
    assert not await agent.release("GPU-0", key="r/1")


async def test_a_release_is_refused_while_the_driver_asks_for_a_reset(node: Node) -> None:
    node.facts.gpu("GPU-0", recovery=1)
    agent = await node.start_agent()
    await node.sees(h100_80gb=0)
    with pytest.raises(ConflictError, match="still reports recovery action GPU_RESET"):
        await agent.release("GPU-0")
    with pytest.raises(PolicyError, match="'GPU-9' is none of this node's"):
        await agent.release("GPU-9")


async def test_a_hung_gpu_is_out_and_back_and_the_other_is_served_meanwhile(node: Node) -> None:
    node.facts.gpu("GPU-0")
    node.facts.gpu("GPU-1")
    await node.start_agent(healthPolicy=impatient(node))
    await node.sees(h100_80gb=2)
    node.facts.change("GPU-0", hang=1)
    await node.sees(h100_80gb=1)
    pod = await node.kubelet.admit("u1", {H100: 1})
    assert pod.containers[0].devices == {H100: ["GPU-1"]}
    node.facts.change("GPU-0", hang=0)
    await node.sees(h100_80gb=2)


async def test_an_nvml_that_hangs_as_a_whole_does_not_stop_the_servers(node: Node) -> None:
    node.facts.gpu("GPU-0")
    agent = await node.start_agent()
    await node.sees(h100_80gb=1)
    node.facts.set_system(hang=1, hang_events=1)
    await until(lambda: "did not answer" in agent.monitor.problem or "stuck" in agent.monitor.problem, "it is noticed")
    await node.kubelet.restart()
    await node.sees(h100_80gb=1)
    node.facts.set_system(hang=0, hang_events=0)
    await until(lambda: agent.monitor.problem == "", "it is over")


async def test_a_lost_gpu_stays_in_the_list_as_unhealthy(node: Node) -> None:
    node.facts.gpu("GPU-0")
    node.facts.gpu("GPU-1")
    agent = await node.start_agent()
    await node.sees(h100_80gb=2)
    node.facts.change("GPU-0", lost=1)
    await node.sees(h100_80gb=1)
    assert node.kubelet.capacity()[H100] == 2
    await until(lambda: len(agent.monitor.snapshot.unreadable) == 1, "the loss is seen in the list")
    assert node.kubelet.capacity()[H100] == 2
    assert [mark.cause for mark in agent.monitor.book.against("GPU-0")] == ["lost"]


async def test_the_last_gpu_that_is_pulled_leaves_an_empty_list_and_a_new_one_fills_it(node: Node) -> None:
    driver = node.folder / "driver"
    (driver / "0000:18:00.0").mkdir()
    node.facts.gpu("GPU-0")
    await node.start_agent()
    await node.sees(h100_80gb=1)
    node.facts.remove("GPU-0")
    (driver / "0000:18:00.0").rmdir()
    await node.kubelet.until({H100: 0})
    await until(lambda: node.kubelet.capacity() == {H100: 0}, "the list is empty")
    node.facts.gpu("GPU-1")
    node.facts.gpu("GPU-2", "NVIDIA L40S")
    (driver / "0000:19:00.0").mkdir()
    await node.sees(h100_80gb=1, l40s_48gb=1)
    assert node.kubelet.healthy(H100) == {"GPU-1"}


async def test_a_gpu_that_is_looked_at_between_two_sessions_has_done_nothing_wrong(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.facts.gpu("GPU-0")
    agent = await node.start_agent()
    await node.sees(h100_80gb=1)
    nvml = agent.monitor._nvml
    opened, asked, go_on = nvml.open, threading.Event(), threading.Event()

    def open_late() -> str:
        assert go_on.wait(10)
        return opened()

    def condition(uuid: str) -> Condition:
        try:
            return type(nvml).condition(nvml, uuid)
        finally:
            asked.set()

    monkeypatch.setattr(nvml, "open", open_late)
    node.facts.gpu("GPU-l", "NVIDIA L40S")
    (node.folder / "driver" / "0000:19:00.0").mkdir()
    await until(lambda: not agent.monitor._open, "the old session is closed")
    monkeypatch.setattr(nvml, "condition", condition)
    await until(asked.is_set, "somebody asks in between")
    go_on.set()
    await node.sees(h100_80gb=1, l40s_48gb=1)
    assert agent.monitor.book.marks == {}


async def test_a_mig_switch_moves_the_gpu_to_other_resources_without_a_restart(node: Node) -> None:
    node.facts.gpu("GPU-0")
    node.facts.gpu("GPU-1")
    await node.start_agent()
    await node.sees(h100_80gb=2)
    with node.facts.at_once():
        node.facts.mig("GPU-1", "MIG-a", "1g.10gb", gi=1)
        node.facts.mig("GPU-1", "MIG-b", "3g.40gb", gi=2)
        node.facts.event("GPU-1", kind=0x100)
    await node.sees(h100_80gb=1, h100_80gb__mig_1g__10gb=1, h100_80gb__mig_3g__40gb=1)
    node.facts.unmig("GPU-1")
    await node.sees(h100_80gb=2, h100_80gb__mig_1g__10gb=0, h100_80gb__mig_3g__40gb=0)


async def test_a_fault_of_one_instance_takes_out_every_device_on_it_and_no_other(node: Node) -> None:
    node.facts.gpu("GPU-0")
    for number in (1, 2, 3):
        node.facts.mig("GPU-0", f"MIG-{number}", "1g.10gb", gi=number)
    resource = "h100-80gb.mig-1g.10gb"
    agent = await node.start_agent(sharing={"timeSlicing": {"resources": [{"name": resource, "replicas": 2}]}})
    await node.sees(h100_80gb__mig_1g__10gb__shared=6)
    await until(lambda: bool(agent.monitor._listening), "events are listened to")
    node.facts.event("GPU-0", xid=95, gi=2, ci=0)
    await node.sees(h100_80gb__mig_1g__10gb__shared=4)
    assert not any(name.startswith("MIG-2") for name in node.kubelet.healthy(f"{PREFIX}{resource}.shared"))
    node.facts.event("GPU-0", xid=79)
    await node.sees(h100_80gb__mig_1g__10gb__shared=0)


async def test_new_rules_come_into_force_and_broken_ones_do_not(node: Node) -> None:
    file = node.folder / "rules.yaml"
    file.write_text(rules.DEFAULT_RULES.read_text())
    node.facts.gpu("GPU-0")
    agent = await node.start_agent(rules=str(file))
    await node.sees(h100_80gb=1)
    file.write_text("classes: nonsense")
    await asyncio.sleep(0.2)
    await node.sees(h100_80gb=1)
    new = node.folder / "new.yaml"
    new.write_text(rules.DEFAULT_RULES.read_text().replace("name: h100-80gb", "name: hopper-80gb"))
    new.replace(file)
    await node.sees(h100_80gb=0, hopper_80gb=1)
    assert "hopper-80gb" in agent.rulebook.by_name


async def test_a_node_without_a_driver_waits_for_one(node: Node) -> None:
    node.facts.set_system(fail=9)
    agent = await node.start_agent()
    assert "NVML does not start" in agent.monitor.problem
    node.facts.gpu("GPU-0")
    node.facts.set_system(fail=0)
    await node.sees(h100_80gb=1)


async def test_a_person_takes_a_gpu_out_and_puts_it_back_over_the_control_socket(node: Node) -> None:
    node.facts.gpu("GPU-0")
    agent = await node.start_agent()
    await node.sees(h100_80gb=1)
    async with listening(node.folder / "state", agent) as path:
        assert path.stat().st_mode & 0o077 == 0
        reader, writer = await asyncio.open_unix_connection(str(path))

        async def order(**body: str) -> dict[str, object]:
            writer.write(json.dumps(body).encode() + b"\n")
            found: dict[str, object] = json.loads(await reader.readline())
            return found

        assert await order(order="quarantine", uuid="GPU-0", by="ops", reason="smell", key="q") == {
            "ok": True,
            "changed": True,
        }
        await node.sees(h100_80gb=0)
        with pytest.raises(AdmissionError):
            await node.kubelet.admit("u1", {H100: 1})
        inspected = await order(order="inspect")
        assert inspected["node"]["gpus"][0]["marks"][0]["note"] == "ops: smell"  # type: ignore[index]
        assert await order(order="release", uuid="GPU-0") == {"ok": True, "changed": True}
        await node.sees(h100_80gb=1)
        refused = await order(order="release", uuid="GPU-9")
        assert (refused["ok"], refused["error"]) == (False, "refused")
        writer.close()
        await writer.wait_closed()
    assert not (node.folder / "state" / CONTROL_SOCKET).exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "no JSON"),
        (b"[]", "no object of texts"),
        (b'{"order": 1}', "no object of texts"),
        (b'{"order": "dance"}', "order 'dance' is none"),
        (b'{"order": "quarantine", "uuid": "x"}', "lacks by, reason"),
        (b'{"order": "inspect", "x": "y"}', "has no x"),
    ],
)
async def test_an_order_that_is_none_is_answered_in_words(node: Node, line: bytes, words: str) -> None:
    agent = await node.start_agent()
    answered = await answer(agent, line)
    assert (answered["ok"], words in answered["message"]) == (False, True)


async def test_the_report_tells_the_processes_beside_it_what_the_kubelet_is_told(node: Node) -> None:
    node.facts.gpu("GPU-0")
    node.facts.gpu("GPU-x", "NVIDIA Tomorrow")
    await node.start_agent()
    await node.sees(h100_80gb=1)
    report = json.loads((node.folder / "state" / REPORT_FILE).read_text())
    assert [gpu["class"] for gpu in report["gpus"]] == ["h100-80gb", "unknown"]
    assert report["resources"][H100][0]["uuid"] == "GPU-0"
    assert "no class lists" in report["withheld"][0]["reason"]
    assert report["labels"]["count.accelerator.aik8s.run/h100-80gb"] == "1"


async def test_marks_that_cannot_be_written_hold_all_the_same(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    node.facts.gpu("GPU-0")
    agent = await node.start_agent()
    await node.sees(h100_80gb=1)
    monkeypatch.setattr(agent.monitor._store, "save", refuse)
    node.facts.change("GPU-0", recovery=2)
    await node.sees(h100_80gb=0)
