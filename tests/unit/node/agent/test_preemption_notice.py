"""The eviction notice: found among all events of the metadata service, and acted on."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.node import termination as notice_module
from runner.node.checkpoints.committer import AttemptCheckpoints
from runner.node.script.context import AttemptContext
from runner.node.script.shipper import LineQueue
from runner.node.script.streams import EventLog
from runner.node.script.workspace import AttemptDirs
from runner.node.storage.retries import RetryBudget
from runner.node.termination import EvictionWatch, NodeEviction, Termination, watch_evictions
from runner.protocol.paths import RunPaths
from tests.unit.node.agent_task import Task
from tests.unit.node.checkpoints.test_checkpoints import COUNTER, QUICK, content, manifests
from tests.unit.node.fake_imds import FakeImds, serve_fake_imds

Until = Callable[[Callable[[], object]], None]
NODE = "tvm-1"


@pytest.fixture
def imds() -> Iterator[FakeImds]:
    with serve_fake_imds() as service:
        yield service


@pytest.fixture
def watch(imds: FakeImds, monkeypatch: pytest.MonkeyPatch) -> EvictionWatch:
    monkeypatch.setattr(notice_module, "POLL_S", 0.02)
    made = EvictionWatch(imds.url, NODE)
    made.start()
    return made


def test_blocked_metadata_service_is_reported_once_and_asked_again(
    imds: FakeImds,
    monkeypatch: pytest.MonkeyPatch,
    until: Until,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(notice_module, "POLL_S", 0.02)
    monkeypatch.setattr(notice_module, "MAX_PAUSE_S", 0.02)
    imds.status = 403
    watch = EvictionWatch(imds.url, NODE)
    watch.start()
    until(lambda: len(imds.asked) > 3)
    assert watch.notice is None
    said = [record for record in caplog.records if "blocks Scheduled Events" in record.message]
    assert len(said) == 1
    imds.preempt(30, NODE)
    imds.status = 200
    until(lambda: watch.notice)


def assert_in_30_s(notice: NodeEviction, began: float) -> None:
    """Check that 30 s remained at `began`, which may be long ago; dates are in whole seconds."""
    left_s = notice.left_s
    assert 28 - (time.monotonic() - began) < left_s <= 31


def test_notice_for_this_node_is_seen_once(
    watch: EvictionWatch, imds: FakeImds, until: Until
) -> None:
    seen: list[NodeEviction] = []
    watch.notify(seen.append)
    until(lambda: len(imds.asked) > 2)
    assert watch.notice is None
    began = time.monotonic()
    imds.preempt(30, "tvm-9", NODE)
    until(lambda: seen)
    asked = len(imds.asked)
    until(lambda: len(imds.asked) > asked + 3)
    [notice] = seen
    assert_in_30_s(notice, began)
    assert imds.posted == 0, "nothing is acknowledged"


def test_notice_for_another_machine_of_the_scale_set_is_ignored(
    watch: EvictionWatch, imds: FakeImds, until: Until
) -> None:
    imds.name = "pool_3"
    imds.preempt(30, "pool_4")
    until(lambda: len(imds.asked) > 5)
    assert watch.notice is None
    imds.preempt(30, "POOL_3", event_id="E-2")
    until(lambda: watch.notice)


def test_withdrawn_notice_ends_and_is_not_repeated(
    watch: EvictionWatch, imds: FakeImds, until: Until
) -> None:
    imds.preempt(30, NODE)
    until(lambda: watch.notice)
    imds.events = []
    until(lambda: watch.notice is None)
    imds.preempt(30, NODE)
    until(lambda: watch.notice)
    watch.forget()
    asked = len(imds.asked)
    until(lambda: len(imds.asked) > asked + 3)
    assert watch.notice is None
    imds.preempt(30, NODE, event_id="E-2")
    until(lambda: watch.notice)


def test_recommendation_is_passed_on_once_and_is_no_notice(
    watch: EvictionWatch, imds: FakeImds, until: Until
) -> None:
    seen: list[str] = []
    imds.recommend("another")
    watch.notify(None, lambda: seen.append("recommended"))
    asked = len(imds.asked)
    until(lambda: len(imds.asked) > asked + 3)
    assert seen == []
    imds.recommend(NODE)
    until(lambda: seen)
    asked = len(imds.asked)
    until(lambda: len(imds.asked) > asked + 3)
    assert (len(seen), watch.notice, imds.posted) == (1, None, 0)
    imds.events.clear()
    imds.recommend(NODE, event_id="R-2")
    until(lambda: len(seen) == 2)


def test_later_version_is_given_up_where_it_is_unknown(
    imds: FakeImds, monkeypatch: pytest.MonkeyPatch, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notice_module, "POLL_S", 0.02)
    imds.versions = ("2020-07-01",)
    watch = EvictionWatch(imds.url, NODE, "2099-01-01")
    watch.start()
    imds.preempt(30, NODE)
    until(lambda: watch.notice)
    until(lambda: len(imds.asked) > 5)
    assert sum("2099-01-01" in path for path in imds.asked) == 1
    assert "no Scheduled Events of version 2099-01-01" in caplog.text


@pytest.mark.parametrize("skew_s", [-3600.0, 0.0, 3600.0])
def test_time_left_is_computed_with_the_clock_of_the_service(
    watch: EvictionWatch, imds: FakeImds, until: Until, skew_s: float
) -> None:
    imds.skew_s = skew_s
    began = time.monotonic()
    imds.preempt(30, NODE)
    until(lambda: watch.notice)
    assert watch.notice is not None
    assert_in_30_s(watch.notice, began)


def test_started_event_leaves_no_time(watch: EvictionWatch, imds: FakeImds, until: Until) -> None:
    imds.preempt(None, NODE)
    until(lambda: watch.notice)
    assert watch.notice is not None
    assert watch.notice.left_s <= 0


def test_failing_metadata_service_is_asked_again(
    watch: EvictionWatch, imds: FakeImds, until: Until
) -> None:
    imds.status = 500
    until(lambda: len(imds.asked) > 1)
    assert watch.notice is None
    imds.status = 200
    imds.preempt(30, NODE)
    until(lambda: watch.notice)


def test_busy_metadata_service_is_asked_again_soon(
    watch: EvictionWatch, imds: FakeImds, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer and longer pauses are for machines without the service."""
    monkeypatch.setattr(notice_module, "BUSY_PAUSE_S", 0.02)
    until(lambda: imds.asked)
    until(lambda: watch.has_answered)
    imds.status = 500
    asked = len(imds.asked)
    until(lambda: len(imds.asked) > asked + 20)
    assert watch.notice is None


