"""The guard's HTTP routes, for whichever application holds a :class:`GuardCore` in ``app.state.alora_guard``."""

import asyncio
import hmac
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from fastapi.routing import APIRoute

from alora.config.secrets import ADMIN_KEY, key_in
from alora.errors import AloraError
from alora.guard import decisions as openai_decisions
from alora.guard import wire
from alora.guard.core import GuardCore
from alora.guard.decisions import DecisionRequest, DecisionResponse
from alora.guard.gate import OneGate, OthersModel
from alora.guard.loading import Loader
from alora.guard.reader import EngineDead, GuardRefusal, Overloaded, Served

# Categories that OpenAI's SDK (3.51) reads under another name than its attribute's. A policy may have that id: the SDK
# would give None for it, which an app takes for "not flagged".
_OPENAIS = {
    "harassment_threatening": "harassment/threatening",
    "hate_threatening": "hate/threatening",
    "illicit_violent": "illicit/violent",
    "self_harm": "self-harm",
    "self_harm_instructions": "self-harm/instructions",
    "self_harm_intent": "self-harm/intent",
    "sexual_minors": "sexual/minors",
    "violence_graphic": "violence/graphic",
}

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


@router.post("/v1/guard", response_model=wire.GuardResponse)
async def guard(body: wire.GuardRequest, request: Request) -> Response | wire.GuardResponse:
    """Every policy's verdict on one conversation, computed behind one shared prefix."""
    judge = guard_of(request.app)
    if not body.stream:
        return await judge.answer(body.of(request.headers))
    items = judge.judge(body.of(request.headers))
    first = await anext(items)  # a refusal has its status only before the stream begins
    return StreamingResponse(_events(first, items), media_type="text/event-stream")


@router.post("/v1/moderations")
async def moderations(body: wire.ModerationRequest, request: Request) -> wire.ModerationResponse:
    """OpenAI's moderations endpoint: each policy is a category."""
    judge = guard_of(request.app)
    if (body.input is None) == (body.messages is None):
        raise GuardRefusal("give input (text or a list of texts) or messages (one conversation), not both")
    one = isinstance(body.input, str) or (bool(body.input) and isinstance(body.input[0], dict))  # or its parts
    texts = [body.input] if one else body.input
    talks = [body.messages] if texts is None else [[{"role": "user", "content": text}] for text in texts]
    if not talks:
        raise GuardRefusal("input is an empty list; give at least one text")
    asked = [wire.GuardRequest(messages=talk or [], **body.options).of(request.headers) for talk in talks]
    answers = await _together(judge.answer(one) for one in asked)
    return wire.ModerationResponse(
        id=f"modr-{secrets.token_hex(12)}", model=body.model, results=[_moderated(answer) for answer in answers]
    )


async def _require_own_model(request: Request) -> None:
    try:
        body = await request.json()
    except (ValueError, RecursionError):  # refused with all else that is wrong with it
        return
    if isinstance(body, dict) and body.get("model") not in (None, openai_decisions.MODEL):
        raise OthersModel(f"model is {str(body['model'])[:100]!r}; the guard's is {openai_decisions.MODEL!r}")


@router.post("/v1/decisions", dependencies=[Depends(_require_own_model)])
async def decisions(body: DecisionRequest, request: Request) -> DecisionResponse:
    """OpenAI's decisions endpoint: each question asks a policy."""
    judge = guard_of(request.app)
    asked = [
        openai_decisions.policy_of(question, number, judge.served) for number, question in enumerate(body.questions, 1)
    ]
    answer = await judge.answer(
        wire.GuardRequest(
            messages=openai_decisions.messages_of(body.input),
            policies=list(dict.fromkeys(item.policy.id for item in asked)),
            deadline_ms=body.deadline_ms,
            cache_salt=body.prompt_cache_key,
        ).of(request.headers)
    )
    return openai_decisions.decided(body, asked, answer)


@router.post("/v1/guard/beta/litellm_basic_guardrail_api")
async def litellm_guardrail(body: wire.GenericGuardrailRequest, request: Request) -> wire.GenericGuardrailResponse:
    """LiteLLM's ``generic_guardrail_api``, which sends the whole conversation before and after a model's answer."""
    judge = guard_of(request.app)
    if body.images:
        raise GuardRefusal("images are given, and the guard reads text; it judges no half of a conversation")
    asked = wire.GuardRequest(messages=body.conversation, **body.additional_provider_specific_params.options)
    answer = await judge.answer(asked.of(request.headers))
    if answer.action == "allow":
        return wire.GenericGuardrailResponse(action="NONE")
    flagged = ", ".join(verdict.policy for verdict in answer.verdicts if verdict.flagged)
    return wire.GenericGuardrailResponse(action="BLOCKED", blocked_reason=f"policy: {flagged}")


