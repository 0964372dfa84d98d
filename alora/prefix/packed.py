"""The one forward of this project: P policies behind one prefix, training and scoring alike.

1. *Prefix.* The base alone runs the prefix once, without gradient, and its KV is kept as a constant.
2. *Suffixes.* All suffixes of the pass stand in one row of N tokens without padding. Positions go on from the prefix,
   :mod:`alora.prefix.attention` joins each suffix to its conversation's prefix, and :mod:`alora.adapter.bank` adds
   each policy's adapter to its own rows, by a product grouped by policy that is derived there. In the last layer only
   the rows that are read ask attention and go through the MLP (:mod:`alora.prefix.last_layer`).
3. *Answer.* The hidden state of each suffix's last token meets the head's rows of the label tokens, no others.

A standard LoRA, which adapts from token 0, is the same forward with an empty prefix: everything is suffix.

The pass hooks in through transformers' own ``AttentionInterface`` under :data:`ATTENTION`, on the stock model classes;
a call without a plan is plain sdpa, so the same model object also runs as the base.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Self

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from alora.adapter.bank import Bank, Route
from alora.errors import AdapterError, BaseError
from alora.prefix.attention import Shape, attention_without_prefix, shared_prefix_attention
from alora.prefix.last_layer import LastLayer
from alora.prefix.norms import fuse_norms
from alora.prefix.passes import Pair, Plan, PrefixKV, groups_of, rows_of, running, running_plan
from alora.prefix.side_by_side import Suffixes, attend_side_by_side
from alora.prefix.supported import CHECK_TOKENS, narrow_windows, require_same_answers, stock_answer

ATTENTION = "alora_packed"
_REFUSED_ATTENTION = ("softcap", "s_aux")  # change the scores in ways that the merge does not carry


class PackedModel(nn.Module):
    """A base with a bank of adapters.

    Raises:
        AdapterError: an adapter has weights for the output layer, of which the packed forward multiplies single rows.
        BaseError: this model class computes its label logits in a way that the packed forward does not reproduce.
    """

    def __init__(self, base: PreTrainedModel, bank: Bank) -> None:
        super().__init__()
        self.base, self.bank = base, bank
        base.set_attn_implementation(ATTENTION)
        fuse_norms(base)
        head = base.get_output_embeddings()
        if head is None:
            raise BaseError(f"{type(base).__name__} has no language-model head; alora needs a causal language model")
        if bank.adapts(head):
            raise AdapterError(
                "the adapter has weights for the base's output layer (lm_head), which only vLLM runs; score it by a "
                "server, or train an adapter without that target"
            )
        self._head = head
        decoder: Any = base.get_decoder()  # Llama4 answers with itself
        self._decoder = decoder if decoder is not base else getattr(decoder, "model", decoder)
        self._last_layer = LastLayer(base, bank)
        self._reached: set[int] = set()
        self._checkpoints = any(m.training or getattr(m, "gradient_checkpointing", False) for m in base.modules())
        self._check_answers_like_the_base()

    def train(self, mode: bool = True) -> Self:
        """Only gradient checkpointing needs the base in train mode; its dropout, if any, stays off."""
        super().train(mode)
        self._set_checkpointing(mode)
        return self

    def _set_checkpointing(self, active: bool) -> bool:
        """Turn gradient checkpointing on or off in the layers that have it; return whether it was on."""
        if not (active or self._checkpoints):  # a walk over all modules is a fifth of a short prefix's time
            return False
        before = False
        for module in self.base.modules():
            before = before or module.training
            module.training = active and getattr(module, "gradient_checkpointing", False)
        return before

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The bank's own: the base is not ours to save."""
        return self.bank.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Inverse of :meth:`state_dict`."""
        return self.bank.load_state_dict(state_dict, strict=strict, assign=assign)

    def checkpoint_activations(self) -> None:
        """Recompute suffix activations in backward; the prefix has none to store."""
        options = {"use_reentrant": False, "context_fn": self._checkpoint_contexts}
        self.base.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
        self._checkpoints = True
        for module in self.base.modules():  # a layer that checkpoints is in train mode, where OPT's own dropout acts
            rates = [name for name, value in vars(module).items() if "drop" in name and isinstance(value, float)]
            for name in rates:
                setattr(module, name, 0.0)

    def _checkpoint_contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """``context_fn`` of ``torch.utils.checkpoint``: the recomputation in backward takes the forward's plan."""
        return nullcontext(), self._run(running_plan(), self.bank.current_route)

    @contextmanager
    def _run(self, plan: Plan | None, route: Route | None) -> Iterator[None]:
        with running(plan), self.bank.route(route):
            yield

    @property
    def device(self) -> torch.device:
        """Where the base lives."""
        return self._head.weight.device

    def prefix_kv(self, token_ids: Sequence[int]) -> PrefixKV | None:
        """Run one prefix through the base alone; None for an empty one."""
        return self.run_prefixes([token_ids])[0] if token_ids else None

    @torch.inference_mode(False)  # a scorer's prefix may be kept, and training cannot save an inference tensor
    @torch.no_grad()
    def run_prefixes(self, prefixes: Sequence[Sequence[int]]) -> list[PrefixKV]:
        """Run prefixes through the base alone, in one forward: padded behind, where no token of a prefix looks."""
        longest = max(map(len, prefixes))
        ids_BT = torch.tensor([[*ids, *[ids[-1]] * (longest - len(ids))] for ids in prefixes], device=self.device)
        last = torch.tensor([longest - 1], device=self.device)  # all that goes through the last layer's MLP
        plan = Plan((), self._last_layer, last, None, self._reached)
        with self._run(plan, None):
            self._decoder(input_ids=ids_BT, use_cache=False)
        self._last_layer.clear()
        return [
            PrefixKV(tuple((k[row, :, : len(ids)], v[row, :, : len(ids)]) for k, v in plan.kv), len(ids))
            for row, ids in enumerate(prefixes)
        ]

    def label_logits(self, prefixes: Sequence[PrefixKV | None], pairs: Sequence[Pair]) -> torch.Tensor:
        """Logits ``[n, L]`` of each pair's label tokens after its suffix, float32 or wider.

        Rows of policies with fewer labels end in ``-inf``. The order of ``pairs`` is kept.
        """
        return self._answer(self.last_hidden(prefixes, pairs), [pair.label_token_ids for pair in pairs])

    def last_hidden(self, prefixes: Sequence[PrefixKV | None], pairs: Sequence[Pair]) -> torch.Tensor:
        """What the head reads ``[n, D]``: each pair's hidden state at its suffix's last token, in their order."""
        # Rows of one conversation must lie together: attention takes them as one slice.
        order = sorted(range(len(pairs)), key=lambda index: pairs[index].prefix)
        packed = [pairs[index] for index in order]
        ids, positions, last, policies = rows_of(packed, prefixes)
        device = self.device
        read_n = torch.tensor(last, device=device)
        own = Route.of_rows([policies[row] for row in last], device)
        plan = Plan(tuple(groups_of(packed, prefixes, device)), self._last_layer, read_n, own, self._reached)
        with self._run(plan, Route.of_rows(policies, device)):
            hidden_1ND = self._decoder(
                input_ids=torch.tensor([ids], device=device),
                position_ids=torch.tensor([positions], device=device),
                # A mask that is already 4D is taken as it is; the packed attention needs none.
                attention_mask=torch.zeros(1, 1, 1, 1, device=device, dtype=self._head.weight.dtype),
                use_cache=False,
            ).last_hidden_state
        self._last_layer.clear()
        hidden_nD = hidden_1ND[0, read_n]
        # The inverse of the sort.
        back = torch.empty(len(order), dtype=torch.long, device=device)
        back[torch.tensor(order, device=device)] = torch.arange(len(order), device=device)
        return hidden_nD[back]

    def _answer(self, hidden_nD: torch.Tensor, labels: Sequence[tuple[int, ...]]) -> torch.Tensor:
        width = max(map(len, labels))
        # Fill up with a label that exists; its logit is masked below.
        ids_nL = torch.tensor([row + row[:1] * (width - len(row)) for row in labels], device=hidden_nD.device)
        logits_nL = torch.einsum("nd,nld->nl", hidden_nD, self._head.weight[ids_nL])
        if getattr(self._head, "bias", None) is not None:
            logits_nL = logits_nL + self._head.bias[ids_nL]
        logits_nL = self._finish(logits_nL)
        logits_nL = logits_nL.float() if logits_nL.dtype in (torch.bfloat16, torch.float16) else logits_nL
        padded_nL = torch.tensor([[False] * len(row) + [True] * (width - len(row)) for row in labels])
        return logits_nL.masked_fill(padded_nL.to(logits_nL.device), float("-inf"))

    def _finish(self, logits_nL: torch.Tensor) -> torch.Tensor:
        """What some families do to logits after the head."""
        config = self.base.config
        if scaling := getattr(config, "logits_scaling", None):
            logits_nL = logits_nL / scaling
        if scale := getattr(config, "logit_scale", None):
            logits_nL = logits_nL * scale
        if cap := getattr(config, "final_logit_softcapping", None):
            logits_nL = torch.tanh(logits_nL / cap) * cap
        return logits_nL

    @torch.no_grad()
    def _check_answers_like_the_base(self) -> None:
        """Compare the packed forward without adapters to the stock model on a short prompt; BaseError if it fails."""
        size, cut = self._head.weight.shape[0], CHECK_TOKENS * 2 // 3
        # Unlike neighbours, so that a position that is off by one shows; labels from all over the vocabulary.
        ids = [(7 * step + 3) % size for step in range(CHECK_TOKENS)]
        labels = tuple(range(0, size, max(1, size // 64)))
        checkpointing = self._set_checkpointing(False)  # it would drop the cache
        with self.bank.disabled(), narrow_windows(self.base):
            stock = stock_answer(self.base, torch.tensor([ids], device=self.device))
            require_same_answers(
                self.base,
                stock[list(labels)],
                lambda: self.label_logits([self.prefix_kv(ids[:cut])], [Pair(0, 0, tuple(ids[cut:]), labels)])[0],
                self._reached,
            )
        self._set_checkpointing(checkpointing)


def packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls, ``[1, H, N, E]`` per layer; plain sdpa without a plan."""
    packed = running_plan()
    if packed is not None:
        packed.reached.add(getattr(module, "layer_idx", -1))
        if not packed.groups:
            packed.kv.append((_alone(key), _alone(value)))
    if packed is None or (not packed.groups and packed.last_layer.index != getattr(module, "layer_idx", None)):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, sliding_window=sliding_window, **kwargs
        )
    used = [name for name in _REFUSED_ATTENTION if kwargs.get(name) is not None]
    if used:
        raise BaseError(f"{type(module).__name__} uses {', '.join(used)} in its attention, which alora cannot run")
    if key.shape[-1] != value.shape[-1]:
        raise BaseError(
            f"{type(module).__name__} has keys of width {key.shape[-1]} and values of width {value.shape[-1]}, which "
            "alora does not support"
        )
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = int(module.layer_idx)  # pyright: ignore[reportArgumentType] every cached attention layer has it
    last = layer == packed.last_layer.index
    if last:
        packed.last_layer.read_only(packed.read_n, packed.route)
    if not packed.groups:  # the last layer of a prefix: only its K and V are kept
        return torch.zeros_like(query.transpose(1, 2), memory_format=torch.contiguous_format), None
    operands = (query.squeeze(0), key.squeeze(0), value.squeeze(0))
    if packed.side_by_side:
        return _side_by_side(packed, layer, operands, factor, sliding_window).unsqueeze(0), None
    parts = []
    for group in packed.groups:
        q, k, v = (x[:, group.rows] for x in operands)
        shape = Shape(group.lengths, factor, sliding_window, last_only=last)
        if group.kv is None:
            parts.append(attention_without_prefix(q, k, v, shape))
            continue
        prefix_k, prefix_v = group.kv.layers[layer]
        asked = q.index_select(1, group.last_n) if last else q
        out = shared_prefix_attention(asked, k, v, prefix_k, prefix_v, shape)
        # Rows that nobody reads stay zero; the MLP leaves them out, too.
        parts.append(torch.zeros_like(q).index_copy_(1, group.last_n, out) if last else out)
    attended = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    return attended.transpose(0, 1).unsqueeze(0).contiguous(), None


def _alone(x: torch.Tensor) -> torch.Tensor:
    """``x`` in memory that holds nothing else: a view of a fused q, k and v would keep all three."""
    return x if x.untyped_storage().nbytes() == x.nbytes else x.clone()


def _side_by_side(
    packed: Plan,
    layer: int,
    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scaling: float,
    window: int | None,
) -> torch.Tensor:
    lengths = tuple(length for group in packed.groups for length in group.lengths)
    owners = tuple(index for index, group in enumerate(packed.groups) for _ in group.lengths)
    suffixes = Suffixes(lengths, owners, scaling, window, last_only=layer == packed.last_layer.index)
    prefixes = [group.kv.layers[layer] for group in packed.groups if group.kv is not None]
    return attend_side_by_side(*operands, prefixes, suffixes)


AttentionInterface.register(ATTENTION, packed_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
