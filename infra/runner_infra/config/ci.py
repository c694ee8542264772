"""The key `runner:ci`: which workflow may plan and deploy the stack, without a stored secret."""

from __future__ import annotations

from typing import Annotated

from runner.core.yaml_files import TextField
from runner_infra.config.pool import Section

# A name of GitHub: https://docs.github.com/rest/repos/repos (read 2026-11-29)
REPOSITORY = r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}"
_Repository = Annotated[
    str,
    TextField(rf"^{REPOSITORY}$", "a repository", "the form OWNER/NAME", "contoso/training"),
]
_Ref = Annotated[
    str,
    TextField(
        r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,200}$",
        "a name of GitHub",
        "letters, digits, dots, _, - and /, and begins with a letter or digit",
        "main",
    ),
]


def _resource_id(kind: str) -> TextField:
    return TextField(
        "(?i)^/subscriptions/[0-9a-f-]{36}/resourceGroups/[^/\\s]{1,90}/providers/"
        f"{kind}/[A-Za-z0-9-]{{3,24}}$",
        "the ID of a resource",
        f"the form /subscriptions/…/{kind}/NAME",
        f"/subscriptions/00000000-1111-2222-3333-444444444444/resourceGroups/state/providers/{kind}/n",
    )


class CiConfig(Section):
    """A repository of GitHub whose workflow plans and deploys the stack.

    Plans run for pull requests and for the branch, deployments only in the environment of GitHub.
    `state_account` and `key_vault` are the IDs of what Pulumi's state is stored in and encrypted
    with; the workflow gets roles there.
    """

    github: _Repository
    branch: _Ref = "main"
    environment: _Ref = "azure"
    state_account: Annotated[str, _resource_id("Microsoft.Storage/storageAccounts")] | None = None
    key_vault: Annotated[str, _resource_id("Microsoft.KeyVault/vaults")] | None = None
