"""Azure Resource Manager over REST: requests, pages, retries, and errors by their code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlsplit

from azure.core.exceptions import AzureError, ClientAuthenticationError

from runner.azure.auth.credentials import default_credential
from runner.azure.faults import SIGN_IN
from runner.protocol.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from azure.core import PipelineClient
    from azure.core.credentials import TokenCredential


_SIGN_IN_FIX = "az login   (or set AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET)"
DENIED = "R-AZURE-DENIED"
_WHY_LENGTH = 300


class _ArmFault(NamedTuple):
    code: str
    what: str
    fix: str
    exit_code: ExitCode = ExitCode.ACCESS


_TOKEN = _ArmFault(
    SIGN_IN, "Azure does not accept the sign-in", "az login, then run the command again"
)
_TENANT = _ArmFault(
    SIGN_IN,
    "the sign-in is for another tenant than the subscription's",
    "az login --tenant TENANT   (az account list --all shows the tenant of each subscription)",
)
_NO_RIGHT = _ArmFault(
    DENIED,
    "the signed-in identity may not do this",
    "ask an owner of the subscription for the roles Contributor and Role Based Access Control "
    "Administrator; az login if the role was given a moment ago",
)
_NO_SUBSCRIPTION = _ArmFault(
    "R-AZURE-SUBSCRIPTION",
    "the subscription does not exist, or the signed-in identity cannot see it",
    "az account list --all; then pulumi config set azure-native:subscriptionId ID",
)
_DISABLED = _ArmFault(
    "R-AZURE-SUBSCRIPTION",
    "the subscription is disabled",
    "enable it in the portal under Subscriptions, or use another one",
)
_PROVIDER = _ArmFault(
    "R-AZURE-PROVIDER",
    "a resource provider is not registered in the subscription",
    "az provider register --namespace NAMESPACE --wait",
    ExitCode.PREFLIGHT,
)
_REGION = _ArmFault(
    "R-AZURE-REGION",
    "the region does not exist, or does not have this",
    "az account list-locations -o table; then pulumi config set azure-native:location REGION",
    ExitCode.PREFLIGHT,
)
_MISSING = _ArmFault(
    "R-AZURE-MISSING",
    "it does not exist in Azure",
    "deploy the stack: runner up",
    ExitCode.PREFLIGHT,
)
_QUOTA = _ArmFault(
    "R-AZURE-QUOTA",
    "a quota of the subscription is used up",
    "ask for more in the portal under Quotas, or use another region",
    ExitCode.CAPACITY,
)
_CAPACITY = _ArmFault(
    "R-AZURE-CAPACITY",
    "the region has no such machine for this subscription at the moment",
    "use another VM size or region: runner skus",
    ExitCode.CAPACITY,
)
_BUSY = _ArmFault(
    "R-AZURE-BUSY",
    "Azure answers with too many requests",
    "try again in a minute",
    ExitCode.CAPACITY,
)

_TABLE: Mapping[str, _ArmFault] = {
    "InvalidAuthenticationToken": _TOKEN,
    "ExpiredAuthenticationToken": _TOKEN,
    "AuthenticationFailed": _TOKEN,
    "InvalidAuthenticationTokenAudience": _TOKEN,
    "AuthenticationFailedMissingToken": _TOKEN,
    "InvalidAuthenticationTokenTenant": _TENANT,
    "AuthorizationFailed": _NO_RIGHT,
    "LinkedAuthorizationFailed": _NO_RIGHT,
    "RequestDisallowedByPolicy": _NO_RIGHT._replace(
        what="a policy of the subscription forbids this",
        fix="ask who owns the policy, or use another subscription",
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
_BY_STATUS: Mapping[int, _ArmFault] = {401: _TOKEN, 403: _NO_RIGHT, 429: _BUSY}


def refused(status: int, code: str, body: Mapping[str, Any], path: str) -> RunnerError:
    """The error for an answer of 400 and above."""
    fault = _TABLE.get(code) or _BY_STATUS.get(status)
    said = _sentence(body)
    if fault is None:
        return RunnerError(
            "R-AZURE",
            f"Azure refused: {code or f'HTTP {status}'}",
            why=said or f"while asking for {path}",
            fix="--debug shows the whole answer",
            exit_code=ExitCode.PREFLIGHT,
        )
    why = f"{code or f'HTTP {status}'}: {said}" if said else code or f"HTTP {status} for {path}"
    return RunnerError(fault.code, fault.what, why=why, fix=fault.fix, exit_code=fault.exit_code)


def service_fault(err: AzureError, doing: str) -> RunnerError:
    """The error where no answer came: not signed in, or no way there."""
    if isinstance(err, ClientAuthenticationError):
        return RunnerError(
            SIGN_IN,
            "not signed in to Azure",
            why=str(err.message or err).strip().splitlines()[0],
            fix=_SIGN_IN_FIX,
            exit_code=ExitCode.ACCESS,
        )
    return unreachable(doing, _first_lines(str(err.message or err)))


def unreachable(doing: str, why: str) -> RunnerError:
    """The error where Azure cannot be talked to."""
    return RunnerError(
        "R-AZURE-UNREACHABLE",
        "Azure cannot be reached",
        why=f"while {doing}: {why}",
        fix="check the network, the proxy, and ARM_ENDPOINT if it is set",
        exit_code=ExitCode.PREFLIGHT,
    )


def endpoint_refused(variable: str, value: str, allowed: str) -> RunnerError:
    """The error for a value that is no endpoint of Resource Manager."""
    return RunnerError(
        "R-AZURE-ENDPOINT",
        f"{variable} is {value!r}",
        why=f"allowed: {allowed}",
        fix=f"unset {variable}, or correct it",
    )


def answered(text: str) -> Mapping[str, Any]:
    """The JSON object of an answer; a list stands under `value`, what is no JSON under `text`."""
    if not text.strip():
        return {}
    try:
        parsed: Any = json.loads(text)
    except ValueError:
        return {"text": text}
    if isinstance(parsed, dict):
        return cast("dict[str, Any]", parsed)
    return {"value": parsed}


def _sentence(body: Mapping[str, Any]) -> str:
    error: Any = body.get("error")
    found: Any = cast("dict[str, Any]", error).get("message") if isinstance(error, dict) else None
    return _first_lines(str(found or body.get("message") or ""))


def _first_lines(text: str) -> str:
    """One line of a length that can be read."""
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
_MOST_PAGES = 1000


@dataclass(frozen=True, slots=True)
class ArmResponse:
    """What came back: `body` is empty where nothing was sent."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str]


