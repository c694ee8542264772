"""Messages for Teams, Slack and other services: their shapes, and that texts stay plain."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from runner.protocol.notifying.documents import (
    Notification,
    NotificationMark,
    find_webhook_format,
    marks_folder,
)

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
HOSTILE = "<!channel> [a](https://evil.example) <https://evil.example|b> **c** & <at>d</at>"
FAILED = Notification(
    event="failure",
    title="mnist-1 failed: CommandFailed",
    text=HOSTILE,
    run_id="mnist-1",
    recipe="mnist",
    experiment="mnist",
    pool="t4",
    attempt=2,
    time=NOW,
    facts={"stage": "command", "exit code": "1"},
    command="runner why mnist-1",
)


def test_json_is_the_documented_document() -> None:
    assert FAILED.to_body("json") == {
        "format": 1,
        "kind": "runner.notification",
        "event": "failure",
        "title": "mnist-1 failed: CommandFailed",
        "text": HOSTILE,
        "run_id": "mnist-1",
        "sweep": None,
        "recipe": "mnist",
        "experiment": "mnist",
        "pool": "t4",
        "attempt": 2,
        "time": "2026-11-29T12:00:00.000+00:00",
        "facts": {"stage": "command", "exit code": "1"},
        "command": "runner why mnist-1",
    }
    assert Notification.from_json(json.loads(json.dumps(FAILED.to_json()))) == FAILED


def test_teams_gets_a_message_with_an_adaptive_card() -> None:
    body = FAILED.to_body("teams")
    assert body["type"] == "message"
    (attachment,) = body["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    card = attachment["content"]
    assert (card["type"], card["version"]) == ("AdaptiveCard", "1.4")
    # A TextBlock or a FactSet would interpret Markdown.
    assert {block["type"] for block in card["body"]} == {"RichTextBlock"}
    texts = [inline["text"] for block in card["body"] for inline in block["inlines"]]
    assert texts == [
        "❌ mnist-1 failed: CommandFailed", HOSTILE, "stage: command", "exit code: 1",
        "runner why mnist-1",
    ]  # fmt: skip


def texts_of(value: Any) -> list[dict[str, Any]]:
    """Return the text objects of Slack in a document."""
    if isinstance(value, list):
        return [found for each in value for found in texts_of(each)]
    if not isinstance(value, dict):
        return []
    if value.get("type") in ("plain_text", "mrkdwn"):
        return [value]
    return [found for each in value.values() for found in texts_of(each)]


def test_slack_gets_blocks_of_plain_text() -> None:
    body = FAILED.to_body("slack")
    assert [block["type"] for block in body["blocks"]] == [
        "header", "section", "section", "context",
    ]  # fmt: skip
    found = texts_of(body["blocks"])
    assert {each["type"] for each in found} == {"plain_text"}
    assert HOSTILE in [each["text"] for each in found]


def test_title_mentions_nobody_in_slack() -> None:
    hostile = Notification(event="success", title=HOSTILE, time=NOW).to_body("slack")
    assert "<" not in hostile["text"]
    assert ">" not in hostile["text"]


def test_limits_of_slack_hold_for_long_texts() -> None:
    many = {f"metric {n}": "x" * 5000 for n in range(30)}
    body = Notification(
        event="cap", title="t" * 9000, text="x" * 9000, time=NOW, facts=many
    ).to_body("slack")
    assert len(body["blocks"][0]["text"]["text"]) == 150
    assert len(body["blocks"][2]["fields"]) == 10
    assert max(len(each["text"]) for each in texts_of(body["blocks"])) <= 2000


def test_message_without_text_has_no_empty_block() -> None:
    empty = Notification(event="success", title="a", time=NOW)
    assert [block["type"] for block in empty.to_body("slack")["blocks"]] == ["header"]
    card = empty.to_body("teams")["attachments"][0]["content"]
    assert len(card["body"]) == 1


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("https://hooks.slack.com/services/T/B/X", "slack"),
        ("https://HOOKS.Slack.com/services/T/B/X", "slack"),
        ("https://prod-05.westeurope.logic.azure.com:443/workflows/x", "teams"),
        ("https://default1.61.environment.api.powerplatform.com:443/powerautomate/x", "teams"),
        ("https://team.webhook.office.com/webhookb2/x", "teams"),
        ("https://hooks.slack.com.evil.example/x", "json"),
        ("https://evilhooks.slack.com/x", "json"),
        ("https://evil.example/hooks.slack.com", "json"),
        ("http://127.0.0.1:8080/x", "json"),
    ],
)
def test_host_decides_the_format(url: str, form: str) -> None:
    assert find_webhook_format(url) == form
    assert find_webhook_format(url, "teams") == "teams"


def test_unknown_format_of_a_later_version_is_that_of_the_host() -> None:
    assert find_webhook_format("https://hooks.slack.com/x", "matrix") == "slack"


def test_trials_share_the_marks_of_their_sweep() -> None:
    assert marks_folder("a-1") == "a-1/notified/"
    assert marks_folder("a-1", "a") == "sweeps/a/notified/"


def test_mark_is_read_as_it_was_written() -> None:
    mark = NotificationMark("failure", NOW, "mnist-1", "title", None, "404")
    assert NotificationMark.load(json.dumps(mark.to_json())) == mark
    assert NotificationMark.load(b"[]") is None
