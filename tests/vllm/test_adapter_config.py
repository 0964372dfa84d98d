"""What an adapter says of itself is read whole, or the adapter is refused."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from alora.errors import AdapterError
from alora.vllm_plugin import carried_request, compat
from alora.vllm_plugin.adapter_config import read_config
from alora.vllm_plugin.lora_ids import Records
from tests.vllm.toy_engine import lora_request
from tests.vllm.toy_models import ALL_LINEAR, ToyAdapter, edit_config, write_adapter
from tests.vllm.toys import INVOCATION, prompt


@pytest.mark.parametrize("tokens", ["##A", [1, -2], [True], {"a": 1}, [], "", 0])
def test_a_damaged_configuration_is_refused_and_not_taken_for_plain(engine, toys, tmp_path, tokens):
    broken = tmp_path / "broken"
    shutil.copytree(toys["linear"].path, broken)
    edit_config(str(broken), alora_invocation_tokens=tokens)
    with pytest.raises(AdapterError, match="not a list of token ids"):
        engine.ask_one(prompt(40), ToyAdapter("broken", 90, str(broken), ()))
    with pytest.raises(AdapterError, match="not a list of token ids"):
        engine.core.add_lora(lora_request(ToyAdapter("broken", 93, str(broken), ())))


def test_what_this_vllm_would_drop_from_a_configuration_is_refused(toys, tmp_path, monkeypatch):
    """vLLM before 0.32 knows six keys and drops the others without a word."""
    few = frozenset(["r", "lora_alpha", "target_modules", "bias", "modules_to_save", "use_rslora", "use_dora"])
    monkeypatch.setattr(compat, "peft_fields", lambda: few)
    for number, (key, value) in enumerate(
        (
            ("rank_pattern", {"q_proj": 4}),
            ("alpha_pattern", {"q_proj": 4}),
            ("lora_bias", True),
            ("init_lora_weights", "pissa_niter_4"),
        )
    ):
        folder = tmp_path / str(number)
        shutil.copytree(toys["linear"].path, folder)
        assert read_config(str(folder), "shown").is_alora
        edit_config(str(folder), **{key: value})
        with pytest.raises(AdapterError, match=f"sets {key}, which vLLM .* does not read"):
            read_config(str(folder), "shown")
        edit_config(str(folder), alora_invocation_tokens=None)
        assert not read_config(str(folder), "shown").is_alora, "plain LoRA is vLLM's own business"


def test_a_bundle_that_lost_its_invocation_tokens_is_refused(engine, toys, tmp_path):
    stripped = tmp_path / "stripped"
    shutil.copytree(toys["linear"].path, stripped)
    edit_config(str(stripped), alora_invocation_tokens=None)
    engine.ask_one(prompt(40), ToyAdapter("was plain", 91, str(stripped), ()))  # nothing tells it from plain LoRA
    (stripped / "alora.json").write_text(json.dumps({"activated": True}))
    with pytest.raises(AdapterError):
        engine.ask_one(prompt(40), ToyAdapter("stripped", 92, str(stripped), ()))


def test_an_adapter_of_the_first_alora_package_is_not_served_as_plain_lora(engine, toys, tmp_path):
    earlier = tmp_path / "earlier"
    shutil.copytree(toys["linear"].path, earlier)
    edit_config(str(earlier), alora_invocation_tokens=None, invocation_string="check")
    with pytest.raises(AdapterError):
        engine.ask_one(prompt(40), ToyAdapter("earlier", 194, str(earlier), ()))


@pytest.mark.parametrize(
    ("targets", "reached"),
    [(["q_proj"], False), (["model.lm_head"], True), (".*_proj", False), ("lm_head|.*_proj", True)],
)
def test_an_adapted_head_is_seen_in_names_and_patterns(toys, tmp_path, targets, reached):
    shutil.copytree(toys["linear"].path, tmp_path, dirs_exist_ok=True)
    edit_config(str(tmp_path), target_modules=targets)
    assert read_config(str(tmp_path), "shown").adapts_head == reached


@pytest.mark.parametrize("kind", ["bin", "pt"])
def test_an_alora_in_a_pickle_is_refused(toys, tmp_path, kind):
    """vLLM would run it, and nothing here reads a pickle to see what it holds."""
    odd = shutil.copytree(toys["linear"].path, tmp_path / "odd")
    weights = load_file(odd / "adapter_model.safetensors")
    torch.save(weights, odd / f"adapter_model.{kind}")
    assert Records().read(str(odd)).config.is_alora, "vLLM goes by the other file"
    (odd / "adapter_model.safetensors").unlink()
    with pytest.raises(AdapterError, match=r"no adapter_model\.safetensors .* save it with safetensors"):
        Records().read(str(odd))
    edit_config(str(odd), alora_invocation_tokens=None)
    assert not Records().read(str(odd)).config.is_alora, "plain LoRA is vLLM's own business"


def test_weights_of_a_head_that_the_configuration_does_not_name_are_refused(toys, tmp_path):
    """vLLM goes by the file and would run them, where the plugin takes the head for the base's."""
    odd = shutil.copytree(toys["linear"].path, tmp_path / "odd")
    weights = load_file(odd / "adapter_model.safetensors")
    head = {f"base_model.model.lm_head.lora_{half}.weight": torch.ones(8, 8) for half in "AB"}
    save_file({**weights, **head}, odd / "adapter_model.safetensors")
    with pytest.raises(AdapterError, match=r"lm_head.* target_modules"):
        Records().read(str(odd))
    bare = {name.removeprefix(PREFIX): half for name, half in head.items()}  # vLLM takes them so, too
    edit_config(str(odd), alora_invocation_tokens=None)
    save_file({**weights, **bare}, odd / "adapter_model.safetensors")
    with pytest.raises(AdapterError, match=r"lm_head.* target_modules"):
        Records().read(str(odd))
    save_file({**weights, **head}, odd / "adapter_model.safetensors")
    edit_config(str(odd), target_modules=[*ALL_LINEAR, "lm_head"])
    assert Records().read(str(odd)).config.adapts_head