def test_script_is_not_stopped_between_a_notice_and_its_commit(tmp_path: Path) -> None:
    """A late notice leaves less time than a commit usually needs."""
    notice, requests = NodeEviction("E-1", time.monotonic() + 5), list[float]()
    thread = SimpleNamespace(took_s=0.0, is_requested=False, request=requests.append)
    nothing: Any = None
    spec: Any = SimpleNamespace(checkpoints=None, nodes=1)
    notices: Any = SimpleNamespace(notice=notice)
    termination = Termination(lambda: None)
    dirs, events = AttemptDirs.below(tmp_path), EventLog(LineQueue())
    context = AttemptContext(
        nothing, RunPaths("r-1"), spec, 1, dirs, events, RetryBudget(0.0), termination, notices
    )
    checkpoints: Any = AttemptCheckpoints(context)
    checkpoints._thread = thread
    assert not checkpoints.must_stop
    checkpoints._on_notice(notice)
    assert (len(requests), checkpoints.must_stop) == (1, True)  # as if the snapshot was taken


def test_dedicated_node_watches_for_no_notice() -> None:
    assert watch_evictions({}, NODE, dedicated=True) is None
    imds = {"BATCH_EMULATOR_IMDS": "http://127.0.0.1:9"}
    assert watch_evictions(imds, NODE, dedicated=False) is not None


SAVES_ON_SIGTERM = """
import os, signal, sys, time
path = os.path.join(os.environ["RUNNER_CHECKPOINT_DIR"], "counter")
number = int(open(path).read()) if os.path.exists(path) else 0
print("from", number, flush=True)
def save(*_):
    open(path, "w").write(str(number))
    print("saved", number, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
while number < 100_000 and not os.path.exists("../../go"):
    number += 1
    time.sleep(0.02)
"""


def notices(task: Task) -> list[str]:
    events = task.lines("attempts/1/events.jsonl")
    return [event["message"] for event in events if event["stage"] == "notice"]


