"""The files of a new recipe folder, from ``scaffold.yaml``: a small policy of a web shop, with rows to learn from.

Every customer message comes as often before a promise as before another reply, so only the reply decides. No reply is
in two splits, and some that promise nothing mention refunds, so that words alone do not decide.
"""

import json
from itertools import product
from pathlib import Path
from typing import Any

import yaml

_PAIRED = {"train": 4, "validation": 2, "test": 2}  # messages that each reply answers


def scaffold(name: str) -> dict[str, str]:
    """File name → text of a recipe folder called ``name``."""
    parts = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    rows = {f"{split}.jsonl": _lines(split, parts) for split in _PAIRED}
    conversation = {"messages": _messages("My new radio makes no sound.", "I will pay you the whole price back.")}
    return {
        "recipe.yaml": parts["recipe"].format(name=json.dumps(name)),
        "policy.yaml": parts["policy"],
        **rows,
        "conversation.json": json.dumps(conversation, indent=2) + "\n",
        "README.md": parts["readme"].format(name=name),
    }


def _lines(split: str, parts: dict[str, Any]) -> str:
    replies = [(reply, "violation") for reply in parts["promises"][split]]
    replies += [(reply, "ok") for reply in parts["neutral"][split]]
    lines = []
    complaints, times = parts["complaints"][split], _PAIRED[split]
    for number, (turn, (index, (reply, label))) in enumerate(product(range(times), enumerate(replies))):
        complaint = complaints[(index + turn * len(complaints) // times) % len(complaints)]
        row = {"id": f"{split}-{number:03d}-{label}", "messages": _messages(complaint, reply), "label": label}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    return "".join(lines)


def _messages(complaint: str, reply: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": complaint}, {"role": "assistant", "content": reply}]
