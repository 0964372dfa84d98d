"""Whether an adapter is one of this base, before anything is run."""

from dataclasses import replace

import pytest
import torch

from alora.errors import AdapterError
from alora.identity.certify import _require_fit
from tests.peft_reference import random_adapter
from tests.toy_models import toy_model

Q = "model.layers.{}.self_attn.q_proj"


def test_every_module_of_both_is_in_the_other_and_of_its_size():
    model = toy_model("qwen3")
    adapter = random_adapter(model, targets=["q_proj"])
    _require_fit(adapter, model)
    a_RD, b_OR = adapter.tensors[Q.format(2)]
    deeper = {**adapter.tensors, Q.format(3): (a_RD, b_OR)}
    cut = {name: pair for name, pair in adapter.tensors.items() if name != Q.format(2)}
    narrow = {**adapter.tensors, Q.format(2): (a_RD[:, 1:], b_OR)}
    short = {**adapter.tensors, Q.format(2): (a_RD, torch.cat((b_OR, b_OR)))}
    for tensors, layer in ((deeper, 3), (cut, 2), (narrow, 2), (short, 2)):
        with pytest.raises(AdapterError, match=rf"does not fit this base: 1 module.*first {Q.format(layer)}"):
            _require_fit(replace(adapter, tensors=tensors), model)


@pytest.mark.parametrize(("token", "fits"), [(0, True), (198, True), (199, False), (-1, False)])
def test_the_tokens_of_the_invocation_are_in_the_vocabulary(token, fits):
    model = toy_model("qwen3", vocab=199)
    adapter = random_adapter(model, targets=["q_proj"], invocation=(5, token))
    if fits:
        _require_fit(adapter, model)
        return
    with pytest.raises(AdapterError, match=rf"invoked by token {token}, and this base has 199 tokens"):
        _require_fit(adapter, model)
