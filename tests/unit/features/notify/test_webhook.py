"""`runner notify`: what it prints and sends, and what it never shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.cli.main import main
from tests.webhook import PATH, Answer, Webhook, serve_webhook

SECRET = PATH.rpartition("/")[2]
VAULT = "https://team.vault.azure.net/secrets/hook"


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Webhook]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
    with serve_webhook() as made:
        monkeypatch.setenv("HOOK", made.url)
        yield made


def recipe(folder: Path, notify: str) -> str:
    (folder / "project").mkdir()
    (folder / "project" / "train.py").write_text("print(1)\n")
    (folder / "project" / "train.yaml").write_text(f"notify: {notify}\n")
    return str(folder / "project")


def test_sample_is_sent_to_the_webhook_of_a_recipe(
    webhook: Webhook, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = recipe(tmp_path, "{url: {env: HOOK}, format: slack}")
    assert main(["notify", "test", ref, "-o", "json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"sent": True, "format": "slack", "status": 200}
    assert "this webhook works" in webhook.bodies[0]["text"]
    assert SECRET not in printed.out + printed.err


def test_format_of_the_option_wins(webhook: Webhook) -> None:
    assert main(["notify", "test", "--notify", "HOOK", "--format", "teams"]) == 0
    assert webhook.bodies[0]["type"] == "message"
    assert main(["notify", "test", "--notify", "HOOK"]) == 0
    assert webhook.bodies[1]["event"] == "test"


def test_refusal_is_explained_without_the_url(
    webhook: Webhook, capsys: pytest.CaptureFixture[str]
) -> None:
    webhook.answers = [Answer(403, body=b"invalid_token")]
    assert main(["notify", "test", "--notify", "HOOK"]) == 3
    printed = capsys.readouterr().err
    assert "R-NOTIFY-SEND" in printed
    assert "403 Forbidden: invalid_token" in printed
    assert SECRET not in printed


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], "R-NOTIFY-NONE"),
        (["--notify", VAULT], "R-NOTIFY-VAULT"),
        (["--notify", "https://hooks.slack.com/x"], "R-NOTIFY-SOURCE"),
        (["--notify", "NOT_SET"], "R-SECRET-MISSING"),
    ],
)
def test_call_without_a_url_is_refused(
    webhook: Webhook, capsys: pytest.CaptureFixture[str], words: list[str], code: str
) -> None:
    assert main(["notify", "test", *words]) in (2, 3)
    assert f"error[{code}]" in capsys.readouterr().err
    assert webhook.bodies == []


def test_show_prints_what_holds_and_sends_nothing(
    webhook: Webhook, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = recipe(tmp_path, "{url: {env: HOOK}, on: [cap], cap_share: 0.5}")
    assert main(["notify", "show", ref, "-o", "json"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed) == {
        "url": "in $HOOK, which is set and valid",
        "format": "json",
        "events": "cap",
        "evictions": "3 within an hour",
        "cap": "at 50% of timeout or max_cost",
    }
    assert main(["notify", "show", "--notify", VAULT]) == 0
    assert f"in {VAULT}, which nodes read" in capsys.readouterr().out
    assert main(["notify", "show", "--notify", "NOT_SET"]) == 0
    assert "in $NOT_SET, which is not set on this machine" in capsys.readouterr().out
    assert webhook.bodies == []


def test_show_refuses_an_invalid_url(
    webhook: Webhook, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOOK", "http://example.com/x")
    assert main(["notify", "show", "--notify", "HOOK"]) == 3
    assert "R-NOTIFY-URL" in capsys.readouterr().err
    assert webhook.bodies == []
