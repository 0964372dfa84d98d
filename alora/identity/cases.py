"""Prompts to certify an adapter on, and the calls that a certificate makes of them."""

from collections.abc import Sequence

from transformers import PreTrainedModel

from alora.base.limits import longest_input
from alora.data.conversation import Conversation
from alora.data.probes import probe_conversations
from alora.errors import AdapterError
from alora.identity.capture import Call, make_call
from alora.prompt.render import Prefix, Prompt, Suffix

SHORT_PREFIX_TOKENS = 3
LONG_PREFIX_TOKENS = 512


def identity_probes(count: int) -> tuple[Conversation, ...]:
    """The first ``count`` of :mod:`alora.data.probes`; ConfigError for none, or more than there are."""
    return probe_conversations(count, "identity.conversations", least=1)


def bare_suffix(invocation_ids: Sequence[int], prefix: Prefix) -> Suffix:
    """A suffix without a policy: what follows the invocation does not matter to KV identity.

    Invocation tokens and four tokens of ``prefix`` that are not among them, so that no later occurrence arises.
    """
    known = set(invocation_ids)
    tail = [token for token in prefix.token_ids if token not in known][-4:]
    return Suffix((*invocation_ids, *tail), tuple(invocation_ids), ())


def make_calls(prompts: Sequence[Prompt], model: PreTrainedModel, invocation_ids: Sequence[int]) -> list[Call]:
    """One call for each prompt alone, one with a very short prefix, one with a long one, and a left-padded batch.

    The short and the long prefix are cut and joined from the prompts' own; the batch holds the prompts and the short
    row, so that its rows have different lengths whatever the prompts are. Calls without padding come first, shortest
    first."""
    _check(prompts, invocation_ids)
    suffix = prompts[0].suffix.token_ids
    short = prompts[0].prefix.token_ids[:SHORT_PREFIX_TOKENS]
    rows = [(prompt.prefix.token_ids, prompt.suffix.token_ids) for prompt in prompts]
    single = [(f"conversation {number}", row) for number, row in enumerate(rows, start=1)]
    single.append(("short prefix", (short, suffix)))
    most = longest_input(model) or LONG_PREFIX_TOKENS * 2
    single.append(("long prefix", (_long_prefix(prompts, most - len(suffix)), suffix)))
    single.sort(key=lambda item: len(item[1][0]))
    pad_id = getattr(model.config, "pad_token_id", None) or 0
    calls = [make_call(name, [[*prefix, *own]], [len(prefix)], pad_id, model.device) for name, (prefix, own) in single]
    batch = [(short, suffix), *rows]
    joined = [[*prefix, *own] for prefix, own in batch]
    calls.append(make_call("left-padded batch", joined, [len(prefix) for prefix, _ in batch], pad_id, model.device))
    return calls


def _long_prefix(prompts: Sequence[Prompt], room: int) -> tuple[int, ...]:
    joined = [token for prompt in prompts for token in prompt.prefix.token_ids]
    wanted = max(SHORT_PREFIX_TOKENS, min(LONG_PREFIX_TOKENS, room))
    return tuple((joined * (wanted // len(joined) + 1))[:wanted])


def _check(prompts: Sequence[Prompt], invocation_ids: Sequence[int]) -> None:
    if not prompts:
        raise AdapterError("no prompts to check KV identity on; give at least one conversation")
    wanted = tuple(invocation_ids)
    for number, prompt in enumerate(prompts, start=1):
        opening = prompt.suffix.token_ids[: len(wanted)]
        if opening != wanted:
            raise AdapterError(
                f"prompt {number}: its suffix opens with token ids {list(opening)}, but the adapter is invoked by "
                f"{list(wanted)}; render it with the policy and the base that the adapter was trained for"
            )
        if not prompt.prefix.token_ids:
            raise AdapterError(f"prompt {number}: its prefix is empty, so it shares no KV; give it a conversation")
        if len(prompt.suffix.token_ids) < 2:
            raise AdapterError(
                f"prompt {number}: its suffix has one token, so a late activation cannot be detected; "
                "use an invocation of at least two tokens"
            )
