"""One environment gives the same sign-in to our clients and to azure-native."""

from __future__ import annotations

import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from azure.core.exceptions import ClientAuthenticationError

from runner.azure.auth.sign_in import (
    _make_assertion,  # pyright: ignore[reportPrivateUsage]
    describe_sign_in,
    make_credential,
    provider_variables,
)
from runner.protocol.azure.clouds import PUBLIC
from tests.loopback import QuietServer

_ARM = {"ARM_CLIENT_ID": "c", "ARM_TENANT_ID": "00000000-0000-0000-0000-000000000001"}
_SDK = {"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t"}
_OURS = {"ARM_CLIENT_ID": "c", "ARM_TENANT_ID": "t"}


@pytest.mark.parametrize(
    ("env", "kind", "words"),
    [
        ({}, "DefaultAzureCredential", "az login or managed identity"),
        ({**_ARM, "ARM_CLIENT_SECRET": "s"}, "ClientSecretCredential", "service principal"),
        ({**_ARM, "ARM_USE_OIDC": "1"}, "ClientAssertionCredential", "workload identity"),
        ({"ARM_USE_MSI": "true"}, "ManagedIdentityCredential", "managed identity"),
        ({"ARM_USE_MSI": "false"}, "DefaultAzureCredential", "az login or managed identity"),
        ({**_SDK, "AZURE_CLIENT_SECRET": "s"}, "DefaultAzureCredential", "service principal"),
        (
            {**_SDK, "AZURE_FEDERATED_TOKEN_FILE": "/f"},
            "DefaultAzureCredential",
            "workload identity",
        ),
        (
            {
                **_SDK,
                "AZURE_CLIENT_CERTIFICATE_PATH": "/c",
                "AZURE_FEDERATED_TOKEN_FILE": "/f",
            },
            "DefaultAzureCredential",
            "service principal",
        ),
    ],
)
def test_environment_chooses_the_credential(env: dict[str, str], kind: str, words: str) -> None:
    assert type(make_credential(env)).__name__ == kind
    assert describe_sign_in(env) == words


