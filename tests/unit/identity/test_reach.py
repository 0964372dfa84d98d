"""Which K and V an adapter can reach, from the names of its modules alone."""

import pytest

from alora.identity.capture import OUTPUT, Site
from alora.identity.reach import reached_sites

LAYERS = 4


def sites(*names: str) -> set[str]:
    return {str(site) for site in reached_sites(names, LAYERS)}


def below(layer: int) -> set[str]:
    """Every tensor after ``layer``, and the output."""
    return {f"layer {later} {kind}" for later in range(layer + 1, LAYERS) for kind in "KV"} | {"output"}


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("base_model.model.model.layers.1.self_attn.k_proj", {"layer 1 K"}),
        ("base_model.model.model.layers.1.self_attn.v_proj", {"layer 1 V"}),
        ("base_model.model.model.layers.1.self_attn.qkv_proj", {"layer 1 K", "layer 1 V"}),
        ("base_model.model.transformer.h.1.attn.c_attn", {"layer 1 K", "layer 1 V"}),
        *(
            (f"base_model.model.model.layers.1.self_attn.{fused}", {"layer 1 K", "layer 1 V"})
            for fused in ("kv_proj", "query_key_value", "Wqkv", "kv_a_proj_with_mqa", "kv_b_proj")
        ),
        ("base_model.model.model.layers.1.self_attn.q_proj", set()),
        ("base_model.model.model.layers.1.self_attn.o_proj", set()),
        ("base_model.model.model.layers.1.mlp.gate_proj", set()),
        ("base_model.model.model.layers.1.mlp.experts.3.down_proj", set()),
    ],
)
def test_one_module_of_layer_1(name: str, own: set[str]):
    assert sites(name) == own | below(1)


def test_the_last_mlp_reaches_the_output_only():
    assert sites("model.layers.3.mlp.down_proj") == {"output"}


def test_the_head_reaches_no_kv():
    assert sites("base_model.model.lm_head") == set()


def test_an_embedding_reaches_everything():
    assert sites("base_model.model.model.embed_tokens") == below(-1)


def test_no_module_reaches_nothing():
    assert sites() == set()


def test_the_earliest_module_decides_and_direct_ones_add():
    reached = reached_sites(["m.layers.2.mlp.up_proj", "m.layers.0.self_attn.v_proj"], LAYERS)
    assert Site(0, "V") in reached
    assert Site(0, "K") not in reached
    assert reached >= {Site(1, "K"), Site(1, "V"), OUTPUT}
