"""OpenAI's Decisions (``client.decisions.create``): questions about one input, of which each asks a served policy.

An adapter answers the policy that it was trained on, and no other question. So a question's instructions are that
policy's rule as the bundle has it, or ``policy:ID``; anything else is refused.
"""

from collections.abc import Sequence
from typing import Any

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
    policy = fitting[0].policy
    if isinstance(question, Choice) and question.labels(policy.labels) is None:
        own = ", ".join(policy.labels)
        raise GuardRefusal(f"the choices about {policy.id} must be its labels ({own}), or true and false")
    return fitting[0]


def messages_of(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The input as messages, or as items that are read like those of data."""
    return [{"role": "user", "content": given}] if isinstance(given, str) else given
