"""The gate that every request to the guard goes through: a bound on its body, and errors as OpenAI words them."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from alora.errors import AloraError
from alora.guard import exported_metrics as metrics
from alora.guard.reader import EngineDead, GuardRefusal, Overloaded
from alora.received import problems

MOST_BYTES = 1024 * 1024  # of a request's body


class OthersModel(Exception):
    """A request for a model that is not the guard."""


class OneGate(APIRoute):
    """A route that reads no more than :data:`MOST_BYTES`, and whose every error is one JSON object, as OpenAI's are."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            try:
                await _read_bounded(request)
                if request.method != "POST":  # a policy that is being replaced stays whole
                    return await handle(request)
                return await _unless_gone(request, handle(request))
            except GuardRefusal as error:
                return _error(error.status, str(error))
            except EngineDead as error:
                return _error(503, str(error))
            except Overloaded as error:
                return _error(429, str(error), {"Retry-After": str(error.wait_s)})
            except AloraError as error:  # what cannot be rendered; a bundle that is not served
                return _error(400 if request.method == "POST" else 409, str(error))
            except ClientDisconnect:  # in the middle of its body
                return Response(status_code=499)
            except OthersModel as error:
                theirs = getattr(request.app.state, "alora_others_decisions", None)
                return _error(404, str(error)) if theirs is None else await theirs(request)
            except RequestValidationError as error:
                return _error(400, _invalid(error))
            except HTTPException as error:  # FastAPI's own, for a body that no parser takes
                return _error(error.status_code, str(error.detail))
            except (ValidationError, PydanticSerializationError, UnicodeError, RecursionError):
                return _error(400, "a value has the wrong type or is nested too deeply, or a text is not Unicode")

        return bounded


async def _read_bounded(request: Request) -> None:
    """Read the body once, up to the limit; Starlette hands out what lies in ``_body`` from then on."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise GuardRefusal(f"the request has more than {MOST_BYTES} bytes", 413)
    request._body = bytes(body)
    kind = request.headers.get("Content-Type", "")
    media = kind.partition(";")[0].strip().lower()
    if body and not (media.startswith("application/") and media.endswith(("/json", "+json"))):  # curl -d sends a form
        raise GuardRefusal(f"Content-Type is {kind[:80] or 'missing'}; send application/json", 415)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """What ``work`` answers; it is cancelled when its client closes the connection."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.create_task(work), asyncio.create_task(gone())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return Response(status_code=499)  # nobody reads it
        return working.result()
    finally:
        working.cancel()
        watching.cancel()


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    message = message.encode("utf-8", "backslashreplace").decode()
    metrics.REFUSED.labels(str(status)).inc()
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status, headers)


def _invalid(error: RequestValidationError) -> str:
    """What is wrong, without the text that was sent, but for the beginning of a key's."""
    found = error.errors()
    if found[0]["type"] == "json_invalid":
        return f"the body is not JSON at character {found[0]['loc'][-1]}"
    return problems([{**item, "loc": item["loc"][1:]} for item in found])
