"""What a program needs to reach a gateway: variables, and the authorities that it trusts."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from batch_emulator.gateway.proxy import Gateway
from batch_emulator.gateway.sign_in import IDENTITY_PATH

_BUNDLES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
_DIRECT = "127.0.0.1,localhost"  # not the user's: Azure's names must never lead to Azure
# Where OpenSSL names a folder only: Debian, Fedora, Alpine.
_SYSTEM = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)


def client_variables(gateway: Gateway, bundle: str) -> dict[str, str]:
    """Return the variables of a program; `bundle` is the path of what `bundle_of` returns."""
    return {
        **dict.fromkeys(("HTTPS_PROXY", "https_proxy"), gateway.proxy_url),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), _DIRECT),
        **dict.fromkeys(_BUNDLES, bundle),
        "IDENTITY_ENDPOINT": f"{gateway.url}{IDENTITY_PATH}",
        "IDENTITY_HEADER": gateway.tokens.identity_header,
    }


def bundle_of(gateway: Gateway) -> bytes:
    """Return the certificates of this machine's authorities and of the gateway's."""
    named = (os.environ.get("SSL_CERT_FILE"), ssl.get_default_verify_paths().cafile)
    for name in filter(None, (*named, *_SYSTEM)):
        if Path(name).is_file():
            return Path(name).read_bytes() + b"\n" + gateway.authority.pem
    return gateway.authority.pem
