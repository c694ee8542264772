from __future__ import annotations

from datetime import date
from inspect import signature
from typing import Any, cast

from azure.batch import BatchClient

from runner.azure.auth.credentials import DATA_PLANE_API
from runner.flows.environment.checks.versions import (
    Retirement,
    UsedVersion,
    check_versions,
    used_versions,
)

_DAY = date(2026, 11, 21)


def test_version_that_azure_retires_is_a_warning() -> None:
    found = list(check_versions(_DAY))
    assert [each.state for each in found] == ["warning", "ok"]
    assert "2024-07-01" in found[0].detail
    assert "before 2025-06-01 on a day not announced yet" in found[0].detail
    assert "issues/140" in found[0].detail
    assert found[0].fix


def test_newer_versions_are_not_warned_of() -> None:
    used = (UsedVersion("2025-06-01", "pools"), UsedVersion("2025-12-01.20.0", "tasks"))
    (found,) = check_versions(_DAY, used)
    assert (found.state, found.detail) == (
        "ok",
        "Batch API, pools: 2025-06-01; tasks: 2025-12-01.20.0",
    )


def test_day_of_a_retirement_is_named() -> None:
    used = (UsedVersion("2024-07-01", "pools"),)
    for ends, says in ((date(2027, 1, 31), "on 2027-01-31"), (date(2026, 1, 31), "since 2026")):
        (found,) = check_versions(_DAY, used, (Retirement("2025-06-01", ends, "a page"),))
        assert (found.state, says in found.detail) == ("warning", True)


def test_versions_are_those_that_are_used() -> None:
    assert signature(BatchClient.__init__)  # the SDK of the data plane is installed
    client = BatchClient(
        "https://a.westeurope.batch.azure.com", credential=cast("Any", _NoCredential())
    )
    assert client._config.api_version == DATA_PLANE_API
    assert {each.version for each in used_versions()} == {"2024-07-01", "2025-06-01"}


class _NoCredential:
    def get_token(self, *_: object, **__: object) -> object:
        raise AssertionError