def test_order_of_the_credentials_is_that_of_azure_native(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    class CertificateCredential:
        def __init__(self, _tenant: str, _client: str, path: str, **_options: object) -> None:
            read.append(path)

    monkeypatch.setattr("azure.identity.CertificateCredential", CertificateCredential)
    env = {
        **_ARM,
        "ARM_USE_DEFAULT_AZURE_CREDENTIAL": "true",
        "ARM_CLIENT_CERTIFICATE_PATH": "/c",
        "ARM_CLIENT_SECRET": "s",
        "ARM_USE_OIDC": "true",
        "ARM_USE_MSI": "true",
    }
    found: list[str] = []
    for name in [*list(env)[len(_ARM) :], ""]:
        found.append(type(make_credential(env)).__name__)
        env.pop(name, None)
    assert found == [
        "DefaultAzureCredential",
        "CertificateCredential",
        "ClientSecretCredential",
        "ClientAssertionCredential",
        "ManagedIdentityCredential",
        "DefaultAzureCredential",
    ]
    assert read == ["/c"]


@pytest.mark.parametrize(
    ("env", "variables"),
    [
        ({**_ARM, "ARM_CLIENT_SECRET": "s"}, {}),
        ({"ARM_USE_MSI": "true"}, {"ARM_USE_MSI": "true"}),
        ({"ARM_USE_MSI": "1"}, {"ARM_USE_MSI": "true"}),
        (
            {"ARM_USE_DEFAULT_AZURE_CREDENTIAL": "True", **_SDK, "AZURE_CLIENT_SECRET": "s"},
            {"ARM_USE_DEFAULT_AZURE_CREDENTIAL": "true"},
        ),
        ({**_ARM, "ARM_USE_OIDC": "1", "ARM_OIDC_TOKEN": "t"}, {"ARM_USE_OIDC": "true"}),
        (
            {**_ARM, "ARM_USE_OIDC": "true", "AZURE_FEDERATED_TOKEN_FILE": "/f"},
            {"ARM_USE_OIDC": "true", "ARM_OIDC_TOKEN_FILE_PATH": "/f"},
        ),
        (
            {
                **_ARM,
                "ARM_USE_OIDC": "true",
                "ARM_OIDC_REQUEST_URL": "https://ci",
                "ARM_OIDC_REQUEST_TOKEN": "t",
                "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "of another",
            },
            {
                "ARM_USE_OIDC": "true",
                "ACTIONS_ID_TOKEN_REQUEST_URL": "https://ci",
                "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "t",
            },
        ),
        (
            {**_SDK, "ARM_USE_OIDC": "true", "AZURE_FEDERATED_TOKEN_FILE": "/f"},
            {**_OURS, "ARM_USE_OIDC": "true", "ARM_OIDC_TOKEN_FILE_PATH": "/f"},
        ),
        (
            {**_SDK, "ARM_USE_OIDC": "false", "AZURE_CLIENT_SECRET": "s"},
            {**_OURS, "ARM_CLIENT_SECRET": "s"},
        ),
        ({**_SDK, "AZURE_CLIENT_SECRET": "s"}, {**_OURS, "ARM_CLIENT_SECRET": "s"}),
        (  # client and tenant alone choose nothing, so the clients use the AZURE_ variables
            {**_SDK, "AZURE_CLIENT_SECRET": "s", **_ARM},
            {**_OURS, "ARM_CLIENT_SECRET": "s"},
        ),
        (
            {
                **_SDK,
                "AZURE_CLIENT_CERTIFICATE_PATH": "/c",
                "AZURE_FEDERATED_TOKEN_FILE": "/f",
            },
            {**_OURS, "ARM_CLIENT_CERTIFICATE_PATH": "/c"},
        ),
        (
            {**_SDK, "AZURE_CLIENT_CERTIFICATE_PATH": "/c"},
            {**_OURS, "ARM_CLIENT_CERTIFICATE_PATH": "/c"},
        ),
        (
            {
                **_SDK,
                "AZURE_CLIENT_CERTIFICATE_PATH": "/c",
                "AZURE_CLIENT_CERTIFICATE_PASSWORD": "p",
            },
            {
                **_OURS,
                "ARM_CLIENT_CERTIFICATE_PATH": "/c",
                "ARM_CLIENT_CERTIFICATE_PASSWORD": "p",
            },
        ),
        (
            {**_SDK, "AZURE_FEDERATED_TOKEN_FILE": "/f"},
            {**_OURS, "ARM_USE_OIDC": "true", "ARM_OIDC_TOKEN_FILE_PATH": "/f"},
        ),
        (
            {"AZURE_TOKEN_CREDENTIALS": "ManagedIdentityCredential", "AZURE_CLIENT_ID": "c"},
            {"ARM_USE_MSI": "true", "ARM_CLIENT_ID": "c"},
        ),
        ({"AZURE_TOKEN_CREDENTIALS": "AzureCliCredential"}, {}),
        ({}, {"ARM_USE_MSI": "true"}),  # `az` is not on PATH
    ],
)
def test_provider_gets_the_same_sign_in(
    tmp_path: Path, env: dict[str, str], variables: dict[str, str]
) -> None:
    assert provider_variables({"PATH": str(tmp_path), **env}) == variables


def test_provider_uses_az_if_it_is_installed(tmp_path: Path) -> None:
    az = tmp_path / "az"
    az.touch(mode=0o755)
    assert provider_variables({"PATH": str(tmp_path)}) == {}


def test_token_of_a_workload_is_given_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    assert _make_assertion({"ARM_OIDC_TOKEN": "given"}, PUBLIC)() == "given"
    assert _make_assertion({"ARM_OIDC_TOKEN_FILE_PATH": str(file)}, PUBLIC)() == "from-file"
    with pytest.raises(ClientAuthenticationError, match="id-token: write"):
        _make_assertion({}, PUBLIC)()


class _Ci(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        signed_in = self.headers["Authorization"] == "Bearer of-the-job"
        self.send_response(200 if signed_in else 401)
        self.end_headers()
        self.wfile.write(f'{{"value": "token for {self.path}"}}'.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        del format, args


@pytest.fixture
def ci(monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """Yield the address from which jobs of a CI system get tokens."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with QuietServer(("127.0.0.1", 0), _Ci) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/token?api=2"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("prefix", ["ARM_OIDC_REQUEST", "ACTIONS_ID_TOKEN_REQUEST"])
def test_token_of_a_workload_is_requested_from_the_ci_system(ci: str, prefix: str) -> None:
    asked = {f"{prefix}_URL": ci, f"{prefix}_TOKEN": "of-the-job"}
    token = _make_assertion(asked, PUBLIC)()
    assert token == "token for /token?api=2&audience=api://AzureADTokenExchange"
    other = _make_assertion(
        {**asked, "ARM_OIDC_AUDIENCE": "api://AzureADTokenExchangeUSGov"}, PUBLIC
    )()
    assert other == "token for /token?api=2&audience=api://AzureADTokenExchangeUSGov"
    with pytest.raises(ClientAuthenticationError, match="gave no token"):
        _make_assertion({**asked, f"{prefix}_TOKEN": "of another"}, PUBLIC)()