def arm_endpoint(env: Mapping[str, str]) -> str:
    """Where Resource Manager is: `ARM_ENDPOINT` (a cloud of one's own), else `ARM_ENVIRONMENT`.

    Only https, or http on this machine, where nobody listens in. Raises R-AZURE-ENDPOINT.
    """
    given = env.get("ARM_ENDPOINT", "").rstrip("/")
    if not given:
        cloud = env.get("ARM_ENVIRONMENT", "public").lower()
        if cloud not in CLOUDS:
            raise endpoint_refused("ARM_ENVIRONMENT", cloud, f"one of {', '.join(CLOUDS)}")
        return CLOUDS[cloud]
    parts = urlsplit(given)
    local = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not parts.hostname or not (parts.scheme == "https" or local) or parts.path or parts.query:
        raise endpoint_refused("ARM_ENDPOINT", given, "https://HOST, without a path")
    return given


class ArmClient:
    """One subscription of one cloud; nothing is sent before the first request.

    `credential` None signs in with DefaultAzureCredential: `az login`, a managed identity, or the
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
        self._given = credential

    @property
    def scope(self) -> str:
        """The start of every path in the subscription."""
        return f"/subscriptions/{self.subscription_id}"

    def sign_in(self) -> None:
        """Get a token, without asking for anything. Raises R-AZURE-SIGN-IN."""
        try:
            self._credential.get_token(self._audience)
        except AzureError as err:
            raise service_fault(err, "signing in") from err

    def get(self, path: str, api_version: str, **query: str) -> Mapping[str, Any]:
        """One document. Raises RunnerError for every fault, by the service's code."""
        return _accepted(self._send("GET", self._url(path, api_version, query), None), path).body

    def find(self, path: str, api_version: str, **query: str) -> Mapping[str, Any] | None:
        """One document, or None where there is none of that name."""
        answer = self._send("GET", self._url(path, api_version, query), None)
        if answer.status == 404 and arm_error_code(answer.body) in _ABSENT:
            return None
        return _accepted(answer, path).body

    def pages(self, path: str, api_version: str, **query: str) -> Iterator[Mapping[str, Any]]:
        """Every item of a list, page after page."""
        url = self._url(path, api_version, query)
        for _ in range(_MOST_PAGES):
            body = _accepted(self._send("GET", url, None), path).body
            yield from cast("list[Mapping[str, Any]]", body.get("value") or [])
            url = str(body.get("nextLink") or "")
            if not url:
                return
            self._check_link(url)
        raise unreachable(path, f"the list has more than {_MOST_PAGES} pages")

    def send(
        self,
        method: str,
        path: str,
        api_version: str,
        *,
        content: Mapping[str, Any] | None = None,
    ) -> ArmResponse:
        """One request of another kind, with a JSON document if `content` is given."""
        return _accepted(self._send(method, self._url(path, api_version, {}), content), path)

    def _send(self, method: str, url: str, content: Mapping[str, Any] | None) -> ArmResponse:
        from azure.core.rest import HttpRequest  # noqa: PLC0415

        request = HttpRequest(method, url, json=content)
        local = urlsplit(url).hostname in _LOOPBACK
        try:
            response = self._client.send_request(request, enforce_https=not local)
            text = response.text()
        except AzureError as err:
            raise service_fault(err, f"asking {urlsplit(url).hostname}") from err
        return ArmResponse(response.status_code, answered(text), dict(response.headers))

    def _url(self, path: str, api_version: str, query: Mapping[str, str]) -> str:
        from urllib.parse import quote, urlencode  # noqa: PLC0415

        asked = {"api-version": api_version, **query}
        return f"{self.endpoint}{quote(path)}?{urlencode(asked, quote_via=quote, safe='')}"

    def _check_link(self, url: str) -> None:
        """The token goes along: only to the same endpoint."""
        here, there = urlsplit(self.endpoint), urlsplit(url)
        if (here.scheme, here.netloc.lower()) != (there.scheme, there.netloc.lower()):
            raise unreachable(url, "the next page of the list is on another host")

    @property
    def _audience(self) -> str:
        return f"{self.endpoint}/.default"

    @cached_property
    def _credential(self) -> TokenCredential:
        if self._given is not None:
            return self._given

        return default_credential()

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
        return PipelineClient(self.endpoint, policies=chain, **_TIMEOUTS, **self._direct)

    @property
    def _direct(self) -> dict[str, Any]:
        """A server on this machine cannot be reached through a proxy of the environment."""
        local = urlsplit(self.endpoint).hostname in _LOOPBACK
        return {"use_env_settings": False} if local else {}


def arm_error_code(body: Mapping[str, Any]) -> str:
    """`error.code` of an answer; empty where there is none."""
    error: Any = body.get("error")
    found: Any = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else None
    return str(found or body.get("code") or "")


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


def _accepted(answer: ArmResponse, path: str) -> ArmResponse:
    if answer.status >= 400:
        raise refused(answer.status, arm_error_code(answer.body), answer.body, path)
    return answer
