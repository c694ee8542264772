"""The variables and the trusted certificates that a program needs to use a gateway."""

from __future__ import annotations

import contextlib
import os
import re
import ssl
from pathlib import Path

from batch_emulator.gateway.proxy import Gateway
from batch_emulator.gateway.sign_in import IDENTITY_PATH

BUNDLES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
_DIRECT = "127.0.0.1,localhost"  # not the user's, which could bypass the gateway for Azure's names
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
# The bundles of Debian, Fedora, Alpine and openSUSE, where OpenSSL names only a folder.
SYSTEM = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
)


def client_variables(gateway: Gateway, bundle: str) -> dict[str, str]:
    """Return the variables of a program; `bundle` is the path of a file from `bundle_of`."""
    return {
        **dict.fromkeys(("HTTPS_PROXY", "https_proxy"), gateway.proxy_url),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), _DIRECT),
        "NODE_USE_ENV_PROXY": "1",  # Node.js from 22.21 and 24 on reads HTTPS_PROXY only with it
        **dict.fromkeys(BUNDLES, bundle),
        "IDENTITY_ENDPOINT": f"{gateway.url}{IDENTITY_PATH}",
        "IDENTITY_HEADER": gateway.tokens.identity_header,
    }


def bundle_of(gateway: Gateway) -> bytes:
    """Return the certificates that programs on this machine trust, and that of the gateway.

    One file replaces those that the variables of different programs name (`BUNDLES`).
    """
    defaults = (os.environ.get("SSL_CERT_FILE"), ssl.get_default_verify_paths().cafile, *SYSTEM)
    found: list[bytes] = []
    for path in filter(None, (*defaults, _certifi_bundle())):
        found = found or _certificates(path)
    for name in (*BUNDLES, "SSL_CERT_DIR"):
        for path in filter(None, os.environ.get(name, "").split(os.pathsep)):
            found += _certificates(path)
    return b"\n".join(dict.fromkeys([*found, gateway.authority.pem]))


def _certificates(path: str) -> list[bytes]:
    """Return the certificates in a file, or in the files of a folder, without any keys."""
    found: list[bytes] = []
    given = Path(path)
    with contextlib.suppress(OSError):
        for file in sorted(given.iterdir()) if given.is_dir() else [given]:
            with contextlib.suppress(OSError):
                found += _CERTIFICATE.findall(file.read_bytes())
    return found


def _certifi_bundle() -> str | None:
    try:
        import certifi  # noqa: PLC0415  not every installation has it
    except ImportError:
        return None
    return certifi.where()
