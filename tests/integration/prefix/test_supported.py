"""A model class that the packed forward cannot run is refused by name; one that it can run is not."""

import pytest
import torch
import transformers

from alora.adapter.bank import Bank
from alora.adapter.folder import AdapterSpec, AdapterWeights
from alora.errors import BaseError
from alora.prefix.packed import PackedModel
from alora.prefix.plan import Pair
from alora.prefix.supported import require_same_answers

SHAPE = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
PREFIX, SUFFIX, LABELS = (20, 31, 42, 53, 64), (5, 6, 7, 30), (11, 12)


def _base(name: str, **config):
    torch.manual_seed(0)
    shape = getattr(transformers, f"{name}Config")(**config)
    return getattr(transformers, f"{name}ForCausalLM")(shape).eval().requires_grad_(False)


def _packed(base, target: str) -> PackedModel:
    """With an adapter whose B is zero, which changes nothing."""
    linear = {name: module for name, module in base.named_modules() if name.rsplit(".", 1)[-1] == target}
    tensors = {
        name: (torch.randn(2, module.in_features), torch.zeros(module.out_features, 2))
        for name, module in linear.items()
    }
    assert tensors
    return PackedModel(base, Bank(base, [AdapterWeights(AdapterSpec(2, 2.0, (target,), SUFFIX[:3]), tensors)]))


@pytest.mark.parametrize(
    ("name", "target", "config"),
    [
        ("Bloom", "dense", {"vocab_size": 97, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
        (
            "Lfm2",
            "q_proj",
            SHAPE | {"num_key_value_heads": 2, "intermediate_size": 48, "layer_types": ["conv", "full_attention"]},
        ),
    ],
)
def test_a_class_that_cannot_run_is_refused_by_name_and_cause(name, target, config):
    with pytest.raises(BaseError, match=rf"{name}ForCausalLM cannot run .*Error: .* not\s+supported") as caught:
        _packed(_base(name, **config), target)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("name", "target", "config"),
    [
        ("OPT", "q_proj", SHAPE | {"ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 64}),
        ("GPTNeoX", "dense", SHAPE | {"intermediate_size": 48}),
    ],
)
def test_a_class_of_another_build_runs(name, target, config):
    base = _base(name, **config)
    wanted = base(input_ids=torch.tensor([PREFIX + SUFFIX])).logits[0, -1, list(LABELS)]
    model = _packed(base, target)
    found = model.label_logits([model.prefix_kv(PREFIX)], [Pair(0, 0, SUFFIX, LABELS)])[0]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_other_logits_are_refused_and_a_full_device_is_no_matter_of_the_class():
    same = torch.ones(3)
    require_same_answers("Model", lambda: (same, same + 1e-5))
    with pytest.raises(BaseError, match="Model computes its logits in a way"):
        require_same_answers("Model", lambda: (same, 1.1 * same))

    def full():
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError):
        require_same_answers("Model", full)
