"""The guard's own requests and answers, and what its options are on every route."""

import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

Status = Literal["ok", "missed", "failed", "skipped"]
Action = Literal["block", "flag", "log"]  # flag: reported, and blocks nothing; log: read afterwards, not reported
REQUEST_ID = "X-Request-Id"
CALLER = "X-Alora-User"  # who asks, where the body's metadata does not say

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
    on_failure: Literal["closed", "open"] = Field(default="closed", description="what no answer of a policy counts as")
    cache_salt: str | None = Field(default=None, min_length=1, max_length=256, description="share KV by this salt only")
    priority: int = Field(
        default=0,
        ge=-(2**31),
        lt=2**31,
        strict=True,
        description="lower runs first, where the engine schedules by priority",
    )
    metadata: dict[str, Any] | None = Field(default=None, description="its user is read: the caller's id, for the log")

    @property
    def options(self) -> dict[str, Any]:
        """These, without what a route adds."""
        return self.model_dump(include=set(Options.model_fields))


class GuardRequest(Options):
    """``POST /v1/guard``: one conversation."""

    messages: Many[dict[str, Any]] = Field(description="the conversation, as in OpenAI's chat format")
    stop_on_block: bool = Field(default=False, description="cancel the rest at the first flagged verdict")
    stream: bool = Field(
        default=False, description="server-sent events: each verdict as it comes, the whole answer last"
    )
    _id: str = PrivateAttr(default_factory=lambda: secrets.token_hex(12))
    _caller: str | None = PrivateAttr(default=None)

    def of(self, headers: Mapping[str, str]) -> Self:
        """This, by the ids of request and caller that a request's headers name, if they do."""
        self._id = headers.get(REQUEST_ID, self._id)[:100]
        self._caller = headers.get(CALLER)
        return self

    @property
    def caller(self) -> str | None:
        """Who asks, as the body or a header says."""
        user = (self.metadata or {}).get("user")
        return str(user)[:100] if isinstance(user, str | int) else self._caller and self._caller[:100]

    @property
    def answer_id(self) -> str:
        """What the answer is called: by its request, as vLLM does."""
        return f"guard-{self._id}"


class FromGuard(BaseModel):
    """What a guard says; a newer one may say more."""

    model_config = ConfigDict(frozen=True)


class PolicyVerdict(FromGuard):
    """One policy's answer. ``flagged`` without a probability: it did not answer, and ``on_failure`` is closed;
    ``reason`` says why. ``action`` is what follows where it is flagged."""

    policy: str
    status: Status
    flagged: bool
    action: Literal["block", "flag"] = "block"
    label: str | None = None
    probability: float | None = None
    threshold: float | None = None
    probabilities: dict[str, float] | None = None
    adapter: str
    reason: str | None = None

    @property
    def blocks(self) -> bool:
        return self.flagged and self.action == "block"


class Usage(FromGuard):
    """Tokens: of the conversation (shared), of all suffixes, and those that the engine computed for both."""

    prefix_tokens: int
    suffix_tokens: int
    computed_tokens: int
    policies: int


class Timing(FromGuard):
    """Milliseconds."""

    render: float
    total: float


class GuardResponse(FromGuard):
    """``action`` is block when a policy that blocks is flagged. ``complete``: every policy that was asked answered."""

    id: str
    action: Literal["allow", "block"]
    complete: bool
    verdicts: list[PolicyVerdict]
    usage: Usage
    timing_ms: Timing

    @property
    def flagged(self) -> list[str]:
        """The policies that are flagged, whether or not they block."""
        return [verdict.policy for verdict in self.verdicts if verdict.flagged]

    @property
    def blocking(self) -> list[str]:
        """The policies that block."""
        return [verdict.policy for verdict in self.verdicts if verdict.blocks]

    @property
    def blocked(self) -> bool:
        """Whether a policy blocks, or one that was asked has no verdict here."""
        return self.action != "allow" or len(self.verdicts) < self.usage.policies or bool(self.blocking)


class PolicyCard(FromGuard):
    """A policy that a guard serves; ``adapter`` is its ``policy@digest``."""

    policy: str
    title: str
    rule: str
    adapter: str
    digest: str
    action: str
    tags: tuple[str, ...]
    labels: tuple[str, ...]
    threshold: float
    psi: float | None = Field(default=None, description="drift of the last probabilities from validation's")


class PolicyList(FromGuard):
    """``GET /v1/guard/policies``."""

    policies: tuple[PolicyCard, ...]


class PutPolicy(Closed):
    """``PUT /v1/guard/policies/{id}``."""

    bundle: str | None = Field(default=None, description="its folder, below the serving root; absent: as it is served")
    action: Action | None = Field(default=None, description="absent: as before, block for a new policy")
    tags: Many[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]] | None = Field(
        default=None, max_length=32, description="groups that requests may ask for as tag:NAME; absent: as before"
    )


class Health(FromGuard):
    """``GET /v1/guard/health``: ready when the guard can answer."""

    status: Literal["ready"]
    policies: int
    trouble: str | None = Field(
        default=None, description="what to look at, although it answers: files or adapters that are not what is served"
    )
