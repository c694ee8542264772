"""Check the API versions in use against the retirements that Azure has announced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from runner.core.checks import Check, passed, warned

VERSIONS = "batch-api"  # the name of the checks
_UPDATE = "update azure-batch-runner when a release with a newer version is out"


@dataclass(frozen=True, slots=True)
class UsedVersion:
    """A version of an API of Azure, such as `2025-06-01`, and what uses it."""

    version: str
    user: str

    @property
    def day(self) -> str:
        """The date in the version; versions of data planes have a suffix, such as `.19.0`."""
        return self.version[:10]


@dataclass(frozen=True, slots=True)
class Retirement:
    """All versions before `before` end on `ends`, or on a day that is not known yet (None)."""

    before: str
    ends: date | None
    source: str


# Announced on 2026-05-15, without a date and without a plane:
# https://github.com/Azure/Batch/issues/140 (read 2026-11-20).
RETIREMENTS = (Retirement("2025-06-01", None, "github.com/Azure/Batch/issues/140"),)


def used_versions() -> Sequence[UsedVersion]:
    """Return the versions of Batch's APIs that a stack and its commands use."""
    from runner.azure.arm.subscription import READ_API  # noqa: PLC0415  azure-core
    from runner.azure.auth.credentials import DATA_PLANE_API  # noqa: PLC0415  the Batch SDK
    from runner_infra.planning.pool_plan import BATCH_API  # noqa: PLC0415  pydantic, YAML

    return (
        UsedVersion(BATCH_API, "pools, through azure-native"),
        UsedVersion(READ_API, "requests to Resource Manager"),
        UsedVersion(DATA_PLANE_API, "jobs and tasks"),
    )


def check_versions(
    today: date,
    used: Sequence[UsedVersion] | None = None,
    retirements: Sequence[Retirement] = RETIREMENTS,
) -> Iterator[Check]:
    """Warn of versions that Azure has announced to retire.

    Args:
        today: the day that ends are compared with.
        used: None means the versions of this package.
        retirements: the announcements.
    """
    used = used_versions() if used is None else used
    good: list[str] = []
    for each in used:
        concerned = [found for found in retirements if each.day < found.before]
        if not concerned:
            good.append(f"{each.user}: {each.version}")
        for found in concerned:
            yield _warning(each, found, today)
    if good:
        yield passed(VERSIONS, f"Batch API, {'; '.join(good)}")


def _warning(used: UsedVersion, retirement: Retirement, today: date) -> Check:
    ends = retirement.ends
    if ends is None:
        when = "on a day not announced yet"
    else:
        when = f"{'since' if ends <= today else 'on'} {ends}"
    detail = f"{used.user}: Batch API {used.version}; Azure retires those before "
    return warned(VERSIONS, f"{detail}{retirement.before} {when} ({retirement.source})", _UPDATE)
