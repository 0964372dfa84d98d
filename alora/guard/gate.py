"""The gate that every request to the guard goes through: bounds on its body, and errors as OpenAI words them."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from alora.data.files import unique
from alora.errors import one_line
from alora.guard import metrics
from alora.guard.reader import EngineDead, GuardRefusal, Overloaded

MOST_BYTES = 1024 * 1024  # of a request's body
MOST_SECONDS = 30.0  # for all of it to arrive


class OthersModel(Exception):
    """A request for a model that is not the guard."""


class OneGate(APIRoute):
    """A route that reads no more than :data:`MOST_BYTES`, and whose every error is one JSON object, as OpenAI's are."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            try:
                await _read_bounded(request)
                _require_unique(request)
                if request.method != "POST":  # a policy that is being replaced stays whole
                    return await handle(request)
                return await _unless_gone(request, handle(request))
            except GuardRefusal as error:
                return _error(error.status, str(error))
            except ClientDisconnect:  # in the middle of its body
                return Response(status_code=499)
            except (EngineDead, Overloaded) as error:
                return _error(503 if isinstance(error, EngineDead) else 429, str(error))
            except OthersModel as error:
                theirs = getattr(request.app.state, "alora_others_decisions", None)
                return _error(404, str(error)) if theirs is None else await theirs(request)
            except RequestValidationError as error:
                return _not_json(request, error) or _error(400, _invalid(error))
            except HTTPException as error:  # FastAPI's own, for a body that no parser takes
                return _error(error.status_code, str(error.detail))
            except (ValidationError, PydanticSerializationError, UnicodeError, RecursionError):
                return _error(400, "a value has the wrong type or is nested too deeply, or a text is not Unicode")

        return bounded


async def _read_bounded(request: Request) -> None:
    """Read the body once, up to the limits; Starlette hands out what lies in ``_body`` from then on."""
    body = bytearray()
    try:
        async with asyncio.timeout(MOST_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BYTES:
                    raise GuardRefusal(f"the request has more than {MOST_BYTES} bytes", 413)
    except TimeoutError:
        raise GuardRefusal(f"the request was not whole after {MOST_SECONDS:g} seconds", 408) from None
    request._body = bytes(body)


def _require_unique(request: Request) -> None:
    """Read a body of JSON once; GuardRefusal for a key that is there twice, of which another reader may take the other.

    What is not JSON is left to FastAPI, which says where.
    """
    try:
        request._json = json.loads(request._body, object_pairs_hook=unique)  # as Starlette keeps what it has read
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        return
    except ValueError as error:
        raise GuardRefusal(f"the body: {one_line(error)}") from None


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


def _error(status: int, message: str) -> JSONResponse:
    message = message.encode("utf-8", "backslashreplace").decode()
    metrics.REFUSED.labels(str(status)).inc()
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status)


def _not_json(request: Request, error: RequestValidationError) -> JSONResponse | None:
    """The refusal of a body that was not read as JSON for its type: curl's -d without a header sends a form."""
    kind = request.headers.get("Content-Type", "")
    media = kind.partition(";")[0].strip().lower()
    read = media == "application/json" or (media.startswith("application/") and media.endswith("+json"))
    if read or any(item["loc"] != ("body",) for item in error.errors()):
        return None
    return _error(415, f"Content-Type is {kind[:80] or 'missing'}; send application/json")


def _invalid(error: RequestValidationError) -> str:
    """What is wrong, without the text that was sent, but for the beginning of a key's."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return f"the body is not JSON at character {first['loc'][-1]}"
    problems = [f"{_place(item['loc'][1:])[:200] or 'body'}: {item['msg'][:200]}" for item in error.errors()[:5]]
    return "; ".join(problems)


def _place(location: Sequence[int | str]) -> str:
    """Where a value lies, without the names of Python's functions that pydantic gives a checked type."""
    return ".".join(str(key)[:80] for key in location if not str(key).startswith("function-"))
