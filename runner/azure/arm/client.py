"""Azure Resource Manager over REST: requests, pages, retries, and errors by their code.

The audience of a token is the endpoint, as in the SDKs (azure-mgmt-core, `get_arm_endpoints`), so a
custom endpoint never receives a token for Azure. The endpoint is that of the cloud.

The meaning of error codes is in `runner.core.azure.arm_faults`. The service's message is quoted
under `why`, since it names the missing action and scope.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from azure.core.exceptions import AzureError, ClientAuthenticationError

from runner.azure.auth.credentials import default_credential, sdk_transport
from runner.azure.faults import SIGNING_IN, not_signed_in
from runner.core.azure.arm_faults import codes_in, find_fault
from runner.core.azure.clouds import PUBLIC, Cloud, find_cloud, invalid_endpoint, with_az
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from azure.core import PipelineClient
    from azure.core.credentials import TokenCredential


_WHY_LENGTH = 300


def to_arm_error(status: int, code: str, body: Mapping[str, Any], path: str) -> RunnerError:
    """Return the error for a response with status 400 or above."""
    found = find_fault([*codes_in(_error_of(body))] or [code], status)
    message = _first_lines(_error_field(body, "message"))
    if found is None:
        return RunnerError(
            "R-AZURE",
            f"Azure rejected the request: {code or f'HTTP {status}'}",
            why=message or f"while requesting {path}",
            fix="add --debug to see the whole response",
        )
    shown = found[0] or f"HTTP {status}"
    err = found[1].error(f"{shown}: {message}" if message else f"{shown} for {path}")
    err.fix = with_az(err.fix, os.environ)
    return err


def service_fault(err: AzureError, doing: str) -> RunnerError:
    """Return the error for a request without a response: not signed in, or no connection."""
    if isinstance(err, ClientAuthenticationError):
        return not_signed_in(err, doing)
    return unreachable(doing, _first_lines(str(err.message or err)))


def unreachable(doing: str, why: str) -> RunnerError:
    """Return the error for an endpoint that cannot be used."""
    return RunnerError(
        "R-AZURE-UNREACHABLE",
        "Azure cannot be reached",
        why=f"while {doing}: {why}",
        fix="check the network, the proxy (HTTPS_PROXY), and ARM_ENDPOINT if it is set",
    )


def parse_body(text: str) -> Mapping[str, Any]:
    """Return the JSON object of a response; other JSON is in `value`, other text in `text`."""
    if not text.strip():
        return {}
    try:
        parsed: Any = json.loads(text)
    except ValueError:
        return {"text": text}
    if isinstance(parsed, dict):
        return cast("dict[str, Any]", parsed)
    return {"value": parsed}


def _first_lines(text: str) -> str:
    """Return the text as one line of limited length."""
    line = " ".join(text.split())
    return line if len(line) <= _WHY_LENGTH else f"{line[: _WHY_LENGTH - 1]}…"


_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_TIMEOUTS = {"connection_timeout": 10, "read_timeout": 60}
_MAX_PAGES = 1000


@dataclass(frozen=True, slots=True)
class ArmResponse:
    """A response; `body` is empty if it has none."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str]


def open_arm(subscription_id: str, env: Mapping[str, str], cloud: str | None = None) -> ArmClient:
    """Return the client of a subscription. Send no request.

    Args:
        subscription_id: the subscription.
        env: the variables of the command; `ARM_ENDPOINT` replaces the endpoint of the cloud.
        cloud: the cloud of the stack; None: the variables or `az` select it, see `find_cloud`.

    Raises:
        RunnerError: the variables name an invalid endpoint, or contradict the cloud.
    """
    found = find_cloud(env, cloud)
    return ArmClient(subscription_id, endpoint=arm_endpoint(env, found), cloud=found)


def arm_endpoint(env: Mapping[str, str], cloud: Cloud) -> str:
    """Return the endpoint of Resource Manager: `ARM_ENDPOINT`, else that of the cloud.

    Raises:
        RunnerError: R-AZURE-ENDPOINT, it does not use https; http is allowed only for a server on
            this machine.
    """
    given = env.get("ARM_ENDPOINT", "").rstrip("/")
    if not given:
        return cloud.management
    parts = urlsplit(given)
    local = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not parts.hostname or not (parts.scheme == "https" or local) or parts.path or parts.query:
        raise invalid_endpoint("ARM_ENDPOINT", given, "https://HOST, without a path")
    return given