@router.get("/v1/guard/policies")
async def policies(request: Request) -> wire.PolicyList:
    """What is served, with the weights' digests."""
    guard = guard_of(request.app)
    return wire.PolicyList(policies=[_card(item, guard.psi(item)) for item in (*guard.served, *guard.shadows)])


@router.put("/v1/guard/policies/{policy}")
async def put_policy(policy: str, body: wire.PutPolicy, request: Request) -> wire.PolicyCard:
    """Certify a bundle on the running engine, and serve it from the next request on; 409 keeps what was served."""
    loader = loader_of(request)
    try:
        return _card(await loader.put(policy, body.bundle, body.stage, None if body.tags is None else tuple(body.tags)))
    except (EngineDead, Overloaded):
        raise
    except AloraError as error:
        raise GuardRefusal(str(error), 409) from error


@router.delete("/v1/guard/policies/{policy}")
async def delete_policy(policy: str, request: Request, stage: wire.Stage | None = None) -> wire.PolicyList:
    """Stop serving a policy, or its shadow alone (``?stage=shadow``); returns what is left."""
    loader = loader_of(request)
    try:
        await loader.delete(policy, stage)
    except AloraError as error:
        raise GuardRefusal(str(error), 409) from error
    return await policies(request)


@router.get("/v1/guard/health", response_model_exclude_none=True)
async def health(request: Request) -> wire.Health:
    """200 when the guard can answer, 503 with the reason when not."""
    guard, loader = guard_of(request.app), getattr(request.app.state, "alora_loader", None)
    guard.require_running()
    trouble = guard.trouble() or (None if loader is None else loader.trouble)
    return wire.Health(status="ready", policies=len(guard.served), trouble=trouble)


async def _events(
    first: wire.PolicyVerdict | wire.GuardResponse, rest: AsyncGenerator[wire.PolicyVerdict | wire.GuardResponse, None]
) -> AsyncIterator[str]:
    try:
        yield _event(first)
        async for item in rest:
            yield _event(item)
    except (EngineDead, Overloaded) as error:
        yield f'event: error\ndata: {{"error": {{"message": "{type(error).__name__}"}}}}\n\n'
    finally:
        await rest.aclose()  # a client that goes away cancels what still runs


def _event(item: wire.PolicyVerdict | wire.GuardResponse) -> str:
    kind = "verdict" if isinstance(item, wire.PolicyVerdict) else "answer"
    return f"event: {kind}\ndata: {item.model_dump_json()}\n\n"


def _card(item: Served, psi: float | None = None) -> wire.PolicyCard:
    return wire.PolicyCard(
        policy=item.policy.id,
        title=item.policy.title,
        adapter=item.name,
        digest=item.digest,
        stage=item.stage,
        tags=list(item.tags),
        labels=list(item.policy.labels),
        threshold=item.calibration.threshold,
        psi=psi,
    )


async def _together(work: Iterable[Coroutine[Any, Any, wire.GuardResponse]]) -> list[wire.GuardResponse]:
    """The results of ``work``; the first that fails ends the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        return await asyncio.gather(*tasks)
    finally:  # the engine aborts a request that nobody waits for
        for task in tasks:
            task.cancel()


def _moderated(answer: wire.GuardResponse) -> wire.ModerationResult:
    found = {verdict.policy: verdict for verdict in answer.verdicts}
    # A policy that has OpenAI's own name keeps it.
    found = {_OPENAIS[name]: verdict for name, verdict in found.items() if name in _OPENAIS} | found
    return wire.ModerationResult(
        flagged=answer.action == "block",
        categories={name: verdict.flagged for name, verdict in found.items()},
        category_scores={
            name: float(verdict.flagged) if verdict.probability is None else verdict.probability
            for name, verdict in found.items()
        },
        category_applied_input_types={name: ["text"] for name in found},
    )


def mount(app: FastAPI) -> None:
    """The guard's routes in ``app``. A server's own ``/v1/decisions`` (vLLM 0.33 on) answers for other models only."""
    for route in app.routes:
        if isinstance(route, APIRoute) and route.path == "/v1/decisions" and "POST" in route.methods:
            app.state.alora_others_decisions = route.get_route_handler()
    app.include_router(router)
