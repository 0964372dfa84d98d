"""The guard as an application of its own, without vLLM: ``alora serve serving.scorer=packed``."""

from __future__ import annotations

import hmac
import os

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.middleware.base import RequestResponseEndpoint

from alora.config.secrets import KEY
from alora.guard.core import Guard
from alora.guard.routes import router


def make_app(guard: Guard) -> FastAPI:
    """The application. Where ``$VLLM_API_KEY`` is set, every route asks for it, as vLLM's own server does."""
    app = FastAPI(title="alora guard")
    app.state.alora_guard = guard
    key = os.environ.get(KEY)

    @app.middleware("http")
    async def require_key(request: Request, call_next: RequestResponseEndpoint) -> Response:
        given = request.headers.get("Authorization", "").encode()
        if key and not hmac.compare_digest(given, f"Bearer {key}".encode()):
            return JSONResponse({"error": {"message": "Unauthorized", "type": "invalid_request_error"}}, 401)
        return await call_next(request)

    app.include_router(router)
    return app
