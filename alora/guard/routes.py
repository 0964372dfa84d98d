"""The guard's HTTP routes, for whichever application holds a :class:`GuardCore` in ``app.state.alora_guard``."""

import asyncio
import hmac
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.routing import APIRoute

from alora.config.secrets import ADMIN_KEY, key_in
from alora.guard.core import GuardCore
from alora.guard.gate import OneGate, OthersModel
from alora.guard.loading import Loader
from alora.guard.reader import EngineDead, GuardRefusal, Overloaded, Served
from alora.wire import litellm_api, openai_api
from alora.wire.native import (
    Action,
    GuardRequest,
    GuardResponse,
    Health,
    Options,
    PolicyCard,
    PolicyList,
    PolicyVerdict,
    PutPolicy,
)

_Item = PolicyVerdict | GuardResponse
_AT_A_TIME = 8  # texts of one request
router = APIRouter(route_class=OneGate, tags=["guard"])


def guard_of(app: FastAPI) -> GuardCore:
    """The application's guard; 503 while there is none."""
    guard = getattr(app.state, "alora_guard", None)
    if guard is None:
        raise GuardRefusal(getattr(app.state, "alora_guard_refusal", None) or "the guard is not ready", 503)
    if (loader := getattr(app.state, "alora_loader", None)) is not None:
        loader.poll()
        if loader.refusal is not None:
            raise GuardRefusal(loader.refusal, 503)
    return guard


def loader_of(request: Request) -> Loader:
    """What adds and removes policies, for whoever holds ``$ALORA_ADMIN_KEY``; 403 for everyone while it is not set."""
    key, given = key_in(ADMIN_KEY), request.headers.get("X-Alora-Admin-Key", "")
    if not key or not hmac.compare_digest(given.encode(), key.encode()):
        raise GuardRefusal(f"policies are changed with the header X-Alora-Admin-Key, which holds ${ADMIN_KEY}", 403)
    guard_of(request.app)
    return request.app.state.alora_loader


@router.post("/v1/guard", response_model=GuardResponse)
async def guard(body: GuardRequest, request: Request) -> Response:
    """Every policy's verdict on one conversation, computed behind one shared prefix."""
    judge = guard_of(request.app)
    if not body.stream:
        answer = await judge.answer(body.of(request.headers))
        # FastAPI would validate and dump an answer that its own model has made.
        return Response(answer.model_dump_json(), media_type="application/json")
    items = judge.judge(body.of(request.headers))
    first = await anext(items)  # a refusal has its status only before the stream begins
    return StreamingResponse(_events(first, items), media_type="text/event-stream")


@router.post("/v1/moderations")
async def moderations(body: openai_api.ModerationRequest, request: Request) -> openai_api.ModerationResponse:
    """OpenAI's moderations endpoint: each policy is a category."""
    answers = await _each(body.conversations, body, request)
    results = [openai_api.ModerationResult.of(answer) for answer in answers]
    return openai_api.ModerationResponse(model=body.model, results=results)


async def _model_of(request: Request) -> str | None:
    """The model that a request names; whatever else is wrong with it is refused where it is parsed."""
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        return None
    model = body.get("model") if isinstance(body, dict) else None
    return None if model is None else str(model)


def _require_no_adapter(app: FastAPI, model: str) -> None:
    """An adapter answers its own policy alone: to another question it would lend its name to an answer that is none."""
    guard, models = getattr(app.state, "alora_guard", None), getattr(app.state, "openai_serving_models", None)
    served = () if guard is None else guard.known
    if model in {item.name for item in served} or (guard is None and model in getattr(models, "lora_requests", ())):
        policy = model.partition("@")[0]
        raise GuardRefusal(
            f"model is the adapter {model[:100]!r}, which answers its own policy alone; ask POST /v1/guard with "
            f'"policies": ["{policy[:80]}"], or POST /v1/decisions with "model": "{openai_api.MODEL}" and a question '
            f'with "instructions": "policy:{policy[:80]}"'
        )


async def _require_own_model(request: Request) -> None:
    if (model := await _model_of(request)) not in (None, openai_api.MODEL):
        _require_no_adapter(request.app, model)
        raise OthersModel(f"model is {model[:100]!r}; the guard's is {openai_api.MODEL!r}")


def _policy_of(question: openai_api.Predicate | openai_api.Choice, number: int, served: Sequence[Served]) -> Served:
    """The policy that a question asks; GuardRefusal for one that no served policy answers, or several do.

    An adapter answers the policy that it was trained on, and no other question. So a question's instructions are that
    policy's rule as the bundle has it, or ``policy:ID``.
    """
    names = [(item, (f"policy:{item.policy.id}", f"policy:{item.name}", item.policy.rule)) for item in served]
    fitting = [item for item, texts in names if question.text in texts]
    if question.name in {item.policy.id for item in served} or len(fitting) > 1:
        fitting = [item for item in fitting if item.policy.id == question.name]
    if len(fitting) != 1:
        have = ", ".join(item.policy.id for item in served)[:500]
        which = number if question.name is None else repr(question.name[:100])
        raise GuardRefusal(
            f"question {which} asks what no policy here was trained on, and any answer would be to another question; "
            f"set instructions to policy:ID, of {have}, or to that policy's rule, word for word"
        )
    policy = fitting[0].policy
    if isinstance(question, openai_api.Choice) and question.labels(policy.labels) is None:
        own = ", ".join(policy.labels)
        raise GuardRefusal(f"the choices about {policy.id} must be its labels ({own}), or true and false")
    return fitting[0]


