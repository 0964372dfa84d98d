"""Prompts to certify an adapter on when the caller has none, from :mod:`alora.probes`."""

from collections.abc import Sequence

from alora.base.load import LoadedBase
from alora.config.schema import PromptSettings
from alora.data.conversation import Conversation
from alora.probes import probe_conversations
from alora.prompt.render import Prefix, Prompt, Renderer, Suffix


def identity_probes(count: int) -> tuple[Conversation, ...]:
    """The first ``count`` probes; ConfigError when there are not that many, or none is asked for."""
    return probe_conversations(count, "identity.conversations", least=1)


def probe_prompts(base: LoadedBase, invocation_ids: Sequence[int], count: int) -> list[Prompt]:
    """The first ``count`` probes on this base, each followed by the invocation tokens and a short, fixed tail.

    What follows the invocation does not matter to KV identity, so no policy is needed.

    Raises:
        ConfigError: there are not that many, or none is asked for.
    """
    renderer = Renderer(base.tokenizer, PromptSettings())
    prefixes = [renderer.prefix(conversation) for conversation in identity_probes(count)]
    suffix = bare_suffix(invocation_ids, prefixes[0])
    return [Prompt(prefix, suffix) for prefix in prefixes]


def bare_suffix(invocation_ids: Sequence[int], prefix: Prefix) -> Suffix:
    """Invocation tokens and four tokens of ``prefix`` that are not among them, so that no later occurrence arises."""
    known = set(invocation_ids)
    tail = [token for token in prefix.token_ids if token not in known][-4:]
    return Suffix((*invocation_ids, *tail), tuple(invocation_ids), ())
