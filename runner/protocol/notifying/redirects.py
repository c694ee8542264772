"""A policy for urllib: which redirects to follow."""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Callable
from typing import IO


class RedirectPolicy(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only if `may_follow` returns True for the new address."""

    def __init__(self, may_follow: Callable[[str], bool]) -> None:
        self._may_follow = may_follow

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Return the request to the new address, or None if it is not allowed."""
        if not self._may_follow(newurl):
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)
