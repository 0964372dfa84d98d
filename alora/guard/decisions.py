"""OpenAI's Decisions (``client.decisions.create``): questions about one input, of which each asks a served policy.

An adapter answers the policy that it was trained on, and no other question. So a question's instructions are that
policy's rule as the bundle has it, or ``policy:ID``; anything else is refused.
"""

import json
from collections.abc import Sequence
from typing import Any

from alora.data.keys import unread
from alora.guard.reader import GuardRefusal, Served
from alora.wire.openai_api import Choice, Predicate


def policy_of(question: Predicate | Choice, number: int, served: Sequence[Served]) -> Served:
    """The policy that a question asks; GuardRefusal for one that no served policy answers, or several do."""
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
    labels = fitting[0].policy.labels
    if isinstance(question, Choice) and sorted(option.value for option in question.choices) != sorted(labels):
        raise GuardRefusal(f"the choices about {fitting[0].policy.id} must be its labels: {', '.join(labels)}")
    return fitting[0]


def messages_of(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The input in OpenAI's chat format."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return [_message(item) for item in given]


def _message(item: dict[str, Any]) -> dict[str, Any]:
    match item.get("type", "message"):
        case "message":
            return {**item, "content": _content(item.get("content"))}
        case "function_call" | "custom_tool_call":
            call = {"id": item.get("call_id"), "function": item}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        case "function_call_output" | "custom_tool_call_output":
            _require_read(item, "output")
            output = _content(item.get("output"))
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
        case other:
            raise GuardRefusal(f"input holds an item of type {str(other)[:100]!r}; give messages and tool calls")


def _content(content: Any) -> Any:
    """JSON parts as text; all else as it is, for the reader of conversations to judge."""
    if not isinstance(content, list):
        return content
    return [_json(part) if isinstance(part, dict) and part.get("type") == "input_json" else part for part in content]


def _json(part: dict[str, Any]) -> str:
    _require_read(part, "data")
    return json.dumps(part.get("data"), ensure_ascii=False)


def _require_read(item: dict[str, Any], key: str) -> None:
    if lost := unread(item, key):
        raise GuardRefusal(f"an item of type {item['type']} has {lost[0][:100]!r} next to {key!r}; leave it out")
