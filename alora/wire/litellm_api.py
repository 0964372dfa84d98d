"""LiteLLM's ``generic_guardrail_api``, which sends the whole conversation before and after a model's answer."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from alora.wire.native import GuardResponse, Many, Options


class GenericGuardrailRequest(BaseModel):
    """Only what the guard reads of it."""

    model_config = ConfigDict(extra="ignore")

    texts: Many[str] | None = None
    structured_messages: Many[dict[str, Any]] | None = None
    tool_calls: list[Any] | None = None
    images: list[Any] | None = None
    input_type: Literal["request", "response"] = "request"
    additional_provider_specific_params: Options = Field(default_factory=Options)

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """The messages to judge: a response's texts and calls come last, unless the messages end with that turn."""
        messages, texts, calls = self.structured_messages or [], self.texts or [], self.tool_calls or []
        if messages and self.input_type == "request":  # they hold all of it
            return messages
        there = messages[-1] if messages and messages[-1].get("role") == "assistant" else {}
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

    @classmethod
    def of(cls, answer: GuardResponse) -> Self:
        if answer.action == "allow":
            return cls(action="NONE")
        return cls(action="BLOCKED", blocked_reason=f"policy: {', '.join(answer.flagged)}")
