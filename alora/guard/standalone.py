"""The guard as an application of its own, without vLLM: ``alora serve serving.scorer=packed``."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import re
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder
from starlette.middleware.base import RequestResponseEndpoint

from alora.config.secrets import ADMIN_KEY, KEY, key_in
from alora.guard.core import GuardCore
from alora.guard.loading import Loader
from alora.guard.routes import router

_PAGE = Path(__file__).with_name("page.html").read_text(encoding="utf-8")


def _only(tag: str) -> str:
    """The one inline ``tag`` of the page, as a content security policy names it: nothing else runs in it."""
    (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", _PAGE, re.DOTALL)
    return f"{tag}-src 'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_POLICY = ("default-src 'none'", _only("script"), _only("style"), "connect-src 'self'", "img-src data:",
           "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'")  # fmt: skip
_HEADERS = {
    "Content-Security-Policy": "; ".join(_POLICY),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def _metrics(request: Request) -> Response:
    write, kind = choose_encoder(request.headers.get("Accept", ""))
    return Response(write(REGISTRY), media_type=kind)


def make_app(guard: GuardCore, loader: Loader | None = None) -> FastAPI:
    """The application; without a ``loader`` its policies stay as they are.

    Where ``$VLLM_API_KEY`` is set, every route asks for it, as vLLM's own server does below ``/v1``; but for the page
    at ``/``, which says nothing and sends the key that is typed into it. ConfigError for a key that no request carries.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if loader is None:
            yield
            return
        await loader.follow()
        watching = asyncio.create_task(loader.watch())
        yield
        watching.cancel()

    app = FastAPI(title="alora guard", lifespan=lifespan)
    app.state.alora_guard, app.state.alora_loader = guard, loader
    key, _ = key_in(KEY), key_in(ADMIN_KEY)

    @app.middleware("http")
    async def require_key(request: Request, call_next: RequestResponseEndpoint) -> Response:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        # Not request.url, which the Host header has a say in.
        if (
            key
            and request.scope["path"] != "/"
            and not (scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), key.encode()))
        ):
            return JSONResponse({"error": {"message": "Unauthorized", "type": "invalid_request_error"}}, 401)
        return await call_next(request)

    @app.get("/", include_in_schema=False)
    def page() -> HTMLResponse:
        return HTMLResponse(_PAGE, headers=_HEADERS)

    app.include_router(router)
    app.add_route("/metrics", _metrics)  # a mount would answer /metrics itself with a redirect
    return app