PREFIX = "base_model.model."
A, B = (f"base_model.model.model.layers.0.self_attn.q_proj.lora_{half}.weight" for half in "AB")
EMBEDDING = "base_model.model.model.embed_tokens.lora_embedding_A"
NO_LINEAR = "is not a LoRA weight of a linear layer"


@pytest.mark.parametrize(
    ("changes", "tensors", "said"),
    [
        ({"r": 4}, {}, "says 4"),
        ({"r": None}, {}, "says None"),
        ({"rank_pattern": {"q_proj": 4}}, {}, "q_proj.* says 4"),
        ({}, {A: torch.ones(16, 64)}, "says 8"),
        ({}, {EMBEDDING: torch.ones(8, 320)}, NO_LINEAR),
        ({}, {A.replace("_A.weight", "_B.bias"): torch.ones(8)}, NO_LINEAR),
        ({}, {A: torch.ones(8, 64, 1)}, NO_LINEAR),
        ({}, {A.replace(".0.", ".9."): torch.ones(8, 64)}, "has no B"),
        ({}, {A.removeprefix(PREFIX): torch.ones(8, 64)}, NO_LINEAR),
    ],
)
def test_an_alora_whose_weights_do_not_fit_its_configuration_is_refused(toys, tmp_path, changes, tensors, said):
    """vLLM goes by the file, and would answer where PEFT refuses or answers otherwise."""
    odd = shutil.copytree(toys["linear"].path, tmp_path / "odd")
    edit_config(str(odd), **changes)
    save_file(load_file(odd / "adapter_model.safetensors") | tensors, odd / "adapter_model.safetensors")
    with pytest.raises(AdapterError, match=said):
        Records().read(str(odd))
    edit_config(str(odd), alora_invocation_tokens=None)
    assert not Records().read(str(odd)).config.is_alora, "plain LoRA is vLLM's own business"


@pytest.mark.parametrize(
    "how",
    [
        {"targets": "all-linear"},
        {"targets": r".*\.self_attn\.(q|v)_proj"},
        {"rank_pattern": {r"layers\.0\..*q_proj": 4, "down_proj": 12}, "alpha_pattern": {"v_proj": 64}},
        {"targets": ["q_proj", "v_proj"], "layers_to_transform": [1]},
        {"targets": ["q_proj", "lm_head"]},  # PEFT saves the base's own head, too
        {"seed": 3},  # rsLoRA
    ],
)
def test_what_peft_writes_fits(toys, tmp_path, how):
    folder = write_adapter(tmp_path / "written", toys.base, INVOCATION, **{"seed": 1} | how)
    assert Records().read(folder).config.is_alora


