"""Integers behind floats, the places that a comparison names, and which K and V an adapter can reach."""

import math

import pytest
import torch

from alora.identity.capture import OUTPUT, Call, Capture, Site, make_call
from alora.identity.equality import (
    bits_differ,
    changed_shares,
    compare,
    count_sites,
    inert_findings,
    prefix_findings,
    reached_sites,
)

K, V = Site(0, "K"), Site(0, "V")
CALL = make_call("pair", [[1, 2, 3, 4, 5], [1, 2, 3]], [3, 1], pad_id=0, device="cpu")  # row 1 has two pads


def captures(change=None) -> tuple[Capture, Capture]:
    """A base and an adapted capture that obey the definition, then ``change(K, V)`` on the adapted tensors."""
    generator = torch.Generator().manual_seed(0)
    base = {site: torch.randn(2, 5, 2, 4, generator=generator) for site in (K, V)}
    adapted = {site: tensor.clone() for site, tensor in base.items()}
    for tensor in adapted.values():
        tensor[:, 3:] += 1.0
    if change is not None:
        change(adapted[K], adapted[V])
    logits = torch.zeros(2, 7)
    return Capture(base, logits), Capture(adapted, logits)


def test_rows_are_left_padded_and_positions_count_tokens():
    assert CALL.input_ids_BT.tolist() == [[1, 2, 3, 4, 5], [0, 0, 1, 2, 3]]
    assert CALL.attention_mask_BT.tolist() == [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]
    assert CALL.position_ids_BT.tolist() == [[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]]
    assert CALL.activation_B == (3, 3)
    assert CALL.offsets() == [2, 2]
    assert CALL.offsets(shift=1) == [1, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_one_ulp_and_signed_zero_differ(dtype: torch.dtype):
    one = torch.tensor([1.0, 0.0, 5.0, math.nan], dtype=dtype)
    other = torch.tensor([1.0 + torch.finfo(dtype).eps, -0.0, 5.0, math.nan], dtype=dtype)
    assert bits_differ(one, other).tolist() == [True, True, False, False]
    assert torch.equal(one[1], other[1])  # as floats, the zeros would have been equal


def test_the_definition_holds():
    assert compare(CALL, *captures(), reached={K, V}) == []


def test_a_changed_prefix_element_is_placed():
    def change(_keys, values):
        values[1, 2, 1, 3] += 1e-7

    findings = compare(CALL, *captures(change), reached={K, V})
    assert [str(finding) for finding in findings] == ["pair, row 1, layer 0 V, position 0: 1 element(s) differ"]


def test_padding_is_not_compared():
    def change(keys, _values):
        keys[1, 1] += 1.0

    assert compare(CALL, *captures(change), reached={K, V}) == []


def test_the_first_position_comes_first():
    def change(keys, values):
        keys[0, 2] += 1.0
        values[0, 1] += 1.0

    findings = prefix_findings(CALL, *captures(change))
    assert [(finding.site, finding.position, finding.elements) for finding in findings] == [
        ("layer 0 V", 1, 8),
        ("layer 0 K", 2, 8),
    ]


def test_no_difference_at_the_activation_is_a_finding_only_where_the_adapter_reaches():
    base, _ = captures()
    adapted = captures(lambda keys, _values: keys[1, 3].copy_(base.sites[K][1, 3]))[1]
    findings = inert_findings(CALL, base, adapted, reached={K, V})
    assert [(finding.site, finding.row, finding.position) for finding in findings] == [("layer 0 K", 1, 1)]
    assert inert_findings(CALL, base, adapted, reached={V}) == []


def test_counts():
    def change(keys, _values):
        keys[0, 0, 0, 0] += 1.0

    counts = count_sites(CALL, *captures(change))
    assert (counts[K].prefix_elements, counts[K].prefix_different) == (4 * 8, 1)
    assert (counts[V].activation_elements, counts[V].activation_different) == (16, 16)
    assert (counts[K] + counts[V]).prefix_elements == 2 * 4 * 8


def test_offsets_outside_the_row_are_refused():
    late = Call("late", CALL.input_ids_BT, CALL.attention_mask_BT, CALL.position_ids_BT, (4, 4), CALL.padding_B)
    with pytest.raises(ValueError, match="outside a prompt of 5 tokens"):
        late.offsets(shift=1)


def test_shares_to_look_at_start_at_the_rows_own_first_token():
    def change(_keys, values):
        values[1, 2, 1, 3] += 1e-7  # one of eight elements, in the first token of the padded row

    shares = changed_shares(CALL, *captures(change))
    assert list(shares) == ["pair, row 0", "pair, row 1"]
    assert shares["pair, row 0"] == {str(site): [0.0, 0.0, 0.0, 1.0, 1.0] for site in (K, V)}
    assert shares["pair, row 1"] == {str(K): [0.0, 1.0, 1.0], str(V): [1 / 8, 1.0, 1.0]}


def test_each_row_is_compared_up_to_its_own_activation():
    uneven = make_call("pair", [[1, 2, 3, 4, 5], [1, 2, 3, 4]], [2, 3], pad_id=0, device="cpu")
    assert uneven.activation_B == (2, 4)
    base = {site: torch.zeros(2, 5, 2, 4) for site in (K, V)}
    adapted = {site: torch.zeros(2, 5, 2, 4) for site in (K, V)}
    for row, activation in enumerate(uneven.activation_B):
        for tensor in adapted.values():
            tensor[row, activation:] = 1.0
    pair = Capture(base, torch.zeros(2, 7)), Capture(adapted, torch.zeros(2, 7))
    assert compare(uneven, *pair, reached={K, V}) == []
    adapted[K][1, 3] = 1.0
    assert [(finding.row, finding.position) for finding in prefix_findings(uneven, *pair)] == [(1, 2)]
    assert inert_findings(uneven, *pair, reached={K, V}) == []


LAYERS = 4


def sites(*names: str) -> set[str]:
    return {str(site) for site in reached_sites(names, LAYERS)}


def below(layer: int) -> set[str]:
    """Every tensor after ``layer``, and the output."""
    return {f"layer {later} {kind}" for later in range(layer + 1, LAYERS) for kind in "KV"} | {"output"}


LAYER = "base_model.model.model.layers.1."
BOTH = {"layer 1 K", "layer 1 V"}


@pytest.mark.parametrize(
    ("name", "reached"),
    [
        (f"{LAYER}self_attn.k_proj", {"layer 1 K"} | below(1)),
        (f"{LAYER}self_attn.v_proj", {"layer 1 V"} | below(1)),
        *((f"{LAYER}self_attn.{fused}", BOTH | below(1))
          for fused in ("qkv_proj", "kv_proj", "query_key_value", "Wqkv", "kv_a_proj_with_mqa", "kv_b_proj")),
        ("base_model.model.transformer.h.1.attn.c_attn", BOTH | below(1)),
        *((f"{LAYER}{other}", below(1))
          for other in ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.experts.3.down_proj")),
        ("model.layers.3.mlp.down_proj", {"output"}),
        ("base_model.model.lm_head", set()),
        ("base_model.model.model.embed_tokens", below(-1)),
    ],
)  # fmt: skip
def test_what_one_module_reaches(name: str, reached: set[str]):
    assert sites(name) == reached


def test_the_earliest_module_decides_and_direct_ones_add():
    reached = reached_sites(["m.layers.2.mlp.up_proj", "m.layers.0.self_attn.v_proj"], LAYERS)
    assert Site(0, "V") in reached
    assert Site(0, "K") not in reached
    assert reached >= {Site(1, "K"), Site(1, "V"), OUTPUT}