@router.post("/v1/decisions", dependencies=[Depends(_require_own_model)])
async def decisions(body: openai_api.DecisionRequest, request: Request) -> openai_api.DecisionResponse:
    """OpenAI's decisions endpoint: each question asks a policy."""
    judge = guard_of(request.app)
    known = list({item.policy.id: item for item in reversed(judge.known)}.values())  # what is reported goes first
    policies = [_policy_of(question, number, known).policy.id for number, question in enumerate(body.questions, 1)]
    asked = GuardRequest(
        messages=[{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input,
        policies=list(dict.fromkeys(policies)),
        deadline_ms=body.deadline_ms,
        cache_salt=body.prompt_cache_key,
        metadata=body.metadata,
    )
    return openai_api.DecisionResponse.of(body, policies, await judge.answer(asked.of(request.headers)))


@router.post("/v1/guard/beta/litellm_basic_guardrail_api")
async def litellm_guardrail(
    body: litellm_api.GenericGuardrailRequest, request: Request
) -> litellm_api.GenericGuardrailResponse:
    """LiteLLM's ``generic_guardrail_api``."""
    if body.images:
        raise GuardRefusal("images are given, and the guard reads text; it judges no half of a conversation")
    conversations = body.conversations
    if len(conversations) > openai_api.MOST_TEXTS:
        raise GuardRefusal(f"the response has {len(conversations)} choices; {openai_api.MOST_TEXTS} is the most", 413)
    answers = await _each(conversations, body.additional_provider_specific_params, request)
    return litellm_api.GenericGuardrailResponse.of(answers)


@router.get("/v1/guard/policies")
async def policies(request: Request) -> PolicyList:
    """What is served, with the weights' digests."""
    guard = guard_of(request.app)
    return PolicyList(policies=tuple(_card(item, guard.drift.psi(item)) for item in guard.known))


@router.put("/v1/guard/policies/{policy}")
async def put_policy(policy: str, body: PutPolicy, request: Request) -> PolicyCard:
    """Certify a bundle on the running engine, and serve it from the next request on; 409 keeps what was served."""
    tags = None if body.tags is None else tuple(body.tags)
    return _card(await loader_of(request).put(policy, body.bundle, body.action, tags))


@router.delete("/v1/guard/policies/{policy}")
async def delete_policy(policy: str, request: Request, action: Action | None = None) -> PolicyList:
    """Stop serving a policy, or its version of that action alone (``?action=log``); returns what is left."""
    await loader_of(request).delete(policy, action)
    return await policies(request)


@router.get("/v1/guard/health", response_model_exclude_none=True)
async def health(request: Request) -> Health:
    """200 when the guard can answer, 503 with the reason when not."""
    guard, loader = guard_of(request.app), getattr(request.app.state, "alora_loader", None)
    guard.require_running()
    trouble = guard.trouble() if loader is None else await loader.look()
    return Health(status="ready", policies=len(guard.known), trouble=trouble)


async def _events(first: _Item, rest: AsyncGenerator[_Item, None]) -> AsyncIterator[str]:
    try:
        yield _event(first)
        async for item in rest:
            yield _event(item)
    except (EngineDead, Overloaded) as error:
        yield f'event: error\ndata: {{"error": {{"message": "{type(error).__name__}"}}}}\n\n'
    finally:
        await rest.aclose()  # a client that goes away cancels what still runs


def _event(item: _Item) -> str:
    kind = "verdict" if isinstance(item, PolicyVerdict) else "answer"
    return f"event: {kind}\ndata: {item.model_dump_json()}\n\n"


def _card(item: Served, psi: float | None = None) -> PolicyCard:
    return PolicyCard(
        policy=item.policy.id,
        title=item.policy.title,
        rule=item.policy.rule,
        adapter=item.name,
        digest=item.digest,
        action=item.action,
        tags=item.tags,
        labels=item.policy.labels,
        threshold=item.calibration.threshold,
        psi=psi,
    )


async def _each(
    conversations: Sequence[list[dict[str, Any]]], options: Options, request: Request
) -> list[GuardResponse]:
    """The answers, a few at a time, so that many texts leave room for others; the first that fails ends the others."""
    judge = guard_of(request.app)
    turn = asyncio.Semaphore(min(_AT_A_TIME, judge.admission.conversations))

    async def answer(messages: list[dict[str, Any]]) -> GuardResponse:
        async with turn:
            return await judge.answer(GuardRequest(messages=messages, **options.options).of(request.headers))

    tasks = [asyncio.ensure_future(answer(messages)) for messages in conversations]
    try:
        return await asyncio.gather(*tasks)
    finally:  # the engine aborts a request that nobody waits for
        for task in tasks:
            task.cancel()


def mount(app: FastAPI) -> None:
    """The guard's routes in ``app``. vLLM's own ``/v1/systemone`` (0.32) and ``/v1/decisions`` (0.33) answer for other
    models only."""
    own = ("/v1/systemone", "/v1/decisions")
    posts = [route for route in app.routes if isinstance(route, APIRoute) and "POST" in route.methods]
    theirs = {route.path: route.get_route_handler() for route in posts if route.path in own}
    app.state.alora_others_decisions = theirs.get("/v1/decisions")
    app.include_router(router)
    if (systemone := theirs.get("/v1/systemone")) is None:
        return

    @app.post("/v1/systemone", include_in_schema=False)
    async def of_no_adapter(request: Request) -> Response:
        try:
            _require_no_adapter(request.app, await _model_of(request) or "")
        except GuardRefusal as error:
            return JSONResponse({"error": {"message": str(error), "type": "invalid_request_error", "code": 400}}, 400)
        return await systemone(request)
