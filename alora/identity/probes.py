"""Prompts to prove an adapter on when the caller has none: conversations written for this, one for each length."""

from __future__ import annotations

from collections.abc import Sequence

from alora.base.load import LoadedBase
from alora.config.schema import PromptSettings
from alora.conversation import Conversation, Message
from alora.errors import ConfigError
from alora.render import Prefix, Prompt, Renderer, Suffix

_REPEATED = "The second pump was checked on Monday, the third one on Tuesday, and both ran without a fault. "
_PROBES: Sequence[Sequence[tuple[str, str]]] = (
    (("user", "Can I change the delivery address?"), ("assistant", "Yes, until the parcel has left our warehouse.")),
    (
        ("user", "Good morning! I am planning a week of hiking and need a packing list."),
        ("assistant", "Gladly. Will you sleep in huts or in a tent, and how cold will the nights be?"),
        ("user", "In huts. Nights of about 5 °C, I think."),
        (
            "assistant",
            "Then take a light sleeping bag, two layers of wool, rain clothes, and shoes that you know well.",
        ),
    ),
    (
        ("system", "You help the technicians of a waterworks."),
        ("user", f"Write a summary of this log. {_REPEATED * 8}"),
        ("assistant", "Both pumps were checked and ran without a fault."),
    ),
    (
        ("user", "naïve café — 漢字, кириллица, عربي 🙂 {} <b>bold</b>\n\tx = [1, 2, 3]"),
        ("assistant", "All of it arrived."),
    ),
    (("user", "ok"),),
    (
        ("user", "Tell me a story about a clock."),
        ("assistant", "It had struck thirteen once, in a winter long ago, and nobody had ever let it forget that."),
        ("user", "And then?"),
    ),
)


def probe_conversations(count: int) -> list[Conversation]:
    """The first ``count`` probes.

    Raises:
        ConfigError: there are not that many.
    """
    if not 1 <= count <= len(_PROBES):
        raise ConfigError(f"identity.conversations={count} must lie between 1 and {len(_PROBES)}, or give data.test")
    return [
        Conversation(f"probe-{number}", tuple(Message(role, text) for role, text in turns))
        for number, turns in enumerate(_PROBES[:count], start=1)
    ]


def probe_prompts(base: LoadedBase, invocation_ids: Sequence[int], count: int) -> list[Prompt]:
    """The first ``count`` probes on this base, each followed by the invocation tokens and a short, fixed tail.

    What follows the invocation does not matter to KV identity, so no policy is needed.
    """
    renderer = Renderer(base.tokenizer, PromptSettings())
    prefixes = [renderer.prefix(conversation) for conversation in probe_conversations(count)]
    suffix = bare_suffix(invocation_ids, prefixes[0])
    return [Prompt(prefix, suffix) for prefix in prefixes]


def bare_suffix(invocation_ids: Sequence[int], prefix: Prefix) -> Suffix:
    """Invocation tokens and four tokens of ``prefix`` that are not among them, so that no later occurrence arises."""
    known = set(invocation_ids)
    tail = [token for token in prefix.token_ids if token not in known][-4:]
    return Suffix((*invocation_ids, *tail), tuple(invocation_ids), ())
