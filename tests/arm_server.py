"""A stand-in for Azure Resource Manager: an HTTP server on 127.0.0.1 that serves dictionaries.

Responses have the shapes of the examples in github.com/Azure/azure-rest-api-specs (2025-06-01 for
Batch) and of https://learn.microsoft.com/rest/api/{compute/resource-skus,storagerp,resources}. The
server also issues tokens like an App Service (.../azure/app-service/overview-managed-identity,
"REST endpoint reference"), so that DefaultAzureCredential signs in with the variables of
`server.environment()`.

    with ArmServer() as server:
        management = Management(SUBSCRIPTION, endpoint=server.url, credential=server.credential)

A test changes the fields of `server.state`, adds faults with `refuse(path_part, status, code)`, and
adds other requests with `handle(method, path_part, answer)`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from azure.core.credentials import AccessToken

from runner.core.pricing.machines import REGIONS
from tests.loopback import QuietServer, read_body

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
TENANT = "99999999-8888-7777-6666-555555555555"
TOKEN = "a-token-of-the-stand-in"
_IDENTITY_SECRET = "an-identity-header"
NAMESPACES = (
    *("Microsoft.Authorization", "Microsoft.Batch", "Microsoft.Compute", "Microsoft.Consumption"),
    *("Microsoft.Insights", "Microsoft.ManagedIdentity", "Microsoft.Network", "Microsoft.Storage"),
    *("Microsoft.OperationalInsights", "Microsoft.VirtualMachineImages"),
    *("Microsoft.ContainerInstance", "Microsoft.KeyVault", "Microsoft.ContainerRegistry"),
    "Microsoft.CostManagementExports",
)
_IMAGE_VERSIONS = (
    "providers/microsoft.compute/locations/*/publishers/*/artifacttypes/vmimage"
    "/offers/*/skus/*/versions"
)
Reply = tuple[int, dict[str, Any] | list[Any]]
Handler = Callable[[str, Any], tuple[int, dict[str, Any] | list[Any], dict[str, str]]]


class StandInCredential:
    """A credential for the SDKs, which records the scopes of the requested tokens."""

    def __init__(self) -> None:
        self.scopes: list[str] = []

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.scopes += scopes
        return AccessToken(TOKEN, int(time.time()) + 3600)


@dataclass
class ArmState:
    """The data that the server serves, which a test may change at any time."""

    subscription_state: str = "Enabled"
    quota_id: str = "PayAsYouGo_2014-09-01"
    providers: dict[str, str] = field(
        default_factory=lambda: dict.fromkeys(NAMESPACES, "Registered")
    )
    account_quota: int = 3
    locations: set[str] = field(default_factory=lambda: set(REGIONS))
    token: str = TOKEN  # of every sign-in
    # Resources by ID, including Batch accounts. A list contains the resources below a path.
    resources: dict[str, dict[str, Any]] = field(default_factory=dict)
    skus: list[dict[str, Any]] = field(default_factory=list)
    batch_sizes: list[dict[str, Any]] = field(default_factory=list)
    usages: list[dict[str, Any]] = field(default_factory=list)  # of Compute, by VM family
    taken_names: set[str] = field(default_factory=set)
    permissions: list[dict[str, Any]] = field(
        default_factory=lambda: [{"actions": ["*"], "notActions": []}]
    )
    images: dict[str, list[str]] = field(default_factory=dict)  # "publisher/offer/sku": versions
    faults: list[tuple[str, int, str, dict[str, str]]] = field(default_factory=list)
    handlers: list[tuple[str, str, Handler]] = field(default_factory=list)
    page_size: int = 100
    requests: list[tuple[str, str, Any]] = field(default_factory=list)  # method, path, body


class ArmServer:
    """Serves `state` from a thread while the block runs."""

    def __init__(self) -> None:
        self.state = ArmState()
        self.credential = StandInCredential()
        self._server = QuietServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def environment(self) -> dict[str, str]:
        """Return the variables with which `runner` and the SDKs use this server, signed in."""
        return {
            "ARM_ENDPOINT": self.url,
            "IDENTITY_ENDPOINT": f"{self.url}/msi/token",
            "IDENTITY_HEADER": _IDENTITY_SECRET,
            "AZURE_TOKEN_CREDENTIALS": "ManagedIdentityCredential",
        }

    def refuse(self, path_part: str, status: int, code: str, **headers: str) -> None:
        """Answer every request with `path_part` in its path with an error from now on."""
        self.state.faults.append((path_part.lower(), status, code, headers))

    def handle(self, method: str, path_part: str, answer: Handler) -> None:
        """Answer requests with `answer(path, body)`, which returns status, body and headers."""
        self.state.handlers.append((method, path_part.lower(), answer))

    def add_batch_account(
        self, group: str, name: str, location: str, **properties: Any
    ) -> dict[str, Any]:
        """Add a Batch account with quotas, which `properties` change. Return it."""
        account_id = resource_id(group, f"Microsoft.Batch/batchAccounts/{name}")
        families = [{"name": "standardNCASv3_T4Family", "coreQuota": 16}]
        body = {
            "id": account_id,
            "name": name,
            "type": "Microsoft.Batch/batchAccounts",
            "location": location,
            "properties": {
                "accountEndpoint": f"{name}.{location}.batch.azure.com",
                "provisioningState": "Succeeded",
                "poolAllocationMode": "BatchService",
                "dedicatedCoreQuota": 100,
                "dedicatedCoreQuotaPerVMFamily": families,
                "dedicatedCoreQuotaPerVMFamilyEnforced": True,
                "lowPriorityCoreQuota": 64,
                "poolQuota": 100,
                **properties,
            },
        }
        self.state.resources[account_id] = body
        return body

    def add_size(
        self, name: str, family: str, location: str, *, restricted: str = "", end_of_life: str = ""
    ) -> None:
        """Add a VM size to the lists of Compute and Batch in a region."""
        restrictions = [
            {
                "type": "Location",
                "values": [location],
                "restrictionInfo": {"locations": [location]},
                "reasonCode": restricted,
            }
        ]
        self.state.skus.append(
            {
                "resourceType": "virtualMachines",
                "name": name,
                "tier": "Standard",
                "family": family,
                "locations": [location],
                "capabilities": [{"name": "LowPriorityCapable", "value": "True"}],
                "restrictions": restrictions if restricted else [],
            }
        )
        size: dict[str, Any] = {
            "name": name,
            "familyName": family,
            "capabilities": [{"name": "LowPriorityCapable", "value": "True"}],
            "location": location,
        }
        if end_of_life:
            size["batchSupportEndOfLife"] = f"{end_of_life}T00:00:00Z"
        self.state.batch_sizes.append(size)

    def __enter__(self) -> ArmServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

            def _answer(self) -> None:
                text = read_body(self)
                status, body, headers = server._respond(self, json.loads(text) if text else None)
                sent = json.dumps(body).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", "application/json; charset=utf-8")
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _answer  # noqa: N815

        return Handler

    def _respond(
        self, request: BaseHTTPRequestHandler, body: Any
    ) -> tuple[int, dict[str, Any] | list[Any], dict[str, str]]:
        parts = urlsplit(request.path)
        path = unquote(parts.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.state.requests.append((request.command, path, body))
        if path == "/msi/token":
            return (*self._token(request, query), {})
        for part, status, code, headers in self.state.faults:
            if part in path.lower():
                return (*fault(status, code), headers)
        if wrong := _wrong(request, path, query, self.state.token):
            return (*wrong, {})
        for method, part, answer in self.state.handlers:
            if method == request.command and part in path.lower():
                return answer(path, body)
        below = path[len(f"/subscriptions/{SUBSCRIPTION}") :].strip("/")
        return (*self._route(request.command, path, below, query, body), {})

    def _token(self, request: BaseHTTPRequestHandler, query: dict[str, str]) -> Reply:
        if request.headers.get("X-IDENTITY-HEADER") != _IDENTITY_SECRET:
            return 401, {"statusCode": 401, "message": "the header is wrong"}
        self.credential.scopes.append(query.get("resource", ""))
        expires = str(int(time.time()) + 86400)
        return 200, {
            "access_token": self.state.token,
            "expires_on": expires,
            "token_type": "Bearer",
        }

    def _route(self, method: str, path: str, below: str, query: dict[str, str], body: Any) -> Reply:
        known: list[tuple[str, Callable[[list[str]], Reply]]] = [
            ("", lambda _: (200, self._subscription())),
            ("locations", lambda _: self._locations()),
            ("providers/microsoft.authorization/permissions", lambda _: self._permissions()),
            ("providers/microsoft.compute/skus", lambda _: self._skus(query)),
            (
                "providers/microsoft.compute/locations/*/usages",
                lambda _: (200, {"value": self.state.usages}),
            ),
            ("providers/microsoft.storage/checknameavailability", lambda _: self._name(body)),
            (
                "providers/microsoft.batch/locations/*/checknameavailability",
                lambda _: self._name(body),
            ),
            ("providers/microsoft.batch/locations/*/quotas", self._quota),
            ("providers/microsoft.batch/locations/*/virtualmachineskus", self._batch_sizes),
            (_IMAGE_VERSIONS, self._image_versions),
            ("providers/*", self._provider),
        ]
        given = below.split("/") if below else []
        for pattern, reply in known:
            wanted = pattern.split("/") if pattern else []
            if len(wanted) == len(given) and all(
                want in ("*", have.lower()) for want, have in zip(wanted, given, strict=True)
            ):
                return reply(
                    [have for want, have in zip(wanted, given, strict=True) if want == "*"]
                )
        return self._resource(method, path, query, body)

    def _subscription(self) -> dict[str, Any]:
        return {
            "id": f"/subscriptions/{SUBSCRIPTION}",
            "subscriptionId": SUBSCRIPTION,
            "tenantId": TENANT,
            "displayName": "A subscription of tests",
            "state": self.state.subscription_state,
            "subscriptionPolicies": {"quotaId": self.state.quota_id, "spendingLimit": "Off"},
        }

    def _locations(self) -> Reply:
        return 200, {"value": [{"name": name} for name in sorted(self.state.locations)]}

    def _provider(self, found: list[str]) -> Reply:
        for namespace, state in self.state.providers.items():
            if namespace.lower() == found[0].lower():
                return 200, {"namespace": namespace, "registrationState": state}
        return fault(404, "InvalidResourceNamespace")

    def _permissions(self) -> Reply:
        return 200, {"value": self.state.permissions}

    def _quota(self, found: list[str]) -> Reply:
        return 200, {"accountQuota": self.state.account_quota}

    def _batch_sizes(self, found: list[str]) -> Reply:
        sizes = [size for size in self.state.batch_sizes if size["location"] == found[0].lower()]
        kept = [{k: v for k, v in size.items() if k != "location"} for size in sizes]
        return 200, {"value": kept}

    def _skus(self, query: dict[str, str]) -> Reply:
        _, _, location = query.get("$filter", "").partition("location eq ")
        wanted = location.strip("'")
        return self._page(
            [sku for sku in self.state.skus if not wanted or wanted in sku["locations"]],
            f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/skus",
            query,
        )

    def _name(self, body: Any) -> Reply:
        name = str(body["name"])
        if name in self.state.taken_names:
            sentence = f"The name {name} is already taken."
            return 200, {"nameAvailable": False, "reason": "AlreadyExists", "message": sentence}
        return 200, {"nameAvailable": True}

    def _image_versions(self, found: list[str]) -> Reply:
        location, publisher, offer, sku = found
        versions = self.state.images.get(f"{publisher}/{offer}/{sku}".lower())
        if versions is None:
            return fault(404, "NotFound")
        return 200, [{"name": version, "location": location} for version in versions]

    def _resource(self, method: str, path: str, query: dict[str, str], body: Any) -> Reply:
        by_id = {known.lower(): known for known in self.state.resources}
        known = by_id.get(path.lower(), path)
        if method == "PUT":
            self.state.resources[known] = {"id": path, **body}
            return 200, self.state.resources[known]
        if method == "DELETE":
            self.state.resources.pop(known, None)
            return 200, {}
        if known in self.state.resources:
            return 200, self.state.resources[known]
        return self._list(path, query)

    def _list(self, path: str, query: dict[str, str]) -> Reply:
        kind = path.rsplit("/", 1)[-1].lower()
        if kind == "resources":
            return self._page(self._resources_below(path[: -len("/resources")]), path, query)
        if kind in {"versions", "images", "galleries", "imagetemplates", "runoutputs"}:
            return self._page(self._directly_below(path), path, query)
        if kind == "pools":  # no such resource, unless a test handles the request
            return self._page([], path, query)
        if kind == "batchaccounts":
            part = "/providers/microsoft.batch/batchaccounts/"
            found = [v for k, v in self.state.resources.items() if part in k.lower()]
            return self._page(found, path, query)
        group = "/providers/" not in path
        return fault(404, "ResourceGroupNotFound" if group else "ResourceNotFound")

    def _resources_below(self, path: str) -> list[dict[str, Any]]:
        whole = "/resourcegroups/" not in path.lower()
        start = f"{path}/{'resourceGroups' if whole else 'providers'}/".lower()
        return [body for key, body in self.state.resources.items() if key.lower().startswith(start)]

    def _directly_below(self, path: str) -> list[dict[str, Any]]:
        start = f"{path}/".lower()
        return [
            body
            for key, body in self.state.resources.items()
            if key.lower().startswith(start) and "/" not in key[len(start) :]
        ]

    def _page(self, found: list[dict[str, Any]], path: str, query: dict[str, str]) -> Reply:
        start = int(query.get("$skiptoken", "0"))
        end = start + self.state.page_size
        body: dict[str, Any] = {"value": found[start:end]}
        if end < len(found):
            kept = f"api-version={query['api-version']}&$skiptoken={end}"
            filtered = f"&$filter={query['$filter']}" if "$filter" in query else ""
            body["nextLink"] = f"{self.url}{path}?{kept}{filtered}".replace(" ", "%20")
        return 200, body


def _wrong(
    request: BaseHTTPRequestHandler, path: str, query: dict[str, str], token: str
) -> Reply | None:
    if request.headers.get("Authorization") != f"Bearer {token}":
        return fault(401, "InvalidAuthenticationToken")
    if "api-version" not in query:
        return fault(400, "MissingApiVersionParameter")
    scopes = (f"/subscriptions/{SUBSCRIPTION}", "/providers/microsoft.resourcegraph/")
    if not path.lower().startswith(scopes):
        return fault(404, "SubscriptionNotFound")
    return None


def resource_id(group: str, resource: str) -> str:
    """Return the ID of a resource, or of the group if `resource` is empty."""
    start = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{group}"
    return f"{start}/providers/{resource}" if resource else start


def fault(status: int, code: str) -> Reply:
    """Return an error of Resource Manager (azure-resource-manager/common-types v1)."""
    return status, {"error": {"code": code, "message": f"The stand-in says {code}."}}
