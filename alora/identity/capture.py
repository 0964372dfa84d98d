"""The calls that a certificate makes of prompts, and what the KV cache would hold after one, by layer.

Shapes: B batch, T tokens of the padded call, D width of one token's tensor, V vocabulary.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from alora.activation import peft_offset
from alora.base.limits import longest_input
from alora.data.conversation import Conversation
from alora.data.probes import probe_conversations
from alora.errors import AdapterError, BaseError
from alora.prompt.render import Prefix, Prompt, Suffix

SHORT_PREFIX_TOKENS, LONG_PREFIX_TOKENS = 3, 512


class Site(NamedTuple):
    """A tensor with one entry per token: K or V of a layer, or the last layer's output (``layer`` -1)."""

    layer: int
    kind: str

    def __str__(self) -> str:
        return "output" if self.layer < 0 else f"layer {self.layer} {self.kind}"


OUTPUT = Site(-1, "output")


@dataclass(frozen=True)
class Call:
    """Everything that both runs of a pair share. Rows are left-padded; ``activation_B`` indexes the padded rows."""

    name: str
    input_ids_BT: Tensor
    attention_mask_BT: Tensor
    position_ids_BT: Tensor
    activation_B: tuple[int, ...]
    padding_B: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Length of the padded rows."""
        return self.input_ids_BT.shape[1]

    def offsets(self, shift: int = 0) -> list[int]:
        """PEFT's count from the end, for an activation moved ``shift`` tokens to the right."""
        return [peft_offset(self.tokens, index + shift) for index in self.activation_B]


@dataclass(frozen=True)
class Capture:
    """The tensors of one run: ``sites[site]`` is (B, T, ...), ``logits_BV`` belongs to the last position."""

    sites: Mapping[Site, Tensor]
    logits_BV: Tensor


def make_call(name: str, rows: Sequence[Sequence[int]], activations: Sequence[int], pad_id: int, device: Any) -> Call:
    """Left-pad ``rows`` to one length; ``activations`` count from each row's own first token."""
    width = max(len(row) for row in rows)
    padding_B = tuple(width - len(row) for row in rows)
    ids_BT = torch.tensor([[pad_id] * pad + list(row) for pad, row in zip(padding_B, rows, strict=True)])
    mask_BT = torch.tensor([[0] * pad + [1] * (width - pad) for pad in padding_B])
    return Call(
        name=name,
        input_ids_BT=ids_BT.to(device),
        attention_mask_BT=mask_BT.to(device),
        position_ids_BT=(mask_BT.cumsum(dim=1) - 1).clamp_min(0).to(device),
        activation_B=tuple(pad + index for pad, index in zip(padding_B, activations, strict=True)),
        padding_B=padding_B,
    )


def twin(model: nn.Module, dtype: torch.dtype | None = None) -> Any:
    """Copy a model's modules but not its weights, which stay shared or, with ``dtype``, are cast once.

    PEFT injects itself into the model that it is given; a twin keeps the base at hand untouched. Buffers keep their
    dtype: rotary frequencies are float32 in a bfloat16 model too. Quantized weights are the exception, they are copied:
    bitsandbytes 0.50 repacks them in place at the first call on some CPUs, which a twin that shares them cannot follow.
    """
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        if type(parameter) is not nn.Parameter:
            continue
        cast = dtype is not None and parameter.is_floating_point()
        data = parameter.data.to(dtype) if cast else parameter.data
        memo[id(parameter)] = nn.Parameter(data, requires_grad=False)
    memo.update((id(buffer), buffer) for buffer in model.buffers())
    return copy.deepcopy(model, memo).eval()


def capture(model: nn.Module, call: Call, **forward_options: Any) -> Capture:
    """Run ``call`` through a causal LM or a ``PeftModel`` in eval mode and keep every layer's K and V. The cache is one
    that keeps all tokens, also in sliding-window layers. ``forward_options`` reach the model's forward
    (``alora_offsets``)."""
    cache = DynamicCache()
    kept: list[Tensor] = []
    decoder = _decoder(model)
    hook = decoder.register_forward_hook(lambda _module, _inputs, output: kept.append(output.last_hidden_state))
    try:
        logits_BTV = forward(
            model, call.input_ids_BT, call.attention_mask_BT, call.position_ids_BT, cache, **forward_options
        )
    finally:
        hook.remove()
    return Capture({**cache_sites(cache), OUTPUT: kept[-1]}, logits_BTV[:, -1])


def forward(
    model: nn.Module, ids_BT: Tensor, mask_BT: Tensor, positions_BT: Tensor, cache: Any, **options: Any
) -> Tensor:
    """One forward without gradient into ``cache``; logits of the last position, (B, 1, V)."""
    with torch.no_grad():
        return model(
            input_ids=ids_BT,
            attention_mask=mask_BT,
            position_ids=positions_BT,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
            **options,
        ).logits


def cache_sites(cache: Any) -> dict[Site, Tensor]:
    """K and V of every layer of a transformers cache, token dimension second: (B, T, heads, D)."""
    sites: dict[Site, Tensor] = {}
    without = [index for index, layer in enumerate(cache.layers) if getattr(layer, "keys", None) is None]
    if without or not cache.layers:
        where = f"layers {without[:8]}" if cache.layers else "any layer"
        raise BaseError(
            f"the base keeps no keys and values in {where}; KV identity is defined for attention layers only, "
            "so choose a base whose layers all attend"
        )
    for index, layer in enumerate(cache.layers):
        sites[Site(index, "K")] = layer.keys.transpose(1, 2)
        sites[Site(index, "V")] = layer.values.transpose(1, 2)
    return sites


def _decoder(model: Any) -> nn.Module:
    causal_lm = model.get_base_model() if hasattr(model, "get_base_model") else model
    decoder = causal_lm.get_decoder()  # what runs: OPTForCausalLM never calls its base_model
    return decoder if decoder is not causal_lm else getattr(decoder, "model", decoder)  # Llama4 answers with itself


def identity_probes(count: int) -> tuple[Conversation, ...]:
    """The first ``count`` of :mod:`alora.data.probes`; ConfigError for none, or more than there are."""
    return probe_conversations(count, "identity.conversations", least=1)


def bare_suffix(invocation_ids: Sequence[int], prefix: Prefix) -> Suffix:
    """A suffix without a policy: what follows the invocation does not matter to KV identity. Invocation tokens and four
    tokens of ``prefix`` that are not among them, so that no later occurrence arises."""
    known = set(invocation_ids)
    tail = [token for token in prefix.token_ids if token not in known][-4:]
    return Suffix((*invocation_ids, *tail), tuple(invocation_ids), ())


def make_calls(prompts: Sequence[Prompt], model: PreTrainedModel, invocation_ids: Sequence[int]) -> list[Call]:
    """One call for each prompt alone, one with a very short prefix, one with a long one, and a left-padded batch. The
    short and the long prefix are cut and joined from the prompts' own; the batch holds the prompts and the short row,
    so that its rows have different lengths whatever the prompts are. Calls without padding come first, shortest
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