def test_evicted_script_is_stopped_in_time_to_commit_its_files(
    task: Task, imds: FakeImds, until: Until
) -> None:
    task.settings["BATCH_EMULATOR_IMDS"] = imds.url
    task.submit(SAVES_ON_SIGTERM, checkpoints={**QUICK, "interval_s": 60})
    process = task.start()
    until(lambda: "from 0" in task.text("logs/stdout.txt"))
    imds.preempt(8, NODE)
    until((task.folder / "task-0/wd/checkpoints/counter").exists)
    imds.preempt(600, NODE)  # the next steps may take longer
    until(lambda: task.has("attempts/1/end.json"))
    [manifest] = manifests(task)
    saved = content(task, manifest, "counter").decode()
    # The end of an attempt waits a second for logs and events, which are sent until the node is
    # gone.
    until(lambda: task.text("logs/stdout.txt").endswith(f"saved {saved}\n"))
    until(lambda: notices(task))
    end = task.json("attempts/1/end.json")
    assert (end["why"], end["checkpoint"]["last"]) == ("terminated", 1)
    assert len(notices(task)) == 1
    assert "about to be evicted" in notices(task)[0]
    assert process.poll() is None, "a task that ends by itself is not run again elsewhere"
    task.kill(process)
    imds.events = []
    second = task.start()
    until(lambda: f"from {saved}\n" in task.text("logs/stdout.txt"))
    second.send_signal(signal.SIGTERM)
    assert second.wait(120) == 143


@pytest.mark.slow
def test_run_continues_on_its_node_if_the_eviction_is_cancelled(
    task: Task, imds: FakeImds, until: Until
) -> None:
    task.settings["BATCH_EMULATOR_IMDS"] = imds.url
    task.submit(SAVES_ON_SIGTERM, checkpoints=QUICK)
    process = task.start()
    until(lambda: "from 0" in task.text("logs/stdout.txt"))
    imds.preempt(8, NODE)
    until((task.folder / "task-0/wd/checkpoints/counter").exists)
    imds.preempt(600, NODE)  # the next steps may take longer
    until(lambda: task.has("attempts/1/end.json"))
    imds.events = []
    until(lambda: task.has("attempts/2/resume.json"))
    (task.folder / "task-0" / "go").touch()
    assert process.wait(120) == 0
    assert task.json("result.json")["attempt"] == 2


@pytest.mark.slow
def test_notice_causes_a_commit_while_the_script_runs(
    task: Task, imds: FakeImds, until: Until
) -> None:
    task.settings["BATCH_EMULATOR_IMDS"] = imds.url
    task.submit(COUNTER, command=["python", "train.py", "10000"], checkpoints={"interval_s": 3600})
    process = task.start()
    until(lambda: "from 0" in task.text("logs/stdout.txt"))
    imds.preempt(300, NODE)
    until(lambda: manifests(task))  # the next one is due in an hour
    assert not task.has("attempts/1/end.json")
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 143


@pytest.mark.slow
def test_recommendation_causes_a_commit_and_the_script_runs_on(
    task: Task, imds: FakeImds, until: Until
) -> None:
    task.settings["BATCH_EMULATOR_IMDS"] = imds.url
    task.settings["RUNNER_EVENTS_VERSION"] = "2026-01-01"
    task.submit(COUNTER, command=["python", "train.py", "10000"], checkpoints={"interval_s": 3600})
    process = task.start()
    until(lambda: "from 0" in task.text("logs/stdout.txt"))
    imds.recommend(NODE)
    until(lambda: manifests(task))  # the next one is due in an hour
    assert any("2026-01-01" in path for path in imds.asked)
    until(lambda: notices(task))
    assert "rebalance recommendation" in notices(task)[0]
    assert not task.has("attempts/1/end.json")
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 143


@pytest.mark.slow
def test_script_without_checkpoints_is_not_stopped(
    task: Task, imds: FakeImds, until: Until
) -> None:
    task.settings["BATCH_EMULATOR_IMDS"] = imds.url
    task.submit(SAVES_ON_SIGTERM, checkpoints=None)
    imds.preempt(1, NODE)
    process = task.start()
    until(lambda: "from 0" in task.text("logs/stdout.txt"))
    time.sleep(1.5)
    (task.folder / "task-0" / "go").touch()
    assert process.wait(120) == 0
