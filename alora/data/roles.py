"""Who speaks: the usual names of the four roles, in messages, in the lines of a transcript and in columns."""

import re
from collections.abc import Mapping
from typing import Any

from alora.config.schema import ROLES

ALIASES = {
    **dict.fromkeys(("human", "customer", "prompter"), "user"),
    **dict.fromkeys(("gpt", "bot", "model", "ai", "chatbot", "chatgpt", "aimessagechunk"), "assistant"),
    **dict.fromkeys(("function", "observation", "ipython", "tool_response", "function_response"), "tool"),
    "developer": "system",
}
# Further names of speakers; a message's role is none of these.
_SPEAKERS = {
    **dict.fromkeys(("client", "visitor", "caller", "guest"), "user"),
    **dict.fromkeys(("agent", "support", "operator", "rep", "representative", "advisor"), "assistant"),
}
_NO_SPEAKERS = ("model", *(name for name, role in ALIASES.items() if role == "tool"))  # "Model: X200": of a form
SPEAKERS = tuple({*ROLES, *ALIASES, *_SPEAKERS} - {*_NO_SPEAKERS})  # of a transcript, in small letters
_COLUMNS = {
    **dict.fromkeys(("prompt", "instruction", "question", "query", "input", "request", "text"), "user"),
    **dict.fromkeys(("context", "history", "document", "documents", "passage"), "user"),
    **dict.fromkeys(("response", "completion", "output", "answer", "reply", "generation"), "assistant"),
    **dict.fromkeys(("chosen", "rejected"), "assistant"),
}
_CAMEL = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # where a word of a name begins
_NUMBERED = re.compile(r"[ _]*(?:#?[ ]?\d{1,6}|\([^)\n]{1,30}\))\s*$")  # "Agent 2", "Customer #17", "Agent (Ann)"


def key_of(name: str) -> str:
    """A name as it is compared: in any capitals, blanks around it or none."""
    return name.strip().lower()


def usual_role(name: str) -> str | None:
    """The role that a message's ``name`` stands for without a setting."""
    known = key_of(name).replace("-", "_")
    known = ALIASES.get(known, known)
    return known if known in ROLES else None


def role_of(name: str, role_map: Mapping[str, str]) -> str | None:
    """The role that ``name`` stands for: by ``data.role_map``, or without it."""
    return role_map.get(name) or usual_role(name)


def speaker_role(name: str, role_map: Mapping[str, str]) -> str | None:
    """The role of a speaker in a transcript, who may have a number ("Agent 2")."""
    for form in (name.strip(), _NUMBERED.sub("", name).strip()):
        if role := role_map.get(form):
            return role
        if (key := key_of(form)) not in _NO_SPEAKERS and (role := _SPEAKERS.get(key) or usual_role(key)):
            return role
    return None


def column_role(name: str) -> str | None:
    """The role of a column of texts by its name, or by its words (``bot_response``), where they say one."""
    parts = re.findall(r"[^\W\d_]+", _CAMEL.sub("_", name).lower())  # of botResponse, too
    for words in ({key_of(name)}, {*parts} - {"text"}):
        roles = {_COLUMNS.get(word) or _SPEAKERS.get(word) or usual_role(word) for word in words} - {None}
        if len(roles) == 1:
            return roles.pop()
    return None


def role_note(name: Any, role: str) -> str:
    """The note on turns of ``name``."""
    return f"role {name!r:.40} is read as {role}"
