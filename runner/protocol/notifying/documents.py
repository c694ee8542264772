"""Notifications: what is posted to a webhook, and the marks that prevent a second one.

`Notification` is the document of the format `json`, which docs/guides/notify.md describes; Slack
and Teams get the same facts in forms of theirs. A mark is a blob `notified/<event>.json` of the run
or of its sweep, which is created before the notification is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from runner.protocol.codec import FORMAT, JsonDocument, wire

WebhookFormat = Literal["json", "slack", "teams"]
WEBHOOK_FORMATS: tuple[WebhookFormat, ...] = get_args(WebhookFormat)
STORM_S = 3600.0  # in which the evictions of a storm happen, and at most one is sent
# Hosts of webhooks, and ends of such hosts. Slack: "Sending messages using incoming webhooks";
# Teams: "Create incoming webhooks with Workflows" and, for its URLs since 2025, "Your flow has a
# new trigger URL" (learn.microsoft.com/answers/questions/5606972), read 2026-11-29.
_HOSTS: Mapping[WebhookFormat, tuple[str, ...]] = {
    "slack": ("hooks.slack.com", "hooks.slack-gov.com"),
    "teams": (
        *(".logic.azure.com", ".logic.azure.us", ".logic.azure.cn"),
        *(".api.powerplatform.com", ".webhook.office.com"),
    ),
}
_MAX_TEXT = 600  # characters of a text in a message
_MAX_HEADER = 150  # characters of a header in Slack: "Reference: Blocks", header
_MAX_FIELDS = 10  # of a section in Slack: "Reference: Blocks", section
_EVENT_MARKS = {"success": "✅", "failure": "❌", "evictions": "⚠️", "cap": "⚠️", "test": "🔔"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification(JsonDocument):
    """One event of a run or of a sweep.

    Attributes:
        event: `success`, `failure`, `evictions`, `cap` or `test`.
        title: One line for people.
        text: The reason, if there is one.
        run_id: The run; for an event of a whole sweep, the trial that sent it.
        sweep: ID of the sweep, if the run is a trial.
        time: When it was made; UTC.
        facts: More about the event, in the order to show.
        command: What to type next.
    """

    event: str
    title: str
    text: str = ""
    run_id: str = ""
    sweep: str | None = None
    recipe: str = ""
    experiment: str = ""
    pool: str = ""
    attempt: int = 0
    time: datetime = field(
        default_factory=lambda: datetime.now(timezone.utc),  # noqa: UP017 - the agent runs on 3.10
        metadata=wire(write=lambda time: time.isoformat(timespec="milliseconds")),
    )
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    command: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the document of the format `json`."""
        return {"format": FORMAT, "kind": "runner.notification", **JsonDocument.to_json(self)}

    def to_body(self, form: WebhookFormat) -> dict[str, Any]:
        """Return the JSON document for a webhook.

        Texts may come from a script, so services get them as plain text: no part becomes a link, a
        mention or a command there.
        """
        if form == "slack":
            return self._to_slack()
        return self._to_teams() if form == "teams" else self.to_json()

    @property
    def _shown_title(self) -> str:
        mark = _EVENT_MARKS.get(self.event)
        return f"{mark} {self.title}" if mark else self.title

    @property
    def _lines(self) -> list[str]:
        return [f"{name}: {value}" for name, value in self.facts.items()]

    def _to_slack(self) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = [
            {"type": "header", "text": _slack_text(self._shown_title, _MAX_HEADER)}
        ]
        if self.text:
            blocks.append({"type": "section", "text": _slack_text(self.text)})
        if lines := self._lines[:_MAX_FIELDS]:
            blocks.append({"type": "section", "fields": [_slack_text(line) for line in lines]})
        if self.command:
            blocks.append({"type": "context", "elements": [_slack_text(self.command)]})
        return {"text": _escape_slack(self._shown_title), "blocks": blocks}

    def _to_teams(self) -> dict[str, Any]:
        # Runs of text are plain; a TextBlock would interpret Markdown.
        body = [_teams_text(self._shown_title, weight="Bolder", size="Medium")]
        body += [_teams_text(text) for text in (self.text, *self._lines) if text]
        body += [_teams_text(self.command, fontType="Monospace")] if self.command else []
        card = {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.4",
            "body": body,
        }
        kind = "application/vnd.microsoft.card.adaptive"
        attachment = {"contentType": kind, "contentUrl": None, "content": card}
        return {"type": "message", "attachments": [attachment]}


def _shorten(text: str, most: int = _MAX_TEXT) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _slack_text(text: str, most: int = _MAX_TEXT) -> dict[str, Any]:
    return {"type": "plain_text", "text": _shorten(text, most), "emoji": False}


def _escape_slack(text: str) -> str:
    """Return a text without the characters that begin a mention or a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _teams_text(text: str, **style: str) -> dict[str, Any]:
    inline = {"type": "TextRun", "text": _shorten(text), **style}
    return {"type": "RichTextBlock", "inlines": [inline]}


def find_webhook_format(url: str, given: str | None = None) -> WebhookFormat:
    """Return the given format, or the one that the host of the URL accepts."""
    for form in WEBHOOK_FORMATS:
        if form == given:
            return form
    host = (urlsplit(url).hostname or "").lower()
    for form, hosts in _HOSTS.items():
        if any(host == known or (known[0] == "." and host.endswith(known)) for known in hosts):
            return form
    return "json"


def marks_folder(run_id: str, sweep: str | None = None) -> str:
    """Return the prefix of the marks of a run, or of its sweep, whose trials share them."""
    # Late, because the options of `runner notify` need the formats only.
    from runner.protocol.groups import SWEEPS_FOLDER  # noqa: PLC0415
    from runner.protocol.paths import RunPaths  # noqa: PLC0415

    return f"{SWEEPS_FOLDER}{sweep}/notified/" if sweep else f"{RunPaths(run_id).root}notified/"


@dataclass(frozen=True, slots=True)
class NotificationMark(JsonDocument):
    """A notification that was sent, or at least begun.

    Attributes:
        event: As in Notification.
        time: When it was claimed; UTC.
        run_id: The run that sent it.
        status: Status of the response; None until there is a good one.
        error: Why it was not delivered.
    """

    event: str
    time: datetime
    run_id: str
    title: str = ""
    status: int | None = None
    error: str = ""
