"""Redirects are followed only to where the first request could have gone."""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Callable
from typing import IO


class Redirects(urllib.request.HTTPRedirectHandler):
    """Asks `may_follow` about each address; after a no the redirect itself is the answer."""

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
        """As the library does, where it may."""
        if not self._may_follow(newurl):
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)
