"""Give the local Batch account pools and jobs: of a seed file, or copied from a real account."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

from runner.azure.auth.credentials import Connection
from runner.azure.batch.raw import send_raw
from runner.core.home import HomePaths, write_atomically
from runner.core.masking import Mask
from runner.core.settings import Settings
from runner.flows.local.state import ask_service, ensure_keys, load_state, services_down
from runner.protocol.errors import RunnerError

_LISTS = {"pools": "/pools", "jobs": "/jobs", "jobSchedules": "/jobschedules"}
_TIMEOUT_S = 600.0  # ten thousand pools on a busy machine
# Parts of pools and jobs that are left out, by property, with the reason.
_LEFT_OUT: Mapping[str, str] = {
    "applicationLicenses": "a license",
    "applicationPackageReferences": "its packages are not copied",
    "certificateReferences": "certificates are not copied",
    "containerRegistries": "its password is not shown",
    "identity": "the local account has no such identity",
    "identityReference": "the local account has no such identity",
    "mountConfiguration": "its key is not shown",
    "userAccounts": "users and their passwords are not copied",
}
_MASKED = "a value that looks like a secret"
_SIGNED = "the signature of its URL"
_FORMULA = "autoScaleFormula"  # it has no texts, and its variables are no secrets


@dataclass(slots=True)
class AccountCopy:
    """A copied account as a seed, and what was left out: `pool p/mountConfiguration (why)`."""

    seed: dict[str, Any]
    left_out: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Seeded:
    """The IDs that were added and those that existed, by kind: pools, jobs, jobSchedules."""

    added: Mapping[str, list[str]]
    existing: Mapping[str, list[str]]


def copy_account(connection: Connection) -> AccountCopy:
    """Return the pools, active jobs and job schedules of an account, without secrets.

    Tasks, completed jobs, and the pools and jobs that a schedule or a job makes itself are not
    part of it. Raises RunnerError.
    """
    found = {key: list(_listed(connection, path)) for key, path in _LISTS.items()}
    copied = AccountCopy({"version": 1, "source": connection.outputs.batch_endpoint})
    schedules = {str(each["id"]).lower() for each in found["jobSchedules"]}
    auto = {
        str(_part(job, "executionInfo").get("poolId", "")).lower()
        for job in found["jobs"]
        if _part(job, "poolInfo").get("autoPoolSpecification")
    }
    for key, documents in found.items():
        kept: list[Any] = []
        copied.seed[key] = kept
        for each in documents:
            name = f"{key[:-1]} {each['id']}"
            ended = each.get("state") in ("completed", "terminating", "deleting")
            made = key == "jobs" and str(each["id"]).rpartition(":")[0].lower() in schedules
            if key == "pools" and str(each["id"]).lower() in auto:
                copied.left_out.append(f"{name} (an auto pool)")
            elif made or ended:
                copied.left_out.append(f"{name} ({'of a schedule' if made else each['state']})")
            else:
                kept.append(_without_secrets(each, name, copied.left_out))
    return copied


def _part(document: dict[str, Any], name: str) -> dict[str, Any]:
    return document.get(name) or {}


def _listed(connection: Connection, path: str) -> Iterator[dict[str, Any]]:
    """Yield all documents of a list."""
    while path:
        answer = send_raw(connection, "GET", path)
        if answer.code or not isinstance(answer.body, dict):
            raise RunnerError(
                "R-LOCAL-SEED",
                f"cannot list {urlsplit(path).path.strip('/')} of the account",
                why=f"the service answered {answer.status} {answer.code}",
                fix="runner check",
            )
        body = cast("dict[str, Any]", answer.body)
        yield from body["value"]
        link = urlsplit(str(body.get("odata.nextLink", "")))
        path = f"{link.path}?{link.query}" if link.path else ""


def _without_secrets(value: Any, where: str, left_out: list[str]) -> Any:
    """Return a document without secrets; `left_out` gets a line for each part that is missing."""
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [
            _without_secrets(item, where, left_out)
            for item in items
            if not _is_secret_variable(item, where, left_out)
        ]
    if isinstance(value, dict):
        found: dict[str, Any] = {}
        for name, item in cast("dict[str, Any]", value).items():
            place = f"{where}/{name}"
            if item in (None, [], {}):
                continue
            if name in _LEFT_OUT:
                left_out.append(f"{place} ({_LEFT_OUT[name]})")
            elif name == _FORMULA:
                found[name] = item
            else:
                found[name] = _without_secrets(item, place, left_out)
        return found
    return _masked(value, where, left_out) if isinstance(value, str) else value


def _is_secret_variable(item: Any, where: str, left_out: list[str]) -> bool:
    """Return True for `{"name": ..., "value": ...}` with a secret, and note its name."""
    if not isinstance(item, dict) or not {"name", "value"} <= item.keys():
        return False
    pair = cast("dict[str, Any]", item)
    if Mask().document(pair) == pair:
        return False
    left_out.append(f"{where}/{pair['name']} ({_MASKED})")
    return True


def _masked(text: str, where: str, left_out: list[str]) -> str:
    if text.startswith(("http://", "https://")) and "sig=" in urlsplit(text).query.lower():
        left_out.append(f"{where} ({_SIGNED})")
        text = urlunsplit(urlsplit(text)._replace(query=""))
    masked = Mask().text(text)
    if masked != text:
        left_out.append(f"{where} ({_MASKED})")
    return masked


def load_seed(file: Path) -> bytes:
    """Return the content of a seed file. Raises RunnerError."""
    try:
        return file.read_bytes()
    except OSError as err:
        raise RunnerError(
            "R-LOCAL-SEED",
            f"cannot read {file}",
            why=err.strerror or str(err),
            fix="use the path of a JSON file with pools and jobs",
        ) from err


def save_seed(copied: AccountCopy, file: Path) -> None:
    """Write a copied account for `--seed-file` of the emulator. Raises RunnerError."""
    write_atomically(file, json.dumps(copied.seed, indent=2, ensure_ascii=False) + "\n")


def seed_services(settings: Settings, content: bytes) -> Seeded:
    """Add what a seed contains to the local account, all or none. Raises RunnerError."""
    paths = HomePaths(settings.home)
    state = load_state(paths)
    if state is None or state.batch is None:
        raise services_down()
    headers = {"Authorization": f"Bearer {ensure_keys(paths)['batch']}"}
    try:
        reply, answered = ask_service(
            state.batch_port,
            "POST",
            "/_emulator/seed",
            timeout_s=_TIMEOUT_S,
            headers=headers,
            content=content,
        )
        answer: Any = json.loads(answered or b"{}")
    except (OSError, http.client.HTTPException, ValueError) as err:
        raise services_down() from err
    if reply.status != http.client.OK:
        values = cast("list[dict[str, str]]", answer.get("values") or [])
        raise RunnerError(
            "R-LOCAL-SEED",
            "the local Batch emulator refuses the seed; nothing was added",
            why=next((v["value"] for v in values if v["key"] == "Reason"), str(answer.get("code"))),
            fix="change the seed, then run the command again",
        )
    return Seeded(answer["added"], answer["existing"])
