"""Requests to storage are signed in with a token, of the tenant that storage names."""

from __future__ import annotations

import re
from typing import Any

from azure.core.credentials import TokenCredential
from azure.core.exceptions import ServiceRequestError
from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.core.pipeline.policies import HTTPPolicy

from runner.azure.auth.credentials import STORAGE_SCOPE

_TENANT = re.compile(r"authorization_uri=\"?https://[^/\s]+/([^/\s\",]+)")


class StorageSignIn(HTTPPolicy[Any, Any]):
    """For many threads at once: `credential` keeps its tokens (sign_in.py), nothing is kept here.

    Somebody signed in elsewhere gets a 401 that names the account's tenant (REST docs, "Authorize
    with Microsoft Entra ID", "Bearer challenge"); the SDK's own clients follow it too.
    """

    def __init__(self, credential: TokenCredential) -> None:
        super().__init__()
        self._credential = credential
        self._tenant: dict[str, Any] = {}

    def send(self, request: PipelineRequest[Any]) -> PipelineResponse[Any, Any]:
        """Send with a token; once more where another tenant is asked for."""
        response = self._send(request, self._tenant)
        if response.http_response.status_code == 401:
            named = _TENANT.search(response.http_response.headers.get("WWW-Authenticate", ""))
            if named:
                response.http_response.close()
                self._tenant = {"tenant_id": named[1]}
                return self._send(request, self._tenant)
        return response

    def _send(
        self, request: PipelineRequest[Any], tenant: dict[str, Any]
    ) -> PipelineResponse[Any, Any]:
        if not request.http_request.url.startswith("https://"):
            raise ServiceRequestError("a token is not sent without TLS")
        token = self._credential.get_token(STORAGE_SCOPE, **tenant).token
        request.http_request.headers["Authorization"] = f"Bearer {token}"
        return self.next.send(request)
