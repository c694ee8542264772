"""Azure Resource Manager over REST: requests, pages, retries, and errors by their code.

The audience of a token is the endpoint, as in the SDKs (azure-mgmt-core, `get_arm_endpoints`), so a
custom endpoint never receives a token for Azure.

Error codes: https://learn.microsoft.com/azure/azure-resource-manager/troubleshooting/common-deployment-errors
(2025-03-20) and .../templates/error-invalid-authentication-token. The service's message is quoted
under `why`, since it names the missing action and scope.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from azure.core.exceptions import AzureError, ClientAuthenticationError

from runner.azure.auth.credentials import default_credential, sdk_transport
from runner.azure.faults import SIGN_IN, FaultText
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from azure.core import PipelineClient
    from azure.core.credentials import TokenCredential


_SIGN_IN_FIX = (
    "`az login` (or set ARM_CLIENT_ID, ARM_TENANT_ID and ARM_CLIENT_SECRET, or AZURE_...)"
)
DENIED = "R-AZURE-DENIED"
_WHY_LENGTH = 300


_TOKEN = FaultText(SIGN_IN, "Azure rejected the sign-in", "run `az login`, then the command again")
_TENANT = FaultText(
    SIGN_IN,
    "the sign-in belongs to a different tenant than the subscription",
    "run `az login --tenant TENANT`; `az account list --all` shows the tenant of a subscription",
)
_NO_RIGHT = FaultText(
    DENIED,
    "the signed-in identity lacks a permission",
    "ask an owner of the subscription for the roles Contributor and Role Based Access Control "
    "Administrator; run `az login` again after a role was assigned",
)
_NO_SUBSCRIPTION = FaultText(
    "R-AZURE-SUBSCRIPTION",
    "the subscription does not exist, or the signed-in identity has no access to it",
    "correct azure-native:subscriptionId; `az account list --all` lists your subscriptions",
)
_DISABLED = FaultText(
    "R-AZURE-SUBSCRIPTION",
    "the subscription is disabled",
    "enable it in the Azure portal under Subscriptions, or use another subscription",
)
_PROVIDER = FaultText(
    "R-AZURE-PROVIDER",
    "a resource provider is not registered in the subscription",
    "az provider register --namespace NAMESPACE --wait",
)
_REGION = FaultText(
    "R-AZURE-REGION",
    "the region does not exist, or does not offer this resource",
    "correct azure-native:location; `az account list-locations -o table` lists all regions",
)
_MISSING = FaultText(
    "R-AZURE-MISSING",
    "the resource does not exist in Azure",
    "run `runner up --refresh` to create it again",
)
_QUOTA = FaultText(
    "R-AZURE-QUOTA",
    "a quota of the subscription is exhausted",
    "request a higher quota in the Azure portal under Quotas, or use another region",
)
_CAPACITY = FaultText(
    "R-AZURE-CAPACITY",
    "this VM size is currently not available to the subscription in the region",
    "use another VM size or region; `runner skus` lists them",
)
_BUSY = FaultText(
    "R-AZURE-BUSY",
    "Azure rejected the request: too many requests",
    "try again in a minute",
)

_TABLE: Mapping[str, FaultText] = {
    "InvalidAuthenticationToken": _TOKEN,
    "ExpiredAuthenticationToken": _TOKEN,
    "AuthenticationFailed": _TOKEN,
    "InvalidAuthenticationTokenAudience": _TOKEN,
    "AuthenticationFailedMissingToken": _TOKEN,
    "InvalidAuthenticationTokenTenant": _TENANT,
    "AuthorizationFailed": _NO_RIGHT,
    "LinkedAuthorizationFailed": _NO_RIGHT,
    "RequestDisallowedByPolicy": _NO_RIGHT._replace(
        what="a policy of the subscription forbids the request",
        fix="ask the owner of the policy for an exemption, or use another subscription",
    ),
    "SubscriptionNotFound": _NO_SUBSCRIPTION,
    "InvalidSubscriptionId": _NO_SUBSCRIPTION,
    "DisabledSubscription": _DISABLED,
    "ReadOnlyDisabledSubscription": _DISABLED,
    "SubscriptionNotRegistered": _PROVIDER,
    "MissingSubscriptionRegistration": _PROVIDER,
    "InvalidResourceNamespace": _PROVIDER,
    "NoRegisteredProviderFound": _REGION,
    "LocationNotAvailableForResourceType": _REGION,
    "LocationNotAvailable": _REGION,
    "InvalidLocation": _REGION,
    "LocationNotFound": _REGION,
    "ResourceNotFound": _MISSING,
    "ResourceGroupNotFound": _MISSING,
    "ParentResourceNotFound": _MISSING,
    "QuotaExceeded": _QUOTA,
    "SubscriptionQuotaExceeded": _QUOTA,
    "SkuNotAvailable": _CAPACITY,
    "TooManyRequests": _BUSY,
    "SubscriptionRequestsThrottled": _BUSY,
    "ServerBusy": _BUSY,
}
_BY_STATUS: Mapping[int, FaultText] = {401: _TOKEN, 403: _NO_RIGHT, 429: _BUSY}


def to_arm_error(status: int, code: str, body: Mapping[str, Any], path: str) -> RunnerError:
    """Return the error for a response with status 400 or above."""
    fault = _TABLE.get(code) or _BY_STATUS.get(status)
    message = _first_lines(_error_field(body, "message"))
    if fault is None:
        return RunnerError(
            "R-AZURE",
            f"Azure rejected the request: {code or f'HTTP {status}'}",
            why=message or f"while requesting {path}",
            fix="add --debug to see the whole response",
        )
    why = (
        f"{code or f'HTTP {status}'}: {message}" if message else code or f"HTTP {status} for {path}"
    )
    return fault.error(why)


def service_fault(err: AzureError, doing: str) -> RunnerError:
    """Return the error for a request without a response: not signed in, or no connection."""
    if isinstance(err, ClientAuthenticationError):
        return RunnerError(
            SIGN_IN,
            "not signed in to Azure",
            why=str(err.message or err).strip().splitlines()[0],
            fix=_SIGN_IN_FIX,
        )
    return unreachable(doing, _first_lines(str(err.message or err)))


def unreachable(doing: str, why: str) -> RunnerError:
    """Return the error for an endpoint that cannot be used."""
    return RunnerError(
        "R-AZURE-UNREACHABLE",
        "Azure cannot be reached",
        why=f"while {doing}: {why}",
        fix="check the network, the proxy (HTTPS_PROXY), and ARM_ENDPOINT if it is set",
    )


def invalid_endpoint(variable: str, value: str, allowed: str) -> RunnerError:
    """Return the error for a variable that has no valid endpoint of Resource Manager."""
    return RunnerError(
        "R-AZURE-ENDPOINT",
        f"invalid {variable} {value!r}",
        why=f"allowed: {allowed}",
        fix=f"unset {variable}, or correct it",
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


# https://learn.microsoft.com/azure/azure-government/compare-azure-government-global-azure
# (2025-02-18) and /azure/china/resources-developer-guide. The names are those of ARM_ENVIRONMENT,
# which azure-native reads (pulumi.com/registry/packages/azure-native/installation-configuration).
CLOUDS: Mapping[str, str] = {
    "public": "https://management.azure.com",
    "usgovernment": "https://management.usgovcloudapi.net",
    "china": "https://management.chinacloudapi.cn",
}
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_TIMEOUTS = {"connection_timeout": 10, "read_timeout": 60}
_MAX_PAGES = 1000


@dataclass(frozen=True, slots=True)
class ArmResponse:
    """A response; `body` is empty if it has none."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str]


