"""Documents of schedules that others have written, or that were cut off."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.azure.storage.blobs import BlobContainer
from runner.features.schedules import manage, trigger
from runner.features.schedules.verbs import in_zone
from runner.protocol.errors import RunnerError
from runner.protocol.schedules import SCHEDULES_FOLDER

WHOLE = {
    **{"cron": "0 3 * * *", "timezone": "UTC", "instance": "i1"},
    **{"recipe": "mnist", "pool": "local", "last": None},
}
DEEP = b"[" * 100_000


class Blobs:
    """Some blobs by name."""

    def __init__(self, blobs: dict[str, bytes]) -> None:
        self._blobs = blobs

    def read(self, name: str) -> bytes | None:
        return self._blobs.get(name)

    def folders(self, prefix: str) -> list[str]:
        names = (name.removeprefix(prefix) for name in self._blobs)
        return [prefix + name for name in dict.fromkeys(name.split("/")[0] for name in names)]

    def list(self, prefix: str) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self._blobs if name.startswith(prefix)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    blobs: dict[str, bytes] = {f"{SCHEDULES_FOLDER}good/schedule.json": json.dumps(WHOLE).encode()}
    monkeypatch.setattr(manage, "runs_container", lambda _: Blobs(blobs))
    monkeypatch.setattr(manage.service, "list_schedules", lambda _: [])
    return blobs


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"{}", b"\xff", DEEP, b'{"cron": 1, "timezone": []}']
)
def test_unreadable_schedule_is_listed_with_the_others(
    store: dict[str, bytes], body: bytes
) -> None:
    store[f"{SCHEDULES_FOLDER}bad/schedule.json"] = body
    found = manage.list_schedules(cast("Any", None))
    assert {each.schedule_id: each.when for each in found} == {
        "good": "0 3 * * *",
        "bad": "unreadable",
    }
    assert [manage.firings(cast("Any", None), each) for each in found] == [[], []]


def test_unreadable_firing_is_omitted(store: dict[str, bytes]) -> None:
    firing = {"created": "2026-11-23", "job_id": "j", "run_id": "r"}
    folder = f"{SCHEDULES_FOLDER}good/i1/firings"
    store |= {f"{folder}/1": json.dumps(firing).encode(), f"{folder}/2": b"{", f"{folder}/3": DEEP}
    [good] = manage.list_schedules(cast("Any", None))
    assert [one.runs for one in manage.firings(cast("Any", None), good)] == [("r",)]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", DEEP])
def test_unreadable_template_is_named(store: dict[str, bytes], body: bytes) -> None:
    [good] = manage.list_schedules(cast("Any", None))
    with pytest.raises(RunnerError) as caught:
        trigger._template(cast("BlobContainer", Blobs({"t": body})), good, "t")
    assert caught.value.code == "R-SCHEDULE-BROKEN"


@pytest.mark.parametrize(
    ("minutes", "offset"), [(60, "+01:00"), (-300, "-05:00"), (-210, "-03:30"), (0, "+00:00")]
)
def test_time_of_a_run_and_its_offset_are_two_words(minutes: int, offset: str) -> None:
    zone = timezone(timedelta(minutes=minutes))
    shown = in_zone(datetime(2026, 11, 30, 3, 0, 0, 7, tzinfo=zone))
    assert shown.split(" ") == ["Mon", "2026-11-30", "03:00:00", offset]
