"""Notifications that the packed agent sends: when, how often, and what they never change."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runner.protocol.groups import RunGroup, group_blob
from runner.protocol.notifying.documents import NotificationMark
from tests.unit.node.agent.test_secrets import Vault
from tests.unit.node.agent.test_secrets import vault as vault  # noqa: PLC0414  a fixture
from tests.unit.node.agent.test_task_trials import KILLER, start_until_it_ends
from tests.unit.node.agent_task import RUN, Task, hurried_agent
from tests.unit.node.shared_task import GROUP, submit_trials, trial_ids
from tests.webhook import PATH, Answer, Webhook, serve_webhook

Until = Callable[[Callable[[], object]], None]
EVENTS = ["success", "failure", "evictions", "cap"]
SECRET = PATH.rpartition("/")[2]
FINE = "print('loss=0.5')"
WAITS = "import time\nprint('loss=0.5', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def webhook(task: Task) -> Iterator[Webhook]:
    """Serve the webhook of the task, which has its URL as a secret."""
    with serve_webhook() as made:
        task.secrets = {"values": {"RUNNER_NOTIFY_URL": made.url}, "keyvault": {}}
        yield made


def notify(*events: str, **changes: Any) -> dict[str, Any]:
    """Return `notify` of run.json."""
    return {"url": {"env": "HOOK"}, "on": list(events or EVENTS), **changes}


def marks(task: Task, folder: str = f"{RUN}/notified/") -> dict[str, NotificationMark]:
    """Return the marks by their names."""
    found: dict[str, NotificationMark] = {}
    for name in [each for each in task.service.blobs if each.startswith(folder)]:
        mark = NotificationMark.load(task.service.data(name))
        assert mark is not None
        found[name.removeprefix(folder).removesuffix(".json")] = mark
    return found


def assert_secret_is_kept(task: Task) -> None:
    """Fail if storage or the log of the agent has the URL."""
    stored = b"\n".join(bytes(blob.data) for blob in task.service.blobs.values())
    assert SECRET.encode() not in stored
    assert SECRET not in task.output


def test_success_is_sent_once_with_facts(task: Task, webhook: Webhook) -> None:
    task.submit(FINE, notify=notify(), recipe={"name": "mnist"}, experiment="digits")
    assert task.run() == 0, task.output
    (body,) = webhook.bodies
    assert (body["event"], body["title"], body["run_id"]) == ("success", f"{RUN} succeeded", RUN)
    assert (body["recipe"], body["experiment"], body["pool"]) == ("mnist", "digits", "local")
    assert body["facts"]["loss"] == "0.5"
    assert body["command"] == f"runner show {RUN}"
    assert marks(task)["success"].status == 200
    assert_secret_is_kept(task)
    assert task.run() == 0, "the run has ended"
    assert webhook.events == ["success"]


def test_failure_has_its_reason_and_not_the_secret(task: Task, webhook: Webhook) -> None:
    script = f"raise ValueError('bad data in {webhook.url}')"
    task.submit(script, notify=notify())
    assert task.run() == 1
    (body,) = webhook.bodies
    assert (body["event"], body["command"]) == ("failure", f"runner why {RUN}")
    assert "ValueError: bad data in ***" in body["text"]
    assert body["facts"]["exit code"] == "1"
    assert_secret_is_kept(task)


@pytest.mark.slow
def test_failure_is_sent_after_the_last_retry(task: Task, webhook: Webhook) -> None:
    task.submit("raise SystemExit(3)", notify=notify(), retries=1)
    assert task.run() == 3
    assert webhook.bodies == []
    assert task.run() == 3
    assert webhook.events == ["failure"]
    assert webhook.bodies[0]["attempt"] == 2


@pytest.mark.slow
def test_event_that_is_not_asked_for_is_not_sent(task: Task, webhook: Webhook) -> None:
    task.submit(FINE, notify=notify("failure"))
    assert task.run() == 0, task.output
    assert (webhook.bodies, marks(task)) == ([], {})


@pytest.mark.slow
def test_run_without_notify_sends_nothing(task: Task, webhook: Webhook) -> None:
    task.submit(FINE)
    assert task.run() == 0, task.output
    assert webhook.bodies == []


def test_script_does_not_get_the_url(task: Task, webhook: Webhook) -> None:
    task.secrets["values"]["TOKEN"] = "a-token"
    script = "import os, json; print(sorted(os.environ)); print(len(os.environ['TOKEN']))"
    task.submit(script, notify=notify(), secrets=["TOKEN"])
    assert task.run() == 0, task.output
    names, length = task.text("logs/stdout.txt").splitlines()
    assert ("TOKEN" in names, "NOTIFY" in names, length) == (True, False, "7")
    assert webhook.events == ["success"]


@pytest.mark.parametrize(
    ("answers", "error", "sent"),
    [
        ([Answer(500), Answer(200)], "", 2),
        ([Answer(404, body=b"no_service")], "404 Not Found: no_service", 1),
        ([Answer(302, {"Location": "http://127.0.0.1:1/"})], "redirects are not followed", 1),
    ],
)
def test_failing_webhook_does_not_fail_the_run(
    task: Task, webhook: Webhook, answers: list[Answer], error: str, sent: int
) -> None:
    webhook.answers = answers
    task.submit(FINE, notify=notify())
    assert task.run() == 0, task.output
    assert task.json("result.json")["status"] == "succeeded"
    assert len(webhook.bodies) == sent
    mark = marks(task)["success"]
    assert error in mark.error
    assert (mark.status is None) == bool(error)
    assert_secret_is_kept(task)


@pytest.mark.slow
def test_silent_webhook_delays_the_end_for_seconds_only(task: Task, webhook: Webhook) -> None:
    webhook.answers = [Answer(after_s=600)]
    task.agent = hurried_agent
    task.submit(FINE, notify=notify())
    began = time.monotonic()
    assert task.run() == 0, task.output
    assert time.monotonic() - began < 120
    assert task.json("result.json")["status"] == "succeeded"


@pytest.mark.slow
def test_invalid_url_of_a_vault_is_not_called(task: Task, vault: Vault) -> None:
    task.settings = {"RUNNER_IMDS_TOKEN_URL": f"{vault.url}/token"}
    task.secrets = {"keyvault": {"RUNNER_NOTIFY_URL": f"{vault.url}/secrets/hook"}}
    task.submit(FINE, notify=notify())  # the vault has no URL but `the-value-in-the-vault`
    assert task.run() == 0, task.output
    assert "invalid URL: it does not begin with https://" in marks(task)["success"].error


def test_url_is_read_from_a_vault(
    task: Task, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_webhook() as webhook:
        monkeypatch.setattr("tests.unit.node.agent.test_secrets.VALUE", webhook.url)
        task.settings = {"RUNNER_IMDS_TOKEN_URL": f"{vault.url}/token"}
        task.secrets = {"keyvault": {"RUNNER_NOTIFY_URL": f"{vault.url}/secrets/hook"}}
        task.submit(FINE, notify=notify(format="slack"))
        assert task.run() == 0, task.output
        assert webhook.bodies[0]["blocks"][0]["type"] == "header"
    assert_secret_is_kept(task)
    assert "secrets" not in task.json("result.json")["stages_s"], "the script has no secret"


def test_vault_that_refuses_does_not_fail_the_run(task: Task, vault: Vault) -> None:
    vault.status = 403
    task.settings = {"RUNNER_IMDS_TOKEN_URL": f"{vault.url}/token"}
    task.secrets = {"keyvault": {"RUNNER_NOTIFY_URL": f"{vault.url}/secrets/hook"}}
    task.submit(FINE, notify=notify())
    assert task.run() == 0, task.output
    assert "403" in marks(task)["success"].error


def test_killed_agent_leaves_the_message_to_the_next_one(task: Task, webhook: Webhook) -> None:
    task.submit(FINE, notify=notify())
    assert task.run() == 0, task.output
    for name in [each for each in task.service.blobs if "/notified/" in each]:
        del task.service.blobs[name]  # as if it was killed before
    webhook.bodies.clear()
    assert task.run() == 0
    assert webhook.events == ["success"]


def test_cancelled_run_sends_nothing(task: Task, webhook: Webhook, until: Until) -> None:
    task.submit(WAITS, notify=notify())
    process = task.start()
    until(lambda: "loss" in task.text("metrics.jsonl"))
    cancelled = {"format": 1, "run_id": RUN, "status": "cancelled", "attempt": 1}
    task.service.put(f"{RUN}/result.json", json.dumps(cancelled).encode())
    process.terminate()
    process.communicate(timeout=300)
    assert webhook.bodies == []


# -- evictions


def evict(task: Task, until: Until, attempts: int) -> None:
    """Run and kill attempts."""
    for number in range(1, attempts + 1):
        process = task.start()
        until(lambda n=number: task.has(f"attempts/{n}/events.jsonl"))
        task.kill(process)


@pytest.mark.slow
def test_storm_of_evictions_is_sent_once_an_hour(
    task: Task, webhook: Webhook, until: Until
) -> None:
    task.submit(WAITS, notify=notify(evictions=2))
    evict(task, until, 2)
    assert webhook.bodies == []
    process = task.start()
    until(lambda: webhook.bodies)
    task.kill(process)
    (body,) = webhook.bodies
    assert (body["event"], body["title"], body["attempt"]) == (
        "evictions", f"{RUN} was evicted 2 times within an hour", 3,
    )  # fmt: skip
    process = task.start()
    until(lambda: task.has("attempts/4/events.jsonl") and "loss" in task.text("metrics.jsonl"))
    time.sleep(1)
    task.kill(process)
    assert webhook.events == ["evictions"]


@pytest.mark.slow
def test_old_evictions_are_no_storm(task: Task, webhook: Webhook, until: Until) -> None:
    task.submit(WAITS, notify=notify(evictions=2))
    evict(task, until, 2)
    start = task.json("attempts/2/start.json")
    start["started"] = (datetime.now(UTC) - timedelta(hours=2)).isoformat()
    task.service.put(f"{RUN}/attempts/2/start.json", json.dumps(start).encode())
    process = task.start()
    until(lambda: task.has("attempts/3/events.jsonl") and "loss" in task.text("metrics.jsonl"))
    time.sleep(1)
    task.kill(process)
    assert webhook.bodies == []


# -- caps


@pytest.mark.slow
def test_near_time_limit_is_sent_once(task: Task, webhook: Webhook, until: Until) -> None:
    task.submit(WAITS, notify=notify("cap", cap_share=0.01), timeout_s=400, retries=1)
    process = task.start()
    until(lambda: webhook.bodies)
    assert webhook.bodies[0]["title"] == f"{RUN} has used 1% of its time limit"
    task.kill(process)
    process = task.start()
    until(lambda: task.has("attempts/2/events.jsonl"))
    time.sleep(6)
    task.kill(process)
    assert webhook.events == ["cap"]


@pytest.mark.slow
def test_time_of_prepare_counts_for_the_time_limit(
    task: Task, webhook: Webhook, until: Until
) -> None:
    go = task.folder / "go"
    script = (
        "import os, time\nend = time.monotonic() + 10\n"
        f"while time.monotonic() < end and not os.path.exists({str(go)!r}): time.sleep(0.1)"
    )
    # After 12 s: at once if those of `prepare` count, else later than the script ends.
    task.submit(script, prepare="sleep 12", notify=notify("cap", cap_share=0.01), timeout_s=1200)
    process = task.start()
    until(lambda: webhook.bodies or process.poll() is not None)
    go.touch()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert webhook.events == ["cap"]


@pytest.mark.slow
def test_near_cost_cap_is_sent_from_the_time_of_the_submission(
    task: Task, webhook: Webhook, until: Until
) -> None:
    task.submit(
        WAITS,
        notify=notify("cap"),
        created=(datetime.now(UTC) - timedelta(minutes=9)).isoformat(),
        batch={"job_limit_s": 600},
        max_cost_micros=5_000_000,
    )
    process = task.start()
    until(lambda: webhook.bodies)
    task.kill(process)
    (body,) = webhook.bodies
    assert body["title"] == f"{RUN} has used 80% of its cost cap"
    assert body["facts"]["cost cap"] == "5.00 USD"


def test_run_far_from_its_limits_sends_no_cap(task: Task, webhook: Webhook) -> None:
    now = datetime.now(UTC).isoformat()
    task.submit(FINE, notify=notify(), timeout_s=600, created=now, batch={"job_limit_s": 600})
    assert task.run() == 0, task.output
    assert webhook.events == ["success"]


# -- sweeps


def put_group(task: Task, run_ids: list[str]) -> None:
    """Write the document of the sweep, with these trials."""
    named = {str(number): run_id for number, run_id in enumerate(run_ids, start=1)}
    group = RunGroup(
        GROUP, "train", datetime.now(UTC), "job", "local", named, dict.fromkeys(named, ()),
        trials={name: {"x": 1} for name in named},
    )  # fmt: skip
    task.service.put(group_blob(GROUP), json.dumps(group.to_json()).encode())


@pytest.mark.slow
def test_sweep_sends_one_message_after_its_last_trial(task: Task, webhook: Webhook) -> None:
    script = (
        "import json, os, sys\nx = json.load(open(os.environ['RUNNER_PARAMS']))['x']\n"
        "print(f'loss={x}')\nsys.exit(x == 2)"
    )
    trials = submit_trials(task, script, [{"x": 1}, {"x": 2}, {"x": 3}], notify=notify())
    put_group(task, trials)
    assert task.run() == 0, task.output
    (body,) = webhook.bodies
    assert (body["event"], body["sweep"], body["run_id"]) == ("failure", GROUP, trials[-1])
    assert body["title"] == f"{GROUP} ended, 1 of 3 trials failed"
    assert body["facts"]["trials"] == "2 succeeded, 1 failed"
    assert body["text"].startswith("2: python train.py exited with code 1")
    assert body["command"] == f"runner sweep show {GROUP}"
    assert list(marks(task, f"sweeps/{GROUP}/notified/")) == ["ended"]
    assert task.run() == 0
    assert len(webhook.bodies) == 1


@pytest.mark.slow
def test_sweep_with_an_unfinished_trial_sends_nothing(task: Task, webhook: Webhook) -> None:
    trials = submit_trials(task, FINE, [{}, {}], notify=notify())
    put_group(task, [*trials, "mnist-of-another-task"])
    assert task.run() == 0, task.output
    assert webhook.bodies == []


@pytest.mark.slow
def test_trial_that_never_started_counts_as_ended(task: Task, webhook: Webhook) -> None:
    trials = submit_trials(task, FINE, [{}, {}], notify=notify())
    put_group(task, [*trials, "mnist-cancelled"])
    cancelled = {"format": 1, "run_id": "mnist-cancelled", "status": "cancelled", "attempt": 0}
    task.service.put("mnist-cancelled/result.json", json.dumps(cancelled).encode())
    assert task.run() == 0, task.output
    (body,) = webhook.bodies
    assert (body["event"], body["facts"]["trials"]) == ("success", "2 succeeded, 1 cancelled")
    assert body["title"] == f"{GROUP} ended, 1 of 3 trials cancelled"
    assert trial_ids(2) == trials


def test_cancelled_sweep_sends_nothing(task: Task, webhook: Webhook, until: Until) -> None:
    trials = submit_trials(task, WAITS, [{}, {}], notify=notify())
    put_group(task, trials)
    process = task.start()
    until(lambda: f"{trials[0]}/attempts/1/events.jsonl" in task.service.blobs)
    for run_id in trials:
        cancelled = {"format": 1, "run_id": run_id, "status": "cancelled", "attempt": 1}
        task.service.put(f"{run_id}/result.json", json.dumps(cancelled).encode())
    process.terminate()
    process.communicate(timeout=300)
    assert webhook.bodies == []


def test_last_trial_that_kills_its_agent_ends_the_sweep(task: Task, webhook: Webhook) -> None:
    trials = submit_trials(task, KILLER, [{}, {"kill": 9}], notify=notify())
    put_group(task, trials)
    start_until_it_ends(task, 9)
    (body,) = webhook.bodies
    assert body["title"] == f"{GROUP} ended, 1 of 2 trials failed"
    assert body["run_id"] == trials[-1]


@pytest.mark.slow
def test_damaged_group_does_not_fail_a_trial(task: Task, webhook: Webhook) -> None:
    submit_trials(task, FINE, [{}, {}], notify=notify())
    task.service.put(group_blob(GROUP), b"{")
    assert task.run() == 0, task.output
    assert webhook.bodies == []
