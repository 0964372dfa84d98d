"""Many conversations as one padded batch give what conversation after conversation gives, gradients included."""

from dataclasses import replace

import pytest
import torch

from alora.adapter.bank import Bank
from alora.adapter.folder import AdapterSpec, new_adapter
from alora.prefix import side_by_side
from alora.prefix.attention import Shape, shared_prefix_attention
from alora.prefix.packed import PackedModel
from alora.prefix.passes import Pair
from alora.prefix.side_by_side import Suffixes, attend_side_by_side
from tests.toy_models import toy_model

HEADS, GROUPS, WIDTH = 4, 2, 8
PREFIXES = (13, 5, 21, 1, 9)


def operands(lengths: tuple[int, ...]) -> tuple[list[torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]]]:
    draw = torch.Generator().manual_seed(0)

    def random(heads: int, rows: int) -> torch.Tensor:
        return torch.randn(heads, rows, WIDTH, generator=draw, dtype=torch.float64)

    own = [random(heads, sum(lengths)).requires_grad_() for heads in (HEADS, GROUPS, GROUPS)]
    return own, [(random(GROUPS, length), random(GROUPS, length)) for length in PREFIXES]


def one_after_another(own, prefixes, suffixes: Suffixes) -> torch.Tensor:
    """The reference: the merged attention, suffix by suffix."""
    outputs, start = [], 0
    for length, owner in zip(suffixes.lengths, suffixes.owners, strict=True):
        q, k, v = (x[:, start : start + length] for x in own)
        shape = Shape((length,), suffixes.scaling, suffixes.window, suffixes.last_only)
        asked = q[:, -1:] if suffixes.last_only else q
        out = shared_prefix_attention(asked, k, v, *prefixes[owner], shape)
        blank = torch.zeros(HEADS, length - out.shape[1], WIDTH, dtype=out.dtype)
        outputs += [blank, out]
        start += length
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("chunk_tokens", [16384, 40])
@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("window", [None, 6, 15])
@pytest.mark.parametrize(("lengths", "owners"), [((4,) * 5, (0, 1, 2, 3, 4)), ((3, 1, 7, 2, 5, 4), (0, 0, 1, 2, 3, 4))])
def test_equals_conversation_after_conversation(lengths, owners, window, last_only, chunk_tokens, monkeypatch):
    monkeypatch.setattr(side_by_side, "_CHUNK_TOKENS", chunk_tokens)
    side_by_side._chunks.cache_clear()
    own, prefixes = operands(lengths)
    suffixes = Suffixes(lengths, owners, WIDTH**-0.5, window, last_only)
    outputs = [function(own, prefixes, suffixes) for function in (one_after_another, _packed)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=1e-14)
    weight = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted, found = (torch.autograd.grad((out * weight).sum(), own) for out in outputs)
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-13)


def _packed(own, prefixes, suffixes: Suffixes) -> torch.Tensor:
    return attend_side_by_side(*own, prefixes, suffixes).transpose(0, 1)


def test_a_planted_fault_is_seen(monkeypatch):
    """Negative control: one padded key that is not hidden."""
    own, prefixes = operands((4,) * 5)
    suffixes = Suffixes((4,) * 5, (0, 1, 2, 3, 4), WIDTH**-0.5, None)
    right = one_after_another(own, prefixes, suffixes)
    chunks = side_by_side._chunks

    def shown(*arguments):
        (chunk,) = chunks(*arguments)
        visible = chunk.visible.clone()
        visible[1, :, :, PREFIXES[1] + 4] = True
        return [replace(chunk, visible=visible)]

    monkeypatch.setattr(side_by_side, "_chunks", shown)
    assert (_packed(own, prefixes, suffixes) - right).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_a_pass_of_single_suffixes_takes_this_way_and_changes_no_gradient(family, monkeypatch):
    model = toy_model(family, torch.float64)
    spec = AdapterSpec(rank=4, alpha=8.0, targets=("down_proj", "k_proj", "q_proj"), invocation_ids=(5,))
    bank = Bank(model, [new_adapter(spec, model, seed) for seed in (0, 1)], dtype=torch.float64, trainable=True)
    torch.nn.init.normal_(bank.b_POR[0], generator=torch.Generator().manual_seed(2))
    packed = PackedModel(model, bank)
    prefixes = [packed.prefix_kv(range(7, 7 + length)) for length in PREFIXES]
    pairs = [Pair(place, place % 2, tuple(range(5, 9 + place)), (3, 4)) for place in range(len(PREFIXES))]
    taken = []
    monkeypatch.setattr(
        "alora.prefix.packed.attend_side_by_side", lambda *a: taken.append(1) or attend_side_by_side(*a)
    )

    def gradients() -> list[torch.Tensor]:
        bank.zero_grad()
        packed.label_logits(prefixes, pairs).square().sum().backward()
        return [parameter.grad for parameter in bank.parameters()]

    found = gradients()
    assert len(taken) == len(model.model.layers)
    monkeypatch.setattr("alora.prefix.passes.MOST_SUFFIXES", 0)
    wanted = gradients()
    assert len(taken) == len(model.model.layers)
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)
