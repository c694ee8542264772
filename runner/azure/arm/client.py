"""Azure Resource Manager over REST: sign-in, pages, and its faults as our errors.

The token's audience is the endpoint's own, as in the SDKs (azure-mgmt-core, `get_arm_endpoints`):
a token for Azure is never asked for, nor sent, where the endpoint is another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from runner.azure.arm.faults import answered, endpoint_refused, service_fault, unreachable

if TYPE_CHECKING:
    from azure.core import PipelineClient
    from azure.core.credentials import TokenCredential

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
        from azure.core.exceptions import AzureError  # noqa: PLC0415  with the first request

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
        from azure.core.exceptions import AzureError  # noqa: PLC0415  with the first request
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
        from runner.azure.auth.credentials import default_credential  # noqa: PLC0415  with the first request

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
        from runner.azure.arm.faults import refused  # noqa: PLC0415  the table, on a fault

        raise refused(answer.status, arm_error_code(answer.body), answer.body, path)
    return answer
