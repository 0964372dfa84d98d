"""The guard as an application of its own, without vLLM: ``alora serve serving.scorer=packed``."""

from __future__ import annotations

import contextlib
import hmac
import os
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import make_asgi_app
from starlette.middleware.base import RequestResponseEndpoint

from alora.config.secrets import KEY
from alora.guard.core import Guard
from alora.guard.loading import Loader
from alora.guard.routes import router


def make_app(guard: Guard, loader: Loader | None = None) -> FastAPI:
    """The application; without a ``loader`` its policies stay as they are.

    Where ``$VLLM_API_KEY`` is set, every route asks for it, as vLLM's own server does below ``/v1``.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if loader is not None:
            await loader.refresh()  # what was put before a restart
        yield

    app = FastAPI(title="alora guard", lifespan=lifespan)
    app.state.alora_guard, app.state.alora_loader = guard, loader
    key = os.environ.get(KEY)

    @app.middleware("http")
    async def require_key(request: Request, call_next: RequestResponseEndpoint) -> Response:
        given = request.headers.get("Authorization", "").encode()
        if key and not hmac.compare_digest(given, f"Bearer {key}".encode()):
            return JSONResponse({"error": {"message": "Unauthorized", "type": "invalid_request_error"}}, 401)
        return await call_next(request)

    app.include_router(router)
    app.mount("/metrics", make_asgi_app())
    return app
