"""The webhook that a recipe or an option names, a sample for it, and what a run has sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions, with_options
from runner.core.recipe.recipe import Recipe
from runner.core.recipe.secrets import read_secrets, webhook_source
from runner.flows.runs.documents import find_run, runs_container
from runner.flows.runs.group_documents import group_instead
from runner.protocol.errors import RunnerError
from runner.protocol.notifying.documents import (
    Notification,
    NotificationMark,
    WebhookFormat,
    find_webhook_format,
    marks_folder,
)
from runner.protocol.notifying.webhooks import WebhookError, post_json
from runner.protocol.run_spec import NOTIFY_VARIABLE, NotifyRule

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection

_NO_RECIPE = Recipe(name="", description="", folder=Path(), source="folder", command=())


def load_rule(ref: str | None, options: RunOptions, cwd: Path) -> NotifyRule:
    """Return the rule of a recipe with an option applied. Raise RunnerError if there is none."""
    recipe = _NO_RECIPE if ref is None else load_recipe(ref, cwd=cwd)
    rule = with_options(recipe, options).notify
    if rule is None:
        raise RunnerError(
            "R-NOTIFY-NONE",
            f"{recipe.name or 'this command'} has no webhook",
            why="neither `notify` of a train.yaml nor --notify names the variable with its URL",
            fix="read -rs NOTIFY_URL && export NOTIFY_URL, and then add --notify NOTIFY_URL",
        )
    return rule


def read_url(rule: NotifyRule, environment: Mapping[str, str]) -> str:
    """Return the URL from a variable of this machine. Raise RunnerError."""
    if rule.url.keyvault is not None:
        raise RunnerError(
            "R-NOTIFY-VAULT",
            "the URL of `notify` is in a key vault, which only nodes read",
            why="their identity has the role for it, and this command asks no vault",
            fix=f"read it with `az keyvault secret show --id {rule.url.keyvault} --query value "
            "-o tsv` into NOTIFY_URL, and add --notify NOTIFY_URL",
        )
    return read_secrets([rule.url], environment).reveal()["values"][NOTIFY_VARIABLE]


def describe_rule(rule: NotifyRule, environment: Mapping[str, str]) -> dict[str, object]:
    """Return the settings that hold, without the URL. Raise RunnerError if the URL is invalid."""
    is_set = rule.url.env is not None and bool(environment.get(rule.url.env))
    state = "which nodes read" if rule.url.keyvault else "which is not set on this machine"
    if is_set:
        read_url(rule, environment)
        state = "which is set and valid"
    return {
        "url": f"in {webhook_source(rule)}, {state}",
        "format": _format(rule, environment) if is_set else rule.format or "that of the URL's host",
        "events": ", ".join(rule.on),
        "evictions": f"{rule.evictions} within an hour",
        "cap": f"at {rule.cap_share:.0%} of timeout or max_cost",
    }


def _format(rule: NotifyRule, environment: Mapping[str, str]) -> WebhookFormat:
    return find_webhook_format(environment.get(rule.url.env or "", ""), rule.format)


def send_sample(rule: NotifyRule, environment: Mapping[str, str]) -> tuple[WebhookFormat, int]:
    """Post a sample from this machine. Return its form, and the status of the response.

    Raises:
        RunnerError: the URL is missing or invalid, or the webhook did not accept the sample.
    """
    url = read_url(rule, environment)
    form = find_webhook_format(url, rule.format)
    sample = Notification(
        event="test",
        title="a sample of runner: this webhook works",
        text="The node of a run sends messages like this one.",
        facts={"events": ", ".join(rule.on)},
        command="runner notify test",
    )
    try:
        return form, post_json(url, json.dumps(sample.to_body(form)).encode())
    except WebhookError as err:
        raise RunnerError(
            "R-NOTIFY-SEND",
            f"the webhook in ${rule.url.env} did not accept the sample in the format {form}",
            why=str(err),
            fix="compare the URL with that of the service, and set `format` in `notify` if the "
            "service expects another one",
        ) from None


def list_sent(connection: Connection, reference: str) -> list[NotificationMark]:
    """Return what a run, or a sweep, has sent, the oldest first. Raise RunnerError."""
    try:
        spec = find_run(connection, reference)
        folder = marks_folder(spec.run_id, spec.group if spec.trial else None)
    except RunnerError as err:
        folder = marks_folder("", group_instead(connection, reference, err).group_id)
    container = runs_container(connection)
    contents = [container.read(name) for name in container.names(folder)]
    marks = [mark for each in contents if (mark := NotificationMark.load(each or b""))]
    return sorted(marks, key=lambda mark: mark.time)
