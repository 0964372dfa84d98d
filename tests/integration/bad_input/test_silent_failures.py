"""What PEFT lets pass in silence, where a setting cannot be asked for: it cannot happen here, or stops the run."""

import dataclasses
import json

import torch

from alora.adapter.bank import Bank
from alora.adapter.folder import CONFIG_FILE, load_adapter, save_adapter
from alora.prefix.packed import PackedModel
from alora.prefix.passes import Pair
from tests.peft_reference import random_adapter
from tests.toy_models import toy_model

PREFIX, SUFFIX, LABELS = tuple(range(20, 33)), (5, 6, 7, 40, 41), (11, 12)


def label_logits(model, adapter, train=False):
    bank = Bank(model, [adapter], dtype=model.dtype, trainable=train)
    packed = PackedModel(model, bank)
    packed.train(train)
    with torch.no_grad():
        logits = packed.label_logits([packed.prefix_kv(PREFIX)], [Pair(0, 0, SUFFIX, LABELS)])
    bank.release()
    return logits


def test_dropout_in_an_adapters_config_changes_nothing(tmp_path):
    """It belongs to a training that is over; also the train mode of the packed model draws none."""
    model = toy_model("qwen3")
    adapter = random_adapter(model)
    save_adapter(adapter, tmp_path / "adapter", "toy")
    config = json.loads((tmp_path / "adapter" / CONFIG_FILE).read_text())
    (tmp_path / "adapter" / CONFIG_FILE).write_text(json.dumps(config | {"lora_dropout": 0.5}))
    loaded = load_adapter(tmp_path / "adapter")
    assert loaded.digest == adapter.digest
    assert torch.equal(label_logits(model, loaded), label_logits(model, adapter, train=True))


def test_dropout_of_the_base_stays_off():
    plain, dropping = toy_model("llama"), toy_model("llama")
    dropping.config.attention_dropout = 0.5
    for module in dropping.modules():
        if hasattr(module, "attention_dropout"):
            vars(module)["attention_dropout"] = 0.5
    adapter = random_adapter(plain)
    assert torch.equal(label_logits(plain, adapter, train=True), label_logits(dropping, adapter, train=True))


def test_scoring_runs_the_adapter_in_the_bases_precision():
    """PEFT keeps float32 on a bfloat16 base, vLLM casts: a verdict must be the one that is served."""
    model = toy_model("qwen3", torch.bfloat16)
    adapter = random_adapter(model)
    cast = {name: (a.bfloat16().float(), b.bfloat16().float()) for name, (a, b) in adapter.tensors.items()}
    served = dataclasses.replace(adapter, tensors=cast)
    assert torch.equal(label_logits(model, adapter), label_logits(model, served))
    bank = Bank(model, [adapter], dtype=torch.float32)  # the negative control: PEFT's default is another number
    kept = PackedModel(model, bank)
    logits = kept.label_logits([kept.prefix_kv(PREFIX)], [Pair(0, 0, SUFFIX, LABELS)])
    bank.release()
    assert not torch.equal(logits, label_logits(model, adapter))