class ArmClient:
    """Requests to one subscription of one cloud. The constructor sends none.

    If `credential` is None, DefaultAzureCredential signs in to the cloud: `az login`, a managed
    identity, or the AZURE_ variables. None is the public cloud.
    """

    def __init__(
        self,
        subscription_id: str,
        *,
        endpoint: str | None = None,
        credential: TokenCredential | None = None,
        cloud: Cloud | None = None,
    ) -> None:
        self.subscription_id = subscription_id
        self.cloud = cloud or PUBLIC
        self.endpoint = endpoint or self.cloud.management
        self._given_credential = credential

    @property
    def scope(self) -> str:
        """The prefix of all paths in the subscription."""
        return f"/subscriptions/{self.subscription_id}"

    def sign_in(self) -> str:
        """Return a token, which must not be printed. Raise RunnerError R-AZURE-SIGN-IN."""
        try:
            return self._credential.get_token(self._audience).token
        except AzureError as err:
            raise service_fault(err, SIGNING_IN) from err

    def get(self, path: str, api_version: str, **query: str) -> Mapping[str, Any]:
        """Return one document. Raise RunnerError if the request fails."""
        return _check_status(
            self._send("GET", self._url(path, api_version, query), None), path
        ).body

    def find(self, path: str, api_version: str, **query: str) -> Mapping[str, Any] | None:
        """Return one document, or None if it does not exist."""
        response = self._send("GET", self._url(path, api_version, query), None)
        if response.status == 404 and arm_error_code(response.body) in _ABSENT:
            return None
        return _check_status(response, path).body

    def pages(self, path: str, api_version: str, **query: str) -> Iterator[Mapping[str, Any]]:
        """Yield all items of a list, page by page."""
        url = self._url(path, api_version, query)
        for _ in range(_MAX_PAGES):
            body = _check_status(self._send("GET", url, None), path).body
            yield from cast("list[Mapping[str, Any]]", body.get("value") or [])
            url = str(body.get("nextLink") or "")
            if not url:
                return
            here, there = urlsplit(self.endpoint), urlsplit(url)
            if (here.scheme, here.netloc.lower()) != (there.scheme, there.netloc.lower()):
                # The token is sent only to the endpoint.
                raise unreachable(url, "the next page of the list is on another host")
        raise unreachable(path, f"the list has more than {_MAX_PAGES} pages")

    def send(
        self, method: str, path: str, api_version: str, *, content: Mapping[str, Any] | None = None
    ) -> ArmResponse:
        """Send a request, with a JSON document if `content` is not None."""
        return _check_status(self._send(method, self._url(path, api_version, {}), content), path)

    def _send(self, method: str, url: str, content: Mapping[str, Any] | None) -> ArmResponse:
        from azure.core.rest import HttpRequest  # noqa: PLC0415

        request = HttpRequest(method, url, json=content)
        local = urlsplit(url).hostname in _LOOPBACK
        try:
            response = self._client.send_request(request, enforce_https=not local)
            text = response.text()
        except AzureError as err:
            raise service_fault(err, f"requesting {urlsplit(url).hostname}") from err
        return ArmResponse(response.status_code, parse_body(text), dict(response.headers))

    def _url(self, path: str, api_version: str, query: Mapping[str, str]) -> str:
        from urllib.parse import quote, urlencode  # noqa: PLC0415

        parameters = {"api-version": api_version, **query}
        return f"{self.endpoint}{quote(path)}?{urlencode(parameters, quote_via=quote, safe='')}"

    @property
    def _audience(self) -> str:
        return f"{self.endpoint}/.default"

    @cached_property
    def _credential(self) -> TokenCredential:
        return self._given_credential or default_credential(self.cloud)

    @cached_property
    def _client(self) -> PipelineClient[Any, Any]:
        from azure.core import PipelineClient  # noqa: PLC0415  0.3 s
        from azure.core.pipeline import policies  # noqa: PLC0415

        chain: list[Any] = [
            policies.RequestIdPolicy(),
            policies.UserAgentPolicy("runner"),
            policies.RetryPolicy(retry_total=3, retry_connect=1, retry_backoff_factor=0.2),
            policies.BearerTokenCredentialPolicy(self._credential, self._audience),
            policies.NetworkTraceLoggingPolicy(),
        ]
        transport = sdk_transport(**_TIMEOUTS, **self._proxy_options)
        return PipelineClient(self.endpoint, policies=chain, transport=transport)

    @property
    def _proxy_options(self) -> dict[str, Any]:
        """Return options that bypass proxies if the server is on this machine."""
        local = urlsplit(self.endpoint).hostname in _LOOPBACK
        return {"use_env_settings": False} if local else {}


def arm_error_code(body: Mapping[str, Any]) -> str:
    """Return `error.code` of a response, or an empty string."""
    return _error_field(body, "code")


def _error_field(body: Mapping[str, Any], name: str) -> str:
    return str(_error_of(body).get(name) or body.get(name) or "")


def _error_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the error in a response: a document in it, or the response itself."""
    error: Any = body.get("error")
    return cast("dict[str, Any]", error) if isinstance(error, dict) else body


_ABSENT = frozenset(
    {
        "ResourceNotFound",
        "ResourceGroupNotFound",
        "ParentResourceNotFound",
        "NotFound",
        "AccountNotFound",
        "GalleryImageNotFound",
        "ImageNotFound",
        "ArtifactNotFound",
    }
)


def _check_status(response: ArmResponse, path: str) -> ArmResponse:
    if response.status >= 400:
        raise to_arm_error(response.status, arm_error_code(response.body), response.body, path)
    return response
