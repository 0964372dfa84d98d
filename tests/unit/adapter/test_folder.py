"""An adapter folder gives back what was written, and what alora does not run is refused by name."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from alora.adapter.folder import AdapterSpec, AdapterWeights, load_adapter, new_adapter, save_adapter
from alora.adapter.targets import target_modules
from alora.config.schema import TARGETS, AdapterSettings
from alora.errors import AdapterError
from tests.toy_models import FAMILIES, toy_model

SPEC = AdapterSpec(4, 3.0, ("k_proj", "q_proj"), (5, 6), rank_stabilised=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_adapter(new_adapter(SPEC, toy_model("qwen3"), 0), tmp_path / "adapter", "toy")
    return tmp_path / "adapter"


def test_the_modules_are_written_in_one_order(tmp_path):
    """Not in that of the process's hashes: a run that goes on writes the same bytes."""
    spec = replace(SPEC, targets=tuple(TARGETS))
    save_adapter(new_adapter(spec, toy_model("qwen3"), 0), tmp_path / "adapter", "toy")
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["target_modules"] == sorted(TARGETS)


def _edit(folder: Path, **changes) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, rank_stabilised=False), replace(SPEC, invocation_ids=None)])
def test_what_was_written_is_read(spec, tmp_path: Path):
    written = new_adapter(spec, toy_model("qwen3"), 0)
    save_adapter(written, tmp_path / "adapter", "toy")
    assert load_adapter(tmp_path / "adapter").spec == spec
    assert load_adapter(tmp_path / "adapter").digest == written.digest


def test_scaling_is_alpha_by_rank_or_by_its_root():
    assert (SPEC.scaling, replace(SPEC, rank_stabilised=False).scaling) == (1.5, 0.75)


def test_the_digest_changes_with_whatever_changes_answers():
    weights = new_adapter(SPEC, toy_model("qwen3"), 0)
    name, (a_rd, b_or) = next(iter(weights.tensors.items()))
    others = [
        replace(weights, spec=replace(SPEC, alpha=4.0)),
        replace(weights, spec=replace(SPEC, rank_stabilised=False)),
        replace(weights, spec=replace(SPEC, invocation_ids=(5,))),
        replace(weights, tensors={**weights.tensors, name: (a_rd, b_or + 1e-7)}),
        replace(weights, tensors={**weights.tensors, name: (a_rd.double(), b_or)}),
        replace(
            weights, tensors={one.replace("self_attn.q", "self_attn.p"): own for one, own in weights.tensors.items()}
        ),
    ]
    assert len({one.digest for one in (weights, *others)}) == 7


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[(key, True) for key in ("use_dora", "lora_bias", "fan_in_fan_out", "use_qalora")],
        *[(key, {"q_proj": 2}) for key in ("rank_pattern", "alpha_pattern")],
        *[(key, ["lm_head"]) for key in ("modules_to_save", "target_parameters")],
        *[
            (key, value)
            for key in ("use_bdlora", "arrow_config", "kasa_config", "monteclora_config")
            for value in ({"any": 1}, {})
        ],
        ("layer_replication", [[0, 2]]),
        *[(key, ["v_proj"]) for key in ("exclude_modules", "layers_pattern")],
        ("layers_to_transform", [0]),
        ("layers_to_transform", 0),
        ("megatron_config", {"a": 1}),
        ("trainable_token_indices", [3]),
        ("bias", "all"),
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "olora"),
        ("target_modules", "all-linear"),
        ("alora_invocation_tokens", []),
        ("alora_invocation_tokens", ["<policy>"]),
        ("peft_type", "LOHA"),
        ("r", 0),
    ],
)
def test_what_alora_does_not_run_is_refused_by_name(folder, key, value):
    _edit(folder, **{key: value})
    with pytest.raises(AdapterError, match=key):
        load_adapter(folder)


def _half(state, half: str) -> str:
    return next(key for key in state if key.endswith(f"lora_{half}.weight"))


def _nan(state):
    name = _half(state, "B")
    state[name][0, 0] = float("nan")


