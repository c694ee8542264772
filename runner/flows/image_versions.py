"""Taking away the versions of an image definition.

Image Builder makes them, so Pulumi does not know them, and Azure deletes no definition that has
some: https://learn.microsoft.com/troubleshoot/azure/virtual-machines/linux/troubleshooting-shared-images
("Can't delete resource before nested resources are deleted", read 2026-11-21).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from runner.azure.management import Management
from runner.core.errors import ExitCode, RunnerError

_GALLERIES = "2023-07-03"
POLL_S = 5.0
_PATIENCE_S = 1800


def find_versions(management: Management, definition: str) -> list[str]:
    """The names of the versions; none where the definition itself is gone."""
    if management.find(definition, _GALLERIES) is None:
        return []
    listed = management.pages(f"{definition}/versions", _GALLERIES)
    return [str(document["name"]) for document in listed]


def delete_versions(
    management: Management, definition: str, on_left: Callable[[Sequence[str]], None]
) -> None:
    """Delete every version and wait until Azure has; `on_left` hears which are still there."""
    begin, asked = time.monotonic(), set[str]()
    while left := find_versions(management, definition):
        on_left(left)
        for version in left:
            if version not in asked:  # Azure takes minutes; asking twice is answered with 409
                management.send("DELETE", f"{definition}/versions/{version}", _GALLERIES)
                asked.add(version)
        if time.monotonic() - begin > _PATIENCE_S:
            raise _still_there(definition, left)
        time.sleep(POLL_S)


def _still_there(definition: str, left: Sequence[str]) -> RunnerError:
    return RunnerError(
        "R-IMAGE-DELETE",
        "the versions of the VM image are not deleted yet",
        why=f"after 30 minutes Azure still lists {', '.join(left)} of {definition}",
        fix="runner down, once more; the portal shows each version's state",
        exit_code=ExitCode.PREFLIGHT,
    )
