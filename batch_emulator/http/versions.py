"""The api-versions of clients: which are accepted, and the names that each of them uses.

To support a new api-version, change the tables of this module, `request_schema.json` (compiled by
`tools.request_schema`) and the `since` and `until` of routes.

The emulator uses the names of api-version 2020-09-01.12.0 and later. Before that version, a pool
had `maxTasksPerNode` instead of `taskSlotsPerNode`, tasks had no `requiredSlots`, nodes had no
`runningTaskSlotsCount`, and slots were not counted. Before 2018-12-01.8.0, a resource file had
`blobSource` instead of `httpUrl`. Source: the models of azure-batch 5.1
(2018-08-01.7.0), 6.0 (2018-12-01.8.0), 9.0 (2020-03-01.11.0) and 10.0 (2020-09-01.12.0).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from functools import lru_cache

from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import Json
from batch_emulator.domain.validation.body_schema import names_unknown_to
from batch_emulator.http.bodies import renamed

_VERSION = re.compile(r"(20\d\d-\d\d-\d\d)(\.\d{1,4}\.\d{1,4})?(-preview)?", re.ASCII)
_OLDEST = date(2018, 3, 1)
_SLOTS_SINCE = date(2020, 9, 1)
NEWEST = date(2025, 6, 1)
_NO_SSH_SINCE = date(2024, 7, 1)

# today's names, each with its older name and the api-version that renamed it
_RENAMED: Mapping[str, tuple[str, date]] = {
    "taskSlotsPerNode": ("maxTasksPerNode", _SLOTS_SINCE),
    "httpUrl": ("blobSource", date(2018, 12, 1)),
}
_UNKNOWN_THEN = frozenset({"requiredSlots", "runningTaskSlotsCount"})


def check_version(query: Mapping[str, str]) -> None:
    """Refuse a request without an api-version, or with an invalid one. Raises Fault."""
    text = query.get("api-version")
    if text is None:
        raise Fault("MissingRequiredQueryParameter", {"QueryParameterName": "api-version"})
    day = _day(text)
    if day is None or day < _OLDEST:
        raise Fault("UnsupportedRequestVersion", {"QueryParameterValue": text[:64]})


def _day(text: str) -> date | None:
    match = _VERSION.fullmatch(text)
    try:
        return None if match is None else date.fromisoformat(match[1])
    except ValueError:
        return None


def day_of(query: Mapping[str, str]) -> date:
    """Return the date of a request's api-version."""
    return _day(query.get("api-version", "")) or NEWEST


def is_old_client(query: Mapping[str, str]) -> bool:
    """Return True if the client uses the names from before slots."""
    day = _day(query.get("api-version", ""))
    return day is not None and day < _SLOTS_SINCE


def selection_in_current_names(query: Mapping[str, str]) -> Mapping[str, str]:
    """Return the query with today's names in `$select`."""
    text = query.get("$select")
    if text is None or not is_old_client(query):
        return query
    new_names = {old: new for new, old in _old_names(query).items()}
    names = (new_names.get(name.strip(), name) for name in text.split(","))
    return {**query, "$select": ",".join(names)}


def to_current_names(body: Json, query: Mapping[str, str]) -> Json:
    """Return a request body with today's names."""
    if not is_old_client(query):
        return body
    return renamed(body, {old: new for new, old in _old_names(query).items()})


def to_client_names(body: Json, query: Mapping[str, str]) -> Json:
    """Return an answer with the names of the client's version."""
    if not is_old_client(query):
        return body
    if "taskSlotCounts" in body:
        metadata = str(body.get("odata.metadata", "")).replace("#taskcountsresult", "#taskcounts")
        return {"odata.metadata": metadata, **body.get("taskCounts", {})}
    return renamed(body, _old_names(query), without=_UNKNOWN_THEN)


def _old_names(query: Mapping[str, str]) -> Mapping[str, str]:
    """Return the older names that the client's version uses, by today's names."""
    day = day_of(query)
    return {new: old for new, (old, since) in _RENAMED.items() if day < since}


# Names in answers that not every api-version has, by the first version that has them and by the
# first that no longer has them. Names that occur in requests, too, are in the schema of requests.
# Source: the models and release notes of azure-batch 4.1 to 15.1, and recorded answers.
_SINCE: Mapping[str, date] = {
    "nodeAgentInfo": date(2018, 8, 1),
    "virtualMachineInfo": date(2021, 6, 1),
    "currentNodeCommunicationMode": date(2022, 10, 1),
    "scaleSetVmResourceId": date(2023, 11, 1),
    "upgradingOS": date(2024, 2, 1),
    **dict.fromkeys(("deallocated", "deallocating"), date(2024, 7, 1)),
    **dict.fromkeys(
        (
            "ipv6Address",
            "ipv6RemoteLoginIPAddress",
            "ipv6RemoteLoginPort",
        ),
        NEWEST,
    ),
}
_UNTIL: Mapping[str, date] = {"currentNodeCommunicationMode": NEWEST}


@lru_cache(maxsize=64)
def _unknown_to(version: str) -> frozenset[str]:
    """Return the names that an api-version does not answer with."""
    day = _day(version) or NEWEST
    late = {name for name, since in _SINCE.items() if day < since}
    gone = {name for name, until in _UNTIL.items() if day >= until}
    renamed = {
        *_RENAMED,
        *(old for old, _ in _RENAMED.values()),
    } | _UNKNOWN_THEN  # `to_client_names` renames these
    return frozenset(late | gone | (names_unknown_to(day.isoformat()) - renamed))


def without_unknown_names(body: Json, query: Mapping[str, str]) -> Json:
    """Return an answer without the properties that the client's version does not have.

    Lists of tasks stay unchanged, because they may be long: no property of a task was ever added or
    removed.
    """
    if str(body.get("odata.metadata", "")).endswith(("#tasks", "#taskaddresult")):
        return body
    version = query.get("api-version", "")
    disk = "managedDisk" if (_day(version) or NEWEST) < NEWEST else "storageAccountType"
    return renamed(body, {}, without=_unknown_to(version), of_disks=frozenset({disk}))


def maps_remote_access(query: Mapping[str, str]) -> bool:
    """Return True if a pool of this api-version gets an endpoint for SSH by default."""
    day = _day(query.get("api-version", ""))
    return day is not None and day < _NO_SSH_SINCE
