"""Whether an adapter is one of this base; whether the base repeats itself, and the adapter does anything."""

from dataclasses import replace

import pytest
import torch

from alora.errors import AdapterError
from alora.identity import certify as module
from alora.identity.capture import Capture, Site, make_call
from alora.identity.certify import ACTIVATION, REPEAT, _logits_findings, _require_fit, _unrepeatable
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


CALL = make_call("pair", [[1, 2, 3, 4], [1, 2]], [2, 1], pad_id=0, device="cpu")


def captured(*changed: tuple[int, int]) -> Capture:
    keys = torch.zeros(2, 4, 1, 2)
    for row, position in changed:
        keys[row, position] = 1.0
    return Capture({Site(0, "K"): keys}, torch.zeros(2, 7))


@pytest.mark.parametrize("place", [(0, 0), (0, 3), (1, 2), (1, 3)], ids=str)
def test_a_difference_at_any_token_counts(place, monkeypatch):
    monkeypatch.setattr(module, "capture", lambda *_: captured(place))
    (found,) = _unrepeatable(torch.nn.Identity(), CALL, {"pair": captured()})
    assert (found.check, f"row {place[0]}" in found.detail) == (REPEAT, True)
    assert _unrepeatable(torch.nn.Identity(), CALL, {"pair": captured(place)}) == []


@pytest.mark.parametrize("inert", [(), (0,), (1,), (0, 1)], ids=str)
def test_each_row_needs_a_logit_that_differs(inert):
    base, logits_BV = captured(), torch.zeros(2, 7)
    logits_BV[[row for row in (0, 1) if row not in inert], 3] = 1e-6
    found = _logits_findings(CALL, base, Capture(base.sites, logits_BV))
    assert [(item.check, item.detail.partition(":")[0]) for item in found] == [
        (ACTIVATION, f"pair, row {row}") for row in inert
    ]
