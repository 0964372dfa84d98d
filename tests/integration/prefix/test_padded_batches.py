"""Ragged rows, which the split packs without padding, against PEFT's aLoRA: row by row, and as one padded batch.

PEFT counts an activation from the end of the padded row, and its own padding costs next to nothing: on either side its
batch stays within the bounds below of its own rows, so all three must agree. Worst relative error measured over
families and sides, of loss and gradients: PEFT padded against PEFT row by row 1.3e-15 in float64 and 1.3e-6 in float32;
ours against either 1.3e-15 and 2.4e-6. All by sdpa: eager attention turns float64 padding into NaN (transformers 5.19).
"""

import pytest
import torch

from alora.activation import peft_offset
from alora.adapter.bank import Bank
from alora.prefix.packed import PackedModel
from alora.training.examples import Example, Target, collate
from alora.training.loss import LabelledLogits, label_losses
from tests.integration.prefix.test_equals_peft import _worst
from tests.peft_reference import peft_gradients, peft_label_logits, peft_model, random_adapter
from tests.toy_models import FAMILIES, toy_model, toy_tokens

BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5}
LABELS = (11, 12)
INVOCATION = (5, 6, 7)
LENGTHS = ((5, 2), (21, 6), (13, 1), (9, 9), (30, 3), (2, 4))  # prefix tokens, and suffix tokens behind the invocation
PAD = 0


def _rows() -> list[Example]:
    return [
        Example(toy_tokens(prefix, seed), (Target(0, (*INVOCATION, *toy_tokens(suffix, 50 + seed)), LABELS, seed % 2),))
        for seed, (prefix, suffix) in enumerate(LENGTHS)
    ]


def _packed(model, adapter, dtype):
    """Loss and gradients of one pass over all rows."""
    bank = Bank(model, [adapter], dtype=dtype, trainable=True)
    packed, batch = PackedModel(model, bank).train(), collate(_rows())["batch"]
    kv = [packed.prefix_kv(prefix) for prefix in batch.prefixes]
    losses_n = label_losses(LabelledLogits(packed.label_logits(kv, batch.pairs), torch.tensor(batch.labels)))
    loss = (losses_n * losses_n.new_tensor(batch.weights)).sum()
    loss.backward()
    gradients = bank.gradients(0)
    bank.release()
    return loss.item(), gradients


def _by_row(model, adapter):
    reference, rows = peft_model(model, adapter), _rows()
    total = 0.0
    for row in rows:
        target = row.targets[0]
        logits = peft_label_logits(reference, row.prefix_ids, target.suffix_ids, LABELS)
        loss = torch.nn.functional.cross_entropy(logits[None], torch.tensor([target.label])) / len(rows)
        loss.backward()
        total += loss.item()
    return total, peft_gradients(reference)


def _padded(model, adapter, side, mistake=""):
    """PEFT on one rectangle with an attention mask; it finds the activation of every row by itself.

    Mistakes to see: ``unmasked`` padding, and a ``count`` of the activation that forgets the padding behind the row.
    """
    reference, rows = peft_model(model, adapter), _rows()
    prompts = [row.prefix_ids + row.targets[0].suffix_ids for row in rows]
    width = max(map(len, prompts))
    ids_BT = torch.full((len(rows), width), PAD)
    mask_BT = torch.zeros_like(ids_BT)
    for place, prompt in enumerate(prompts):
        where = slice(width - len(prompt), None) if side == "left" else slice(None, len(prompt))
        ids_BT[place, where] = torch.tensor(prompt)
        mask_BT[place, where] = 1
    positions_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)
    options = {}
    if mistake == "unmasked":
        mask_BT = torch.ones_like(mask_BT)
    if mistake == "count":
        options["alora_offsets"] = [
            peft_offset(len(p), len(row.prefix_ids)) for p, row in zip(prompts, rows, strict=True)
        ]
    logits_BTV = reference(input_ids=ids_BT, attention_mask=mask_BT, position_ids=positions_BT, **options).logits
    last_B = torch.tensor([width - 1 if side == "left" else len(prompt) - 1 for prompt in prompts])
    logits_BL = logits_BTV[torch.arange(len(rows)), last_B][:, list(LABELS)]
    loss = torch.nn.functional.cross_entropy(logits_BL, torch.tensor([row.targets[0].label for row in rows]))
    loss.backward()
    return loss.item(), peft_gradients(reference)


def _distance(one, other) -> float:
    """The largest relative error of the loss and of every gradient of A and B."""
    return max(abs(one[0] - other[0]) / other[0], _worst([one[1]], [other[1]]))


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_ragged_batch_equals_peft_by_row_and_padded(family, dtype):
    model = toy_model(family, dtype)
    adapter = random_adapter(model, dtype=dtype, invocation=INVOCATION)
    by_row, ours = _by_row(model, adapter), _packed(model, adapter, dtype)
    assert _distance(ours, by_row) <= BOUNDS[dtype]
    for side in ("left", "right"):
        padded = _padded(model, adapter, side)
        assert _distance(padded, by_row) <= BOUNDS[dtype]  # what PEFT's padding costs PEFT
        assert _distance(ours, padded) <= BOUNDS[dtype]


@pytest.mark.parametrize(("side", "mistake"), [("left", "unmasked"), ("right", "count")])
def test_padding_handled_wrongly_is_far_away(side, mistake):
    """The negative control: the bounds see padding that is attended to, and an activation that padding has moved."""
    model = toy_model("qwen3", torch.float64)
    adapter = random_adapter(model, dtype=torch.float64, invocation=INVOCATION)
    assert _distance(_packed(model, adapter, torch.float64), _padded(model, adapter, side, mistake)) > 1e-3