def arm_endpoint(env: Mapping[str, str]) -> str:
    """Return the endpoint of Resource Manager: `ARM_ENDPOINT`, else that of `ARM_ENVIRONMENT`.

    Raises:
        RunnerError: R-AZURE-ENDPOINT, the value is unknown or does not use https; http is allowed
            only for a server on this machine.
    """
    given = env.get("ARM_ENDPOINT", "").rstrip("/")
    if not given:
        cloud = env.get("ARM_ENVIRONMENT", "public").lower()
        if cloud not in CLOUDS:
            raise invalid_endpoint("ARM_ENVIRONMENT", cloud, f"one of {', '.join(CLOUDS)}")
        return CLOUDS[cloud]
    parts = urlsplit(given)
    local = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not parts.hostname or not (parts.scheme == "https" or local) or parts.path or parts.query:
        raise invalid_endpoint("ARM_ENDPOINT", given, "https://HOST, without a path")
    return given


class ArmClient:
    """Requests to one subscription of one cloud. The constructor sends none.

    If `credential` is None, DefaultAzureCredential signs in: `az login`, a managed identity, or the
    AZURE_ variables.
    """

    def __init__(
        self,
        subscription_id: str,
        *,
        endpoint: str = CLOUDS["public"],
        credential: TokenCredential | None = None,
    ) -> None:
        self.subscription_id = subscription_id
        self.endpoint = endpoint
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
            raise service_fault(err, "signing in") from err

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
        return self._given_credential or default_credential()

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
    error: Any = body.get("error")
    found: Any = cast("dict[str, Any]", error).get(name) if isinstance(error, dict) else None
    return str(found or body.get(name) or "")


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
