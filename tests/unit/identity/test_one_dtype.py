"""A base that does not repeat itself proves nothing about an adapter, and one that changes no logit does nothing."""

import pytest
import torch

from alora.identity import one_dtype
from alora.identity.capture import Capture, Site, make_call
from alora.identity.one_dtype import ACTIVATION, REPEAT, _logits_findings, _unrepeatable

CALL = make_call("pair", [[1, 2, 3, 4], [1, 2]], [2, 1], pad_id=0, device="cpu")


def captured(*changed: tuple[int, int]) -> Capture:
    keys = torch.zeros(2, 4, 1, 2)
    for row, position in changed:
        keys[row, position] = 1.0
    return Capture({Site(0, "K"): keys}, torch.zeros(2, 7))


@pytest.mark.parametrize("place", [(0, 0), (0, 3), (1, 2), (1, 3)], ids=str)
def test_a_difference_at_any_token_counts(place, monkeypatch):
    monkeypatch.setattr(one_dtype, "capture", lambda *_: captured(place))
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
