# type: ignore - its imports are those of an environment of its own
"""Hooks of schemathesis, which sign requests and use existing IDs in most of them."""

from __future__ import annotations

import atexit
import base64
import collections
import hashlib
import hmac
import json
import os
import pathlib
from email.utils import formatdate
from urllib.parse import parse_qsl, urlsplit

import requests
import schemathesis

ACCOUNT, KEY = os.environ["AZURE_BATCH_ACCOUNT"], os.environ["AZURE_BATCH_ACCESS_KEY"]
EXISTING = {
    name.partition("=")[0]: name.partition("=")[2] for name in os.environ["EXISTING"].split()
}
SHARE = int(os.environ["FUZZ_SHARE"])
VERSION = "2024-02-01.19.0"
SIGNED = (
    "content-encoding", "content-language", "content-length", "content-md5", "content-type", "date",
    "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range",
)  # fmt: skip


class SharedKey(requests.auth.AuthBase):
    """Signs requests as the documentation of the service specifies."""

    def __call__(self, request):
        url = urlsplit(request.url)
        headers = {name.lower(): text(value) for name, value in request.headers.items()}
        headers["ocp-date"] = formatdate(usegmt=True)
        if request.method in ("GET", "HEAD") and headers.get("content-length") == "0":
            headers["content-length"] = ""
        ocp = "".join(
            f"{n}:{v}\n" for n, v in sorted(headers.items()) if n.startswith("ocp-") and v
        )
        query = {}
        for name, value in parse_qsl(url.query, keep_blank_values=True):
            query.setdefault(name, value)
        tail = "".join(f"\n{name}:{query[name]}" for name in sorted(query) if query[name])
        standard = [headers.get(name, "") for name in SIGNED]
        signed = "\n".join([request.method, *standard, f"{ocp}/{ACCOUNT}{url.path}{tail}"])
        digest = hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)
        request.headers["ocp-date"] = headers["ocp-date"]
        request.headers["Authorization"] = (
            f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        )
        return request


def text(value):
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


schemathesis.auth.set_from_requests(SharedKey())


def often(value):
    """Return True three times in four, derived from the generated values and so from the seed."""
    return hashlib.sha256(repr(value).encode()).digest()[0] % 4 != 0


@schemathesis.hook
def filter_case(context, case):
    """Keep one case in SHARE of each route, and its first five."""
    made = MADE[case.operation.label]
    MADE[case.operation.label] += 1
    return made < 5 or made % SHARE == 0


@schemathesis.hook
def before_call(context, case, kwargs):
    """Replace generated ids by existing ones three times in four, in every phase."""
    query = dict(case.query or {})
    if often(query):
        case.query = {**query, "api-version": VERSION}
    if case.path_parameters and case.method.upper() != "DELETE":
        case.path_parameters = {
            name: EXISTING[name] if name in EXISTING and often(value) else value
            for name, value in case.path_parameters.items()
        }


@schemathesis.hook
def map_headers(context, headers):
    """Send the current date: requests with another date fail the signature check."""
    return {n: v for n, v in dict(headers or {}).items() if n.lower() not in ("ocp-date", "date")}


@schemathesis.check
def no_server_error(context, response, case):
    """Accept no status of 500 and above except 501 with the name of the operation."""
    if response.status_code != 501:
        assert response.status_code < 500, response.text
    elif case.method.upper() != "HEAD":
        assert response.json()["code"] == "NotImplemented", response.text


COUNTS = collections.Counter()
ROUTES = collections.Counter()
MADE = collections.Counter()


@schemathesis.hook
def after_call(context, case, response):
    COUNTS[response.status_code] += 1
    ROUTES[case.operation.label] += 1


@atexit.register
def tell():
    """Print counts, which show the test that requests passed the signature check."""
    pathlib.Path(os.environ["FUZZ_COUNTS"]).write_text(
        json.dumps({"statuses": COUNTS, "routes": ROUTES})
    )
