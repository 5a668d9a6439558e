"""The gate of the page: nobody without the token passes, and no other site's page can use a browser that has it.

    browser -- /?token=T --> [1] the token is right: a cookie, and on to the address without the token
            -- cookie -----> [2] each request, static files too
            -- otherwise --> [3] 403

The Host header must name this machine. A site whose name was bound to 127.0.0.1 (DNS rebinding) sends its own name.
"""

from __future__ import annotations

import hashlib
import hmac
import html
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from herringbone.system.connections import admit

_OWN_NAMES = ("127.0.0.1", "localhost", "::1")
_HEADERS = {
    # Everything comes from this server, and nothing is inline.
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Gate:
    """Wraps an application: `Gate(app, token)`."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token
        # Cookies of 127.0.0.1 are sent to all its ports, so each server's cookie has a name of its own.
        self.cookie = f"herringbone-{hashlib.sha256(token.encode()).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            # There are no WebSockets here.
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in added if pair[0] not in present)]
            await send(message)

        await self._answer(scope)(scope, receive, guarded)

    def _answer(self, scope: Scope) -> ASGIApp:
        connection = HTTPConnection(scope)
        if not _is_own(Headers(scope=scope).getlist("host")):
            return PlainTextResponse("403: the Host header names another machine\n", status_code=403)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("405: nothing can be changed here\n", status_code=405)
        has_cookie = self._is_token(connection.cookies.get(self.cookie, ""))
        if not has_cookie and not self._is_token(connection.query_params.get("token", "")):
            text = "403: open the address that `herringbone page` printed, with its token\n"
            return PlainTextResponse(text, status_code=403)
        if not admit(scope, "the token's holder"):
            text = "503: browsers hold as many connections as they may; close some tabs\n"
            return PlainTextResponse(text, status_code=503, headers={"connection": "close"})
        if has_cookie and "token" not in connection.query_params:
            return self._app
        return self._without_token(scope)

    def _without_token(self, scope: Scope) -> ASGIApp:
        query = [pair for pair in parse_qsl(scope["query_string"].decode("latin-1")) if pair[0] != "token"]
        # One slash: an address that begins with two would name another machine.
        path = "/" + quote(scope["path"].lstrip("/\\"))
        address = html.escape(path + (f"?{urlencode(query)}" if query else ""))
        # No redirect: after a click in another page, as in a terminal in the browser, a browser sends no strict cookie
        # along a chain of redirects. This page begins a chain of its own.
        response = HTMLResponse(
            '<!doctype html><title>Herringbone</title><link rel="icon" href="/static/icon.svg">'
            f'<meta http-equiv="refresh" content="0; url={address}"><a href="{address}">Go on</a>'
        )
        response.set_cookie(self.cookie, self._token, httponly=True, samesite="strict", path="/")
        return response

    def _is_token(self, text: str) -> bool:
        # Bytes: `compare_digest` refuses texts beyond ASCII.
        return hmac.compare_digest(text.encode("utf-8", "surrogateescape"), self._token.encode())


def _is_own(hosts: list[str]) -> bool:
    if len(hosts) != 1:
        return False
    try:
        return urlsplit(f"//{hosts[0]}").hostname in _OWN_NAMES
    except ValueError:
        return False
