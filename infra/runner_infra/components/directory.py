"""Object IDs of the operators that a stack's file names, from Microsoft Graph.

https://learn.microsoft.com/graph/api/user-get and /user-list ("$filter", read 2026-11-29)
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from pulumi_azure_native import authorization

from runner.core.azure.clouds import PUBLIC, cloud_named
from runner.protocol.errors import RunnerError
from runner_infra.config.stack import OperatorConfig, StackConfig
from runner_infra.planning.earlier import Earlier

_ENDPOINT = "GRAPH_ENDPOINT"  # of another cloud, or of a server for tests
_TIMEOUT_S = 30.0


def resolve_operators(config: StackConfig, earlier: Earlier) -> StackConfig:
    """Return the configuration with an object ID for every operator.

    If Graph does not answer, as for most identities of CI, an ID is used that an earlier deployment
    has found for the name.

    Raises:
        RunnerError: R-OPERATOR-NAME, a name is unknown.
    """
    if all(each.id for each in config.operators):
        return config
    graph = _Graph(config.cloud)
    found = tuple(
        each if each.id else each.model_copy(update={"id": _find(str(each.name), earlier, graph)})
        for each in config.operators
    )
    # Several names of a user would be several assignments of the same role, which Azure refuses.
    unique: dict[str, OperatorConfig] = {str(each.id).lower(): each for each in found}
    return config.model_copy(update={"operators": tuple(unique.values())})


def _find(name: str, earlier: Earlier, graph: _Graph) -> str:
    try:
        found = graph.find_user(name)
    except (OSError, ValueError) as err:
        if name.lower() in earlier.names:
            return earlier.names[name.lower()]
        raise _unknown(name, f"Microsoft Graph gave no answer: {err}") from err
    if found is None:
        raise _unknown(name, "no user of the tenant signs in with it, or has it as address")
    return found


class _Graph:
    """Microsoft Graph of a cloud, with the sign-in of the provider."""

    def __init__(self, cloud: str) -> None:
        self._endpoint = os.environ.get(_ENDPOINT) or (cloud_named(cloud) or PUBLIC).graph
        self._known: str | None = None  # the token

    def find_user(self, name: str) -> str | None:
        """Return the ID of a user by sign-in name or, for guests, by address, else None.

        Raises:
            OSError: no answer, or a refusal.
            ValueError: no token, or several users have the address.
        """
        users = f"{self._endpoint}/v1.0/users"
        found = _get(f"{users}/{quote(name, safe='@')}?$select=id", self._token())
        if found is None:
            literal = name.replace("'", "''")
            query = urlencode({"$filter": f"mail eq '{literal}'", "$select": "id"}, quote_via=quote)
            answer = _get(f"{users}?{query}", self._token()) or {}
            listed: list[Mapping[str, Any]] = answer.get("value") or []
            if len(listed) > 1:
                raise ValueError(f"{len(listed)} users have the address {name!r}")
            found = listed[0] if listed else None
        return None if found is None else str(found["id"])

    def _token(self) -> str:
        if self._known is None:
            try:
                self._known = authorization.get_client_token(endpoint=self._endpoint).token
            except Exception as err:
                raise ValueError(f"no token for it: {err}") from err
        return self._known


def _get(url: str, token: str) -> Mapping[str, Any] | None:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310 - Graph of the cloud
            return json.load(response)
    except urllib.error.HTTPError as err:
        if err.code == 404:
            return None
        raise


def _unknown(name: str, why: str) -> RunnerError:
    return RunnerError(
        "R-OPERATOR-NAME",
        f"runner:operators: no object ID is known for {name!r}",
        why=why,
        fix=f"correct the name, or use `id`: `az ad user show --id {name} --query id -o tsv`",
    )