@pytest.mark.parametrize(
    ("was", "becomes"),
    [("base_model.model.model.", "base_model.model."), ("layers.1.", "layers.9."), ("layers.1.", "layers.01.")],
)
def test_an_alora_on_layers_that_the_base_lacks_is_refused(engine, toys, tmp_path, was, becomes):
    """vLLM passes over them, and the base would answer for the adapter."""
    odd = shutil.copytree(toys["linear"].path, tmp_path / "odd")
    weights = load_file(odd / "adapter_model.safetensors")
    renamed = {name.replace(was, becomes): tensor for name, tensor in weights.items()}
    assert renamed.keys() != weights.keys()
    save_file(renamed, odd / "adapter_model.safetensors")
    adapter = ToyAdapter("odd", 98, str(odd), INVOCATION)
    for _ in range(2):
        with pytest.raises(AdapterError, match=r"does not fit this base, which has no layer (model\.)?layers\.\d+\."):
            engine.ask_one(prompt(40), adapter)
    save_file(weights, odd / "adapter_model.safetensors")
    mended, linear = engine.ask_one(prompt(40), adapter), engine.ask_one(prompt(40), toys["linear"])
    assert mended.token_ids == linear.token_ids
    engine.core.remove_lora(98)


def test_layers_of_a_part_that_vllm_never_adapts_are_passed_over(monkeypatch):
    """PEFT adapts the q_proj of a base's image part, too; a stage of a pipeline has some of the layers."""
    base = {f"model.layers.{n}.q_proj": (4, 4) for n in range(2)} | {"lm_head": (None, None)}
    one = SimpleNamespace(lora_a=torch.ones(2, 4), lora_b=torch.ones(4, 2))
    loras = {"model.layers.1.q_proj": one, "visual.blocks.7.q_proj": one}
    manager = SimpleNamespace(lora_config=SimpleNamespace(target_modules=None))
    monkeypatch.setattr(compat, "layer_widths", lambda _: base)
    monkeypatch.setattr(compat, "has_all_layers", lambda: True)
    carried_request._require_layers("red", loras, manager)
    carried_request._require_layers("red", {"lm_head": one}, manager)
    for lost in ({**loras, "model.layers.2.q_proj": one}, {"visual.blocks.7.q_proj": one}):
        with pytest.raises(AdapterError, match="has no layer"):
            carried_request._require_layers("red", lost, manager)
    monkeypatch.setattr(compat, "has_all_layers", lambda: False)
    carried_request._require_layers("red", {**loras, "model.layers.2.q_proj": one}, manager)


@pytest.mark.parametrize(("name", "shape"), [(A, (8, 32)), (B, (64, 8)), (A, (8, 65))])
def test_an_alora_of_other_widths_than_the_base_is_refused(engine, toys, tmp_path, name, shape):
    odd = shutil.copytree(toys["linear"].path, tmp_path / "odd")
    weights = load_file(odd / "adapter_model.safetensors")
    save_file(weights | {name: torch.ones(shape)}, odd / "adapter_model.safetensors")
    said, adapter = (
        r"does not fit this base: model\.layers\.0\.self_attn\.q_proj takes",
        ToyAdapter("odd", 97, str(odd), INVOCATION),
    )
    for _ in range(2):
        with pytest.raises(AdapterError, match=said):  # a request that nobody preceded with add_lora
            engine.ask_one(prompt(40), adapter)
    with pytest.raises(AdapterError, match=said):
        engine.core.add_lora(lora_request(adapter))
    save_file(weights, odd / "adapter_model.safetensors")
    mended, linear = engine.ask_one(prompt(40), adapter), engine.ask_one(prompt(40), toys["linear"])
    assert mended.token_ids == linear.token_ids
    engine.core.remove_lora(97)


@pytest.mark.parametrize("plain", [True, False])
def test_a_rank_that_this_engine_has_no_room_for_ends_its_request_alone(engine, toys, tmp_path, plain):
    big = write_adapter(tmp_path / "big", toys.base, () if plain else INVOCATION, seed=1, rank=200)
    for _ in range(2):
        with pytest.raises(AdapterError, match="rank"):
            engine.ask_one(prompt(40), ToyAdapter("big", 98, str(big), () if plain else INVOCATION))
    assert engine.ask_one(prompt(40), toys["linear"]).token_ids
