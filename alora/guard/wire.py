"""Requests and answers as they travel: the guard's own, OpenAI's moderations, LiteLLM's generic guardrail."""

import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

Status = Literal["ok", "missed", "failed", "skipped"]
Stage = Literal["live", "shadow"]
REQUEST_ID = "X-Request-Id"
MOST_TEXTS = 100  # of one moderation request, each a conversation of its own

_Item = TypeVar("_Item")
Many = Annotated[list[_Item], Field(fail_fast=True)]  # a megabyte of wrong items is one error, and not half a million


class Closed(BaseModel):
    """What refuses a key that it does not know; one is named, however many there are."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, given: Any) -> Any:
        unknown = [key for key in given if key not in cls.model_fields] if isinstance(given, dict) else []
        if unknown:
            found = {"key": repr(unknown[0][:80]), "known": ", ".join(cls.model_fields)}
            raise PydanticCustomError("extra_forbidden", "{key} is not known here; known are {known}", found)
        return given


class Options(Closed):
    """How a conversation is judged; each route takes all of them."""

    policies: Many[str] | None = Field(default=None, description="ids, id@digest or tag:NAME; absent: every policy")
    deadline_ms: float | None = Field(
        default=None, gt=0, le=600_000, strict=True, description="answer after this long, complete or not"
    )
    on_failure: Literal["closed", "open"] = Field(
        default="closed", description="what a policy without an answer counts as"
    )
    cache_salt: str | None = Field(
        default=None, min_length=1, max_length=256, description="share KV under this salt only"
    )
    priority: int = Field(
        default=0,
        ge=-(2**31),
        lt=2**31,
        strict=True,
        description="lower runs first, where the engine schedules by priority",
    )

    @property
    def options(self) -> dict[str, Any]:
        """These, without what a route adds."""
        return self.model_dump(include=set(Options.model_fields))


class GuardRequest(Options):
    """``POST /v1/guard``: one conversation."""

    messages: list[Any] = Field(description="the conversation, as in OpenAI's chat format")
    stop_on_block: bool = Field(default=False, description="cancel the rest at the first flagged verdict")
    stream: bool = Field(
        default=False, description="server-sent events: each verdict as it arrives, the whole answer last"
    )
    _id: str = PrivateAttr(default_factory=lambda: secrets.token_hex(12))

    def of(self, headers: Mapping[str, str]) -> Self:
        """This, by the id that a request's headers name, if they do."""
        self._id = headers.get(REQUEST_ID, self._id)[:100]
        return self

    @property
    def answer_id(self) -> str:
        """What the answer is called: by its request, as vLLM does."""
        return f"guard-{self._id}"


class PolicyVerdict(BaseModel):
    """One policy's answer. ``flagged`` without a probability: it did not answer, and ``on_failure`` is closed."""

    policy: str
    status: Status
    flagged: bool
    label: str | None = None
    probability: float | None = None
    threshold: float | None = None
    probabilities: dict[str, float] | None = None
    adapter: str
    reason: str | None = None


class Usage(BaseModel):
    """Tokens: of the conversation (shared), of all suffixes, and those that the engine computed for both."""

    prefix_tokens: int
    suffix_tokens: int
    computed_tokens: int
    policies: int


class Timing(BaseModel):
    """Milliseconds."""

    render: float
    total: float


class GuardResponse(BaseModel):
    """``action`` is block when any verdict is flagged. ``complete``: every policy that was asked answered."""

    id: str
    action: Literal["allow", "block"]
    complete: bool
    verdicts: list[PolicyVerdict]
    usage: Usage
    timing_ms: Timing


class ModerationRequest(Options):
    """OpenAI's ``POST /v1/moderations``; ``messages`` in place of ``input`` judges a whole conversation."""

    input: str | Annotated[Many[str] | Many[dict[str, Any]], Field(max_length=MOST_TEXTS)] | None = None
    model: str = "alora"
    messages: list[Any] | None = None


class ModerationResult(BaseModel):
    """Policies are the categories; a policy that did not answer is flagged with score 1."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[str]]


class ModerationResponse(BaseModel):
    """One result per input."""

    id: str
    model: str
    results: list[ModerationResult]


class GenericGuardrailRequest(BaseModel):
    """LiteLLM's ``generic_guardrail_api``; only what the guard reads of it."""

    model_config = ConfigDict(extra="ignore")

    texts: Many[str] | None = None
    structured_messages: list[Any] | None = None
    tool_calls: list[Any] | None = None
    images: list[Any] | None = None
    input_type: Literal["request", "response"] = "request"
    additional_provider_specific_params: Options = Field(default_factory=Options)

    @property
    def conversation(self) -> list[Any]:
        """The messages to judge: a response's texts and calls come last, unless the messages end with that turn."""
        messages, texts, calls = self.structured_messages or [], self.texts or [], self.tool_calls or []
        if messages and self.input_type == "request":  # they hold all of it
            return messages
        last = messages[-1] if messages and isinstance(messages[-1], dict) else {}
        there = last if last.get("role") == "assistant" else {}
        content = there.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        given = [part.get("text") for part in parts if isinstance(part, dict)]
        said = {text for text in given if isinstance(text, str)}  # a set: both sides may be a hundred thousand
        role = "user" if self.input_type == "request" else "assistant"
        new = [{"role": role, "content": text} for text in texts if text not in said]
        called = [{"role": "assistant", "tool_calls": calls}] if calls and there.get("tool_calls") != calls else []
        return [*messages, *new, *called]


class GenericGuardrailResponse(BaseModel):
    """LiteLLM blocks the call on ``BLOCKED`` and shows ``blocked_reason``."""

    action: Literal["BLOCKED", "NONE"]
    blocked_reason: str | None = None


class PolicyCard(BaseModel):
    """One entry of ``GET /v1/guard/policies``."""

    policy: str
    title: str
    adapter: str
    digest: str
    stage: str
    tags: list[str]
    labels: list[str]
    threshold: float
    psi: float | None = Field(default=None, description="drift of the last probabilities from validation's")


class PutPolicy(Closed):
    """``PUT /v1/guard/policies/{id}``."""

    bundle: str = Field(description="the bundle's folder, below the serving root")
    stage: Stage = "live"
    tags: Many[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]] | None = Field(
        default=None, max_length=32, description="groups that requests may ask for as tag:NAME; absent: as before"
    )


class PolicyList(BaseModel):
    """``GET /v1/guard/policies``."""

    policies: list[PolicyCard]


class Health(BaseModel):
    """``GET /v1/guard/health``: ready when the guard can answer."""

    status: Literal["ready"]
    policies: int
    trouble: str | None = Field(
        default=None, description="why the serving set's file, or vLLM's own table, is not what is served"
    )
