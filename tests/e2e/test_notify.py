"""A webhook gets the end of runs and sweeps from the node, and nobody sees its URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli, until
from tests.e2e.test_inputs import blob_service
from tests.webhook import PATH, Webhook, serve_webhook

Write = Callable[..., Path]
SECRET = PATH.rpartition("/")[2]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with serve_webhook() as made:
        yield made


def stored_texts(cli: Cli, *prefixes: str) -> str:
    """Return the content of all blobs with one of the prefixes."""
    runs = blob_service(cli).get_container_client("runs")
    return "".join(
        runs.download_blob(name).readall().decode(errors="replace")
        for prefix in prefixes
        for name in runs.list_blob_names(name_starts_with=prefix)
    )


@pytest.mark.smoke
@pytest.mark.feature(57)
def test_success_and_failure_are_sent_and_the_url_is_kept(
    cli: Cli, script: Write, webhook: Webhook
) -> None:
    folder = script("import sys; print('loss=0.5'); sys.exit('--fail' in sys.argv)")
    (folder / "train.yaml").write_text("notify: {url: {env: HOOK}}\n")
    refused = cli.run("train", folder, env={"HOOK": "http://example.com/x"})
    assert (refused.returncode, "error[R-NOTIFY-URL]" in refused.stderr) == (3, True)
    env = {"HOOK": webhook.url}
    done = cli.run("train", folder, env=env)
    assert done.returncode == 0, done.stderr
    until(lambda: webhook.bodies)
    failed = cli.run("train", folder, "--", "--fail", env=env)
    assert failed.returncode == 1
    until(lambda: len(webhook.bodies) == 2)
    assert webhook.events == ["success", "failure"]
    first, second = (body["run_id"] for body in webhook.bodies)
    seen = "".join((done.stdout, done.stderr, failed.stdout, failed.stderr))
    for run_id in (first, second):
        seen += cli.ok("show", run_id) + cli.ok("logs", run_id)
    assert SECRET not in seen + stored_texts(cli, first, second)
    assert cli.json("show", first)["run"]["notify"]["url"] == {"env": "HOOK"}
    listed = until(lambda: [each for each in cli.json("notify", "ls", first) if each["status"]])
    assert [(each["event"], each["delivered"]) for each in listed] == [("success", True)]


def test_repetition_sends_again(cli: Cli, script: Write, webhook: Webhook) -> None:
    env = {"HOOK": webhook.url}
    assert cli.run("train", script("raise SystemExit(1)"), "--notify", "HOOK", env=env).returncode
    until(lambda: webhook.bodies)
    missing = cli.run("retry", "@last")
    assert "the URL of `notify` has no value" in missing.stderr
    assert cli.run("retry", "@last", env=env).returncode == 1
    until(lambda: len(webhook.bodies) == 2)
    assert webhook.events == ["failure", "failure"]
    assert webhook.bodies[0]["run_id"] != webhook.bodies[1]["run_id"]
    assert cli.run("retry", "@last", "--notify", "off").returncode == 1, "HOOK has no value"
    assert cli.json("show", "@last")["run"].get("notify") is None
    assert cli.run("retry", "@last", "--notify", "NEW", env={"NEW": webhook.url}).returncode == 1
    until(lambda: len(webhook.bodies) == 3)
    assert webhook.bodies[2]["run_id"] == cli.json("show", "@last")["run"]["run_id"]


def test_sweep_sends_one_message_with_its_own_access(
    cli: Cli, script: Write, webhook: Webhook
) -> None:
    folder = script("import sys; x = sys.argv[-1]; print('loss=0.' + x); sys.exit(x == '2')")
    words = ("sweep", "start", folder, "-p", "x=1,2,3", "--notify", "HOOK", "--metric", "loss")
    cli.run(*words, env={"HOOK": webhook.url})
    until(lambda: webhook.bodies)
    (body,) = webhook.bodies
    assert body["title"] == f"{body['sweep']} ended, 1 of 3 trials failed"
    assert body["facts"]["best"] == "3: loss 0.3" or body["facts"]["best"] == "1: loss 0.1"
    (listed,) = cli.json("notify", "ls", body["sweep"])
    assert listed["event"] == "failure"
    assert SECRET not in stored_texts(cli, f"sweeps/{body['sweep']}", f"groups/{body['sweep']}")


def test_tasks_of_a_file_use_its_defaults(
    cli: Cli, script: Write, webhook: Webhook, tmp_path: Path
) -> None:
    folder = script("print(1)")
    file = tmp_path / "tasks.yaml"
    file.write_text(
        "defaults: {notify: {url: {env: HOOK}, on: [success]}}\n"
        f"tasks:\n  a: {{recipe: {folder}}}\n  b: {{recipe: {folder}, after: [a]}}\n"
    )
    done = cli.run("submit", file, env={"HOOK": webhook.url})
    assert done.returncode == 0, done.stderr
    until(lambda: len(webhook.bodies) == 2)
    assert webhook.events == ["success", "success"]
