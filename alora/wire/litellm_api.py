"""LiteLLM's ``generic_guardrail_api``, which sends the whole conversation before and after a model's answer."""

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from alora.wire.native import GuardResponse, Many, Options


class GenericGuardrailRequest(BaseModel):
    """Only what the guard reads of it."""

    model_config = ConfigDict(extra="ignore")

    texts: Many[str] | None = None
    structured_messages: Many[dict[str, Any]] | None = None
    tool_calls: list[Any] | None = None
    images: list[Any] | None = None
    input_type: Literal["request", "response"] = "request"
    request_data: dict[str, Any] | None = None  # whose key asks, and for which user
    additional_provider_specific_params: Options = Field(default_factory=Options)

    @model_validator(mode="after")
    def _name_the_caller(self) -> Self:
        data, options = self.request_data or {}, self.additional_provider_specific_params
        user = data.get("user_api_key_end_user_id") or data.get("user_api_key_user_id")
        options.metadata = options.metadata or {"user": user}
        return self

    @property
    def conversations(self) -> list[list[dict[str, Any]]]:
        """What to judge: all of a request; of a response each choice as its own continuation, with the calls in it.

        Messages that end with the response's turn hold it already; its texts may be parts of that turn.
        """
        messages, texts, calls = self.structured_messages or [], self.texts or [], self.tool_calls or []
        if self.input_type == "request":  # messages hold all of it
            return [messages or [*({"role": "user", "content": text} for text in texts), *_calling(calls)]]
        last = messages[-1] if messages and messages[-1].get("role") == "assistant" else {}
        said = _texts(last)
        calling = [] if last.get("tool_calls") == calls else _calling(calls)
        choices = [text for text in dict.fromkeys(texts) if text not in said]
        there = not said.isdisjoint(texts)
        before = messages[:-1] if there else messages
        found = [[*before, {"role": "assistant", "content": text}, *calling] for text in choices]
        return [[*messages, *calling], *found] if there or not found else found


def _calling(calls: list[Any]) -> list[dict[str, Any]]:
    return [{"role": "assistant", "tool_calls": calls}] if calls else []


def _texts(message: dict[str, Any]) -> set[str]:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return {text for text in texts if isinstance(text, str)}


class GenericGuardrailResponse(BaseModel):
    """LiteLLM blocks the call on ``BLOCKED`` and shows ``blocked_reason``. ``complete`` is false where a policy did not
    answer."""

    action: Literal["BLOCKED", "NONE"]
    blocked_reason: str | None = None
    complete: bool

    @classmethod
    def of(cls, answers: Sequence[GuardResponse]) -> Self:
        complete = all(answer.complete for answer in answers)
        if all(answer.action == "allow" for answer in answers):
            return cls(action="NONE", complete=complete)
        blocking = dict.fromkeys(policy for answer in answers for policy in answer.blocking)
        return cls(action="BLOCKED", blocked_reason=f"policy: {', '.join(blocking)}", complete=complete)
