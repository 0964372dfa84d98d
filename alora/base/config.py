"""A base's config, the tensors that belong to it, and its limits: the longest prompt, an adapter's highest rank."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.utils import logging

from alora.base import REMEDY
from alora.config.environment import debugging
from alora.data.conversation import LabelledConversation
from alora.errors import BaseError, ConfigError
from alora.prompt.check import IN_RECIPE, too_long
from alora.prompt.render import Prefix, Renderer, Suffix
from alora.text import leaves

IN_ARTIFACT = "its prompt settings belong to the artifact: shorten the conversation, or train again and " + IN_RECIPE
_UNSUPPORTED_QUANTIZATION = {
    "gptq": "PEFT silently trains plain LoRA on GPTQ layers",
    "hqq": "PEFT silently trains plain LoRA on HQQ layers",
    "awq": "its kernels give no gradient that alora has checked",
}


def read_config(location: str, options: Mapping[str, Any]) -> PretrainedConfig:
    """The config of the base at ``location``, a folder or a hub id, with sdpa attention."""
    config = AutoConfig.from_pretrained(location, **options)
    _refuse_by_name(config, location)
    # Whatever the file says, which counts for more than what from_pretrained is asked for: transformers fetches and
    # runs the kernels of a name like org/name.
    config._attn_implementation, config._experts_implementation = "sdpa", None  # those of nested configs, too
    return config


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide transformers' bar over tensors that are on disk already (the bars of a download are the hub's and stay), and
    its report on tensors that are missing or misshapen, which :func:`require_whole` refuses."""
    if debugging():
        yield
        return
    before, level = logging.set_tqdm_hook(_without_bar), logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)
        logging.set_verbosity(level)


def _without_bar(make: Any, args: Any, options: dict[str, Any]) -> Any:
    return make(*args, **options | {"disable": True})


def require_whole(loading_info: Mapping[str, Any], location: str) -> None:
    """Refuse a base of which transformers could not load every tensor: it fills the rest with random numbers.
    ``loading_info`` is what ``from_pretrained(output_loading_info=True)`` says."""
    if misshapen := sorted(loading_info["mismatched_keys"]):
        name, stored, wanted = misshapen[0]
        raise BaseError(
            f"base {location}: tensor {name} is {tuple(stored)} in its files and {tuple(wanted)} by its config "
            f"({len(misshapen)} tensors of another shape); {REMEDY}"
        )
    if missing := sorted(loading_info["missing_keys"]):
        raise BaseError(f"base {location}: its files lack tensor {missing[0]} ({len(missing)} missing); {REMEDY}")


def _refuse_by_name(config: Any, location: str) -> None:
    quantization = getattr(config, "quantization_config", None)
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization.quant_method
        method = str(getattr(method, "value", method)).lower()
        reason = _UNSUPPORTED_QUANTIZATION.get(method, "alora has checked no gradient through its kernels")
        raise BaseError(
            f"base {location} is quantized with {method}, which alora refuses: {reason}; use its bf16 base, with "
            "base.quantization=nf4 for a base in four bits"
        )
    for key, value in leaves(config.to_dict()):  # of nested configs and of each kind of layer, too
        name = key.rpartition(".")[2]
        if name == "transformers_weights" and value is not None:
            raise BaseError(
                f"base {location}: {key} in its config names a file with weights for transformers alone; call it "
                "model.safetensors and remove the key"
            )
        if name == "rope_type" and value in ("dynamic", "longrope"):
            raise BaseError(
                f"base {location} uses {value} RoPE, whose frequencies depend on the length of the whole prompt, so "
                "a prefix's KV is not its own; use a base with another rope_type"
            )


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
