"""What training steps are made of: random conversations, each with the policies that it is labelled for."""

from collections.abc import Sequence
from dataclasses import replace

from alora.lab.bench.material import INVOCATION, LABELS, draw_suffix, token_ids
from alora.lab.bench.trials import Piece
from alora.prefix.plan import Pair
from alora.training.examples import Batch


def draw_batch(
    vocab: int, prefix: int, suffix: int, policies: int, seed: int, banned: frozenset[int] = frozenset(INVOCATION),
    conversations: int = 1, own: bool = False,
) -> Batch:  # fmt: skip
    """Random pairs: each conversation with all policies, or with one alone where rows are ``own``, policy after policy.

    A policy's pair of a conversation is the same for any number of policies above it.
    """
    suffixes = [draw_suffix(vocab, suffix, seed + 1 + policy).token_ids for policy in range(policies)]
    drawn = [(n, policy) for n in range(conversations) for policy in ([n % policies] if own else range(policies))]
    pairs = tuple(Pair(n, policy, suffixes[policy], LABELS) for n, policy in drawn)
    labels = tuple((n // policies if own else n) + policy for n, policy in drawn)
    prefixes = tuple(token_ids(vocab, prefix, seed + 1000 * n, banned) for n in range(conversations))
    return Batch(prefixes, pairs, tuple(label % len(LABELS) for label in labels), (1.0,) * len(pairs))


def some_pairs(batch: Batch, chosen: Sequence[int]) -> Batch:
    """A batch of these pairs alone, each with its conversation."""
    pairs = tuple(replace(batch.pairs[at], prefix=number) for number, at in enumerate(chosen))
    prefixes = tuple(batch.prefixes[batch.pairs[at].prefix] for at in chosen)
    labels = tuple(batch.labels[at] for at in chosen)
    return Batch(prefixes, pairs, labels, tuple(batch.weights[at] for at in chosen))


def whole_prompts(batch: Batch, policy: int) -> Batch:
    """A policy's pairs as a standard LoRA trains them: all of a prompt is adapted, and nothing lies before it."""
    own = some_pairs(batch, pairs_of(batch, policy))
    prompts = zip(own.prefixes, own.pairs, strict=True)
    pairs = tuple(replace(pair, policy=0, suffix_ids=prefix + pair.suffix_ids) for prefix, pair in prompts)
    return replace(own, prefixes=((),) * len(pairs), pairs=pairs)


def pairs_of(batch: Batch, policy: int) -> list[int]:
    return [at for at, pair in enumerate(batch.pairs) if pair.policy == policy]


def over_vocabulary(batch: Batch, vocab: int) -> Batch:
    """The same answers, each chosen among all tokens, as language-model trainers do."""
    answers = tuple(pair.label_token_ids[label] for pair, label in zip(batch.pairs, batch.labels, strict=True))
    pairs = tuple(replace(pair, label_token_ids=tuple(range(vocab))) for pair in batch.pairs)
    return replace(batch, pairs=pairs, labels=answers)


def piece_of(prefixes: Sequence[tuple[int, ...]], pair: Pair, label: int) -> Piece:
    return Piece.of(prefixes[pair.prefix] + pair.suffix_ids, (pair.label_token_ids[label],), pair.policy)
