"""The keys of a message, of a part of it or of a tool call: what is read, what is not text, and what would be lost."""

from collections.abc import Mapping
from typing import Any

_ARGUMENTS = ("arguments", "args", "input", "parameters")  # OpenAI's, LangChain's, Anthropic's and Llama's
MEDIA = ("image", "audio", "video", "file", "document")
_PARTS = {"toolUse": "tool_use", "functionCall": "tool_use", "toolResult": "tool_result",
          "functionResponse": "tool_result", "reasoningContent": "thinking"}  # fmt: skip
# What SDKs and logs put next to a text, and no model reads.
_KNOWN = frozenset(
    (
        *("annotations", "citations", "logprobs", "parsed", "parsed_arguments"),
        *("id", "index", "model", "object", "phase", "status", "type", "uuid"),  # and every ..._id and ...Id
        *("created", "created_at", "createdAt", "date", "datetime", "timestamp", "updated_at", "updatedAt"),
        *("lang", "language", "locale", "metadata", "sender"),
        *("async", "caller", "namespace", "server_label", "server_name", "toolset_name"),
        *("cache_control", "prompt_cache_breakpoint", "response_metadata", "usage", "usage_metadata"),
        *("finish_reason", "stop_reason", "stop_sequence"),
        # Gemini's and Anthropic's opaque state, which a client sends back as it came.
        *("container", "extra_content", "provider_specific_fields", "providerOptions"),
        *("signature", "thought_signature", "thoughtSignature"),
    )
)


def media_of(value: Mapping[Any, Any]) -> list[str]:
    """The keys that hold media: ``input_audio``, ``image_url``, ``images``."""
    names = [str(key) for key in value if value[key]]
    return [name for name in names if name.removeprefix("input_").removesuffix("s").removesuffix("_url") in MEDIA]


def unread(value: Mapping[Any, Any], *read: str) -> list[str]:
    """The keys that hold a text and are neither in ``read`` nor known to hold no words of the conversation."""
    names = [key for key in value if key not in read and key not in _KNOWN and not str(key).endswith(("_id", "Id"))]
    return [str(key) for key in names if _holds_text(value[key])]


def opened(call: Any) -> tuple[Any, Any, list[str]]:
    """A tool call's function, its arguments, and the keys whose text would be lost."""
    function = call.get("function") or call.get("custom") or call if isinstance(call, dict) else call
    if not isinstance(function, dict):
        return function, None, []
    key = next((name for name in _ARGUMENTS if function.get(name)), _ARGUMENTS[0])
    wrapping = {name: value for name, value in call.items() if value is not function and function is not call}
    return function, function.get(key), [*unread(function, "name", key), *unread(wrapping)]


def anthropics(part: Any) -> Any:
    """A part of Bedrock's or Gemini's as Anthropic has it; any other as it is."""
    key = next((key for key in _PARTS if isinstance(part, dict) and isinstance(part.get(key), dict)), None)
    if key is None:
        return {"type": "thinking", **part} if isinstance(part, dict) and part.get("thought") is True else part
    held, typed = part[key], _PARTS[key]
    if typed != "tool_result":
        return {**held, "type": typed, "id": held.get("toolUseId")}
    content = held.get("content", held.get("response"))
    return {"type": typed, "tool_use_id": held.get("toolUseId"), "name": held.get("name"), "content": content}


def is_block(part: Any) -> bool:
    """Whether an item of a list is a part of a message."""
    return isinstance(part, dict) and ("type" in part or part.keys() == {"text"})


def words_in(value: Any, depth: int = 4) -> str:
    """The text of reasoning in any of its forms."""
    if isinstance(value, list) and depth:
        return "\n".join(filter(None, (words_in(item, depth - 1) for item in value)))
    if isinstance(value, dict) and depth:
        keys = ("thinking", "text", "reasoningText", "summary", "content")
        held = next((value[key] for key in keys if value.get(key)), "")
        return words_in(held, depth - 1)
    return value if isinstance(value, str) else ""


def _holds_text(value: Any) -> bool:
    """Whether ``value`` is a text, or a list or an object of anything; a number alone is none, nor is a date."""
    waiting = [value]  # nested as deep as may be
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            waiting += item.values()
        elif isinstance(item, list | tuple):
            waiting += item
        elif isinstance(item, str | bytes):
            if item.strip():
                return True
        elif item is not None and item is not value:
            return True
    return False
