"""A base's limits: the longest prompt, the highest rank of an adapter."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from transformers import PreTrainedModel

from alora.data.conversation import LabelledConversation
from alora.errors import ConfigError
from alora.prompt.prompt_checks import IN_RECIPE, too_long
from alora.prompt.render import Prefix, Renderer, Suffix

IN_ARTIFACT = "its prompt settings belong to the artifact: shorten the conversation, or train again and " + IN_RECIPE


def longest_input(model: PreTrainedModel) -> int | None:
    """The most tokens that ``model`` takes; None where its config names no limit. ``max_position_embeddings`` of its
    text part, or what RoPE scaling makes of the original length where that is more (``factor`` times
    ``original_max_position_embeddings``, transformers 5)."""
    config = model.config.get_text_config()
    stated = getattr(config, "max_position_embeddings", None)
    if not isinstance(stated, int) or stated < 1:
        return None
    rope = getattr(config, "rope_parameters", None)
    rope = rope if isinstance(rope, dict) else {}
    original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
    return max(stated, int(original * factor)) if original and factor else stated


def too_long_prompts(
    model: PreTrainedModel,
    renderer: Renderer,
    rows: Iterable[LabelledConversation],
    suffixes: Mapping[str, Suffix],
    remedy: str = IN_RECIPE,
) -> dict[str, str]:
    """Policies with prompts longer than the base takes: by id, the longest prompt and what to do about it. ``suffixes``
    is by policy id, as rows are labelled. Rows are rendered only where ``prompt.max_prefix_tokens`` would let one be
    too long."""
    limit = longest_input(model)
    longest_suffix = max((len(suffix.token_ids) for suffix in suffixes.values()), default=0)
    if limit is None or renderer.settings.max_prefix_tokens + longest_suffix <= limit:
        return {}
    longest: dict[str, tuple[int, str]] = dict.fromkeys(suffixes, (0, ""))
    counts = Counter[str]()
    for row in rows:
        asked = [name for name in row.labels if name in suffixes]
        prefix = max(len(part.token_ids) for part in renderer.windows(row.conversation)) if asked else 0
        for name in asked:
            tokens = prefix + len(suffixes[name].token_ids)
            counts[name] += tokens > limit
            longest[name] = max(longest[name], (tokens, row.where))
    problems = {}
    for name in (name for name in suffixes if counts[name]):
        tokens, where = longest[name]
        more = f" ({counts[name]} prompts are too long)" if counts[name] > 1 else ""
        problems[name] = f"{where}: {too_long(tokens, limit, len(suffixes[name].token_ids), remedy)}{more}"
    return problems


def require_room(
    model: PreTrainedModel,
    renderer: Renderer,
    rows: Iterable[LabelledConversation],
    suffixes: Mapping[str, Suffix],
    remedy: str = IN_RECIPE,
) -> None:
    """Refuse rows whose prompt is longer than the base takes; the arguments are :func:`too_long_prompts`'s."""
    for problem in too_long_prompts(model, renderer, rows, suffixes, remedy).values():
        raise ConfigError(problem)


def require_room_for(model: PreTrainedModel, prefix: Prefix, suffixes: Sequence[Suffix]) -> None:
    """Refuse one prompt of an artifact that is longer than the base takes."""
    limit, suffix = longest_input(model), max(len(suffix.token_ids) for suffix in suffixes)
    if limit is not None and len(prefix.token_ids) + suffix > limit:
        raise ConfigError(f"the conversation: {too_long(len(prefix.token_ids) + suffix, limit, suffix, IN_ARTIFACT)}")


def require_rank(model: PreTrainedModel, rank: int) -> None:
    """Refuse a rank above the base's hidden size: no weight matrix of the base has more to adapt."""
    hidden = getattr(model.config.get_text_config(), "hidden_size", None)
    if isinstance(hidden, int) and rank > hidden:
        raise ConfigError(
            f"adapter.rank is {rank}, above the base's hidden size of {hidden}: there is no such low rank; 8 to 64 is "
            "usual"
        )
