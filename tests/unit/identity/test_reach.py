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