BAD_WEIGHTS = {
    "no A": (lambda state: state.pop(_half(state, "A")), "lacks the A or B"),
    "no B": (lambda state: state.pop(_half(state, "B")), "lacks the A or B"),
    "another rank": (
        lambda state: state.update({_half(state, "A"): torch.ones(2, 32)}), "rank 4; the two files do not belong"),
    "a row": (lambda state: state.update({_half(state, "B"): torch.ones(4)}), "of shape"),
    "nothing": (lambda state: state.update({_half(state, "A"): torch.ones(2**24, 0)}), "of shape"),
    "integers": (lambda state: state.update({_half(state, "A"): torch.ones(4, 32, dtype=torch.int8)}), "of dtype"),
    "a dtype that safetensors alone knows": (
        lambda state: state.update({_half(state, "A"): torch.ones(4, 32).to(torch.float8_e8m0fnu)}), "the dtype 'F8_"),
    "no number": (_nan, "with NaN or infinity"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_WEIGHTS)
def test_weights_that_are_none_are_refused(folder, name):
    change, words = BAD_WEIGHTS[name]
    file = folder / "adapter_model.safetensors"
    state = load_file(file)
    change(state)
    save_file(state, file)
    with pytest.raises(AdapterError, match=words):
        load_adapter(folder)


def test_weights_that_no_target_names_are_refused_by_name(folder):
    """Some servers would run them and some not: vLLM goes by the file, PEFT by the configuration."""
    file = folder / "adapter_model.safetensors"
    state = load_file(file)
    head = {f"base_model.model.lm_head.lora_{half}.weight": torch.ones(4, 4) for half in "AB"}
    save_file({**state, **head}, file)
    with pytest.raises(AdapterError, match=r"adapter_model.safetensors holds weights of 'lm_head', which target_mod"):
        load_adapter(folder)
    _edit(folder, target_modules=["k_proj", "q_proj", "head"])
    with pytest.raises(AdapterError, match="'lm_head'"):
        load_adapter(folder)
    _edit(folder, target_modules=["k_proj", "q_proj", "lm_head"])
    assert "lm_head" in load_adapter(folder).tensors


def test_a_target_is_a_whole_path_or_its_last_part():
    model = toy_model("qwen3")
    assert len(target_modules(model, ["q_proj"])) == len(model.model.layers)
    assert list(target_modules(model, ["model.layers.1.mlp.up_proj"])) == ["model.layers.1.mlp.up_proj"]
    with pytest.raises(AdapterError, match="target 'proj' matches no linear layer"):
        target_modules(model, ["proj"])


def test_a_fresh_adapter_begins_as_pefts_and_names_all_as_absent():
    weights = new_adapter(SPEC, toy_model("qwen3"), 0)
    for a_rd, b_or in weights.tensors.values():
        bound = a_rd.shape[1] ** -0.5
        assert 0.8 * bound < a_rd.abs().max() <= bound
        assert not b_or.any()
    assert weights.absent == list(weights.tensors)
    name, (a_rd, b_or) = next(iter(weights.tensors.items()))
    some = replace(weights, tensors={**weights.tensors, name: (a_rd, torch.ones_like(b_or))})
    assert some.absent == list(weights.tensors)[1:]


@pytest.mark.parametrize("family", FAMILIES)
def test_all_linear_is_pefts_all_linear(family):
    model = toy_model(family)
    ours = new_adapter(replace(SPEC, targets=("all-linear",)), model, 0)
    named = new_adapter(replace(SPEC, targets=tuple(sorted(TARGETS))), model, 0)
    assert (ours.spec, ours.digest) == (named.spec, named.digest)  # a PEFT folder names the modules
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    assert set(get_peft_model(model, config).targeted_module_names) == set(ours.tensors)


def test_a_module_whose_product_is_zero_or_no_number_adds_nothing_of_use():
    halves = torch.ones(1, 2), torch.ones(2, 1)
    tensors = {"q": halves, "k": (halves[0] * 1e30, halves[1] * 1e30), "v": (halves[0], halves[1] * 0)}
    assert AdapterWeights(AdapterSpec(1, 1.0, ("q", "k", "v"), None), tensors).absent == ["k", "v"]


@pytest.mark.parametrize(("alpha", "scaling"), [(None, 2.0), (12.0, 1.5)])
def test_the_scaling_stays_at_another_rank(alpha, scaling):
    settings = AdapterSettings(rank=8, alpha=alpha)
    whole, small = AdapterSpec.of(settings, None), AdapterSpec.of(settings, None, rank=2)
    assert (whole.scaling, small.rank, small.scaling) == (scaling, 2, scaling)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_link_in_the_folder_is_not_followed(folder, tmp_path, name):
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(AdapterError):
        load_adapter(folder)


def test_weights_in_use_are_not_those_of_a_file_that_is_written_over(folder):
    """A map of the file would change with it, and end the process where it is cut short."""
    weights, file = load_adapter(folder), folder / "adapter_model.safetensors"
    before = weights.digest
    content = bytearray(file.read_bytes())
    content[-64:] = b"<" * 64
    file.write_bytes(content)
    assert load_adapter(folder).digest != before
    assert replace(weights).digest == before
    file.write_bytes(b"")
    assert replace(weights).digest == before
