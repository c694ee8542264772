"""Requests to an ASGI application in this process, with the cookies of a browser."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
from starlette.types import ASGIApp


class AsgiClient:
    """Sends requests one after the other. Redirects are answers."""

    def __init__(self, app: ASGIApp, host: str, *, client: str = "127.0.0.1") -> None:
        self._app, self._host, self._client = app, host, client
        self._scheme = "http"
        self.cookies = httpx.Cookies()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request to a path, or to a URL whose path begins with two slashes."""
        return asyncio.run(self._request(method, path, options))

    async def _request(self, method: str, path: str, options: dict[str, Any]) -> httpx.Response:
        url = path if "://" in path else f"{self._scheme}://{self._host}{path}"
        transport = httpx.ASGITransport(self._app, client=(self._client, 5000))
        async with httpx.AsyncClient(
            transport=transport, cookies=self.cookies, trust_env=False
        ) as client:
            answered = await client.request(method, url, **options)
            self.cookies = client.cookies
        return answered

    def get(self, path: str, *, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """Send a GET."""
        return self.request("GET", path, headers=headers)

    def post(
        self,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> httpx.Response:
        """Send a POST with a form, or with other content."""
        return self.request("POST", path, headers=headers, data=data, content=content)
