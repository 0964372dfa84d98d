"""What an adapter says of itself is read whole, or the adapter is refused."""

import json
import math
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from alora.errors import AdapterError
from alora.vllm_plugin import activation_source, adapter_weights, carried_request, compat, refusals
from alora.vllm_plugin.adapter_config import AdapterConfig, claims_alora, config_here, read_config
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
            ("layer_replication", [[0, 2]]),
            ("use_bdlora", {"nblocks": 2}),
            ("use_qalora", True),
            ("init_lora_weights", "pissa_niter_4"),
            ("init_lora_weights", "OLoRA"),
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
    with pytest.raises(AdapterError, match="a tool deleted the key"):
        engine.ask_one(prompt(40), ToyAdapter("stripped", 92, str(stripped), ()))


def test_an_adapter_of_the_first_alora_package_is_not_served_as_plain_lora(engine, toys, tmp_path):
    earlier = tmp_path / "earlier"
    shutil.copytree(toys["linear"].path, earlier)
    edit_config(str(earlier), alora_invocation_tokens=None, invocation_string="check")
    with pytest.raises(AdapterError, match="invocation_string"):
        engine.ask_one(prompt(40), ToyAdapter("earlier", 194, str(earlier), ()))


@pytest.mark.parametrize(
    ("targets", "reached"),
    [(["q_proj"], False), (["model.lm_head"], True), (".*_proj", False), ("lm_head|.*_proj", True)],
)
def test_an_adapted_head_is_seen_in_names_and_patterns(toys, tmp_path, targets, reached):
    shutil.copytree(toys["linear"].path, tmp_path, dirs_exist_ok=True)
    edit_config(str(tmp_path), target_modules=targets)
    assert read_config(str(tmp_path), "shown").adapts_head == reached


@pytest.mark.timeout(60)
def test_a_pattern_is_not_run(toys, tmp_path):
    """The front end reads it in its event loop, where the first one would stay for hours."""
    shutil.copytree(toys["linear"].path, tmp_path, dirs_exist_ok=True)
    for pattern in ("(" * 12 + "[a-z_]*" + ")*" * 12 + "X", "("):
        edit_config(str(tmp_path), target_modules=pattern)
        assert not read_config(str(tmp_path), "shown").adapts_head


def test_targets_that_are_no_list_and_a_bomb_are_refused(toys, tmp_path):
    shutil.copytree(toys["linear"].path, tmp_path, dirs_exist_ok=True)
    edit_config(str(tmp_path), target_modules=5)
    with pytest.raises(AdapterError, match="target_modules is 5, not a list"):
        read_config(str(tmp_path), "shown")
    (tmp_path / "adapter_config.json").write_text("[" * 100_000)
    with pytest.raises(AdapterError, match="not a readable PEFT configuration"):
        read_config(str(tmp_path), "shown")
    assert not claims_alora(str(tmp_path))


def test_a_front_end_without_the_engine_reads_a_changed_configuration_again(toys, tmp_path):
    home = tmp_path / "elsewhere"
    shutil.copytree(toys["linear"].path, home)
    request = SimpleNamespace(
        lora_request=lora_request(ToyAdapter("elsewhere", 197, str(home), INVOCATION)),
        prompt_token_ids=prompt(40),
        sampling_params=None,
    )
    front_end = SimpleNamespace(vllm_config=object())
    process_inputs = activation_source.process_inputs_patch(lambda self: request)
    assert process_inputs(front_end) is request
    edit_config(str(home), alora_invocation_tokens=[4, 5])
    with pytest.raises(refusals.RefusedRequest, match="not in the prompt"):
        process_inputs(front_end)


def test_a_configuration_that_was_renamed_into_place_with_its_time_is_read_again(toys, tmp_path):
    home, other = tmp_path / "home", tmp_path / "other"
    for folder in (home, other):
        shutil.copytree(toys["linear"].path, folder)
    edit_config(str(other), alora_invocation_tokens=[4, 5])
    before = (home / "adapter_config.json").stat()
    assert config_here(str(home)) == AdapterConfig(INVOCATION)
    os.utime(other / "adapter_config.json", ns=(before.st_atime_ns, before.st_mtime_ns))
    (other / "adapter_config.json").replace(home / "adapter_config.json")
    assert config_here(str(home)) == AdapterConfig((4, 5))


@pytest.mark.parametrize("name", ["adapter_config.json", "alora.json", "adapter_model.bin"])
def test_a_pipe_in_an_adapters_folder_is_not_opened(toys, tmp_path, monkeypatch, name):
    folder = tmp_path / "pipe"
    shutil.copytree(toys["plain"].path, folder)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    opened = []
    monkeypatch.setattr(Path, "read_text", lambda self, **_: opened.append(self.name) or "{}")
    assert not claims_alora(str(folder))
    assert config_here(str(folder)) == (None if name == "adapter_config.json" else AdapterConfig(()))
    assert name not in opened


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.bin"])
def test_a_plain_lora_with_a_pipe_is_not_left_to_stock_vllm_which_would_wait_for_ever(engine, toys, tmp_path, name):
    folder = tmp_path / "pipe"
    shutil.copytree(toys["plain"].path, folder)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(AdapterError, match=f"{name} is a pipe or a device"):
        activation_source.record_of(engine.core, lora_request(ToyAdapter("pipe", 196, str(folder), ())))


@pytest.mark.parametrize("start", ["pissa", "olora", "corda", "loftq"])
def test_a_start_that_changed_the_base_is_refused_where_vllm_drops_the_key(start, toys, tmp_path, monkeypatch):
    monkeypatch.setattr(compat, "peft_fields", lambda: frozenset(["r", "lora_alpha", "target_modules"]))
    shutil.copytree(toys["linear"].path, tmp_path, dirs_exist_ok=True)
    edit_config(str(tmp_path), init_lora_weights=start)
    with pytest.raises(AdapterError, match="sets init_lora_weights"):
        read_config(str(tmp_path), "shown")


def test_weights_that_are_no_numbers_and_pipes_are_refused(engine, toys, tmp_path):
    """NaN would answer nothing; a pipe would never be read to its end."""
    odd = tmp_path / "odd"
    shutil.copytree(toys["linear"].path, odd)
    weights = load_file(odd / "adapter_model.safetensors")
    name = next(iter(weights))
    for tensor in (torch.full_like(weights[name], float("nan")), weights[name].bool(), weights[name].cfloat()):
        save_file({**weights, name: tensor}, odd / "adapter_model.safetensors")
        with pytest.raises(AdapterError, match=f"{name} holds NaN or infinity, or no floating-point numbers"):
            engine.ask_one(prompt(40), ToyAdapter("odd", 94, str(odd), INVOCATION))
    shutil.copyfile(Path(toys["linear"].path) / "adapter_model.safetensors", odd / "adapter_model.safetensors")
    os.mkfifo(odd / "adapter_model.bin")
    with pytest.raises(AdapterError, match="a pipe or a device"):
        engine.ask_one(prompt(40), ToyAdapter("odd", 95, str(odd), INVOCATION))


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


def test_an_adapter_that_vllm_would_apply_to_more_layers_is_refused(engine, toys, tmp_path):
    partial = tmp_path / "partial"
    shutil.copytree(toys["linear"].path, partial)
    edit_config(str(partial), layers_to_transform=[0])
    with pytest.raises(AdapterError, match=r"do not fit: target_modules does not name model\.layers\.1\."):
        engine.ask_one(prompt(40), ToyAdapter("partial", 96, str(partial), INVOCATION))


PREFIX = "base_model.model."
A, B = (f"base_model.model.model.layers.0.self_attn.q_proj.lora_{half}.weight" for half in "AB")
EMBEDDING = "base_model.model.model.embed_tokens.lora_embedding_A"
ENDLESS = r"([\w.]*)" * 9 + r"(?!\1)\d\d"
SLOW = r"([\w.]*)" * 5 + r"(?!\1)\d\d(?:%d)?"  # each match ends, after tens of milliseconds
TOO_SLOW, COSTLY = "do not match within 2 s", "has a {}, where .* are read: all requests might wait for it; use"
NO_PREFIX = "does not begin with 'base_model.model.', or has it more than once"
LARGE = "lora_alpha of adapter_config.json makes the product of .* larger than float32"
NO_LINEAR = "is not a LoRA weight of a linear layer"
ALIKE = "PEFT and vLLM would not answer alike"


@pytest.mark.parametrize(
    ("changes", "tensors", "said"),
    [
        ({"r": 4}, {}, "and the rank is 4"),
        ({"r": 16}, {}, "and the rank is 16"),
        ({"r": None}, {}, "r is None"),
        ({"rank_pattern": {"q_proj": 4}}, {}, "q_proj has A .* and the rank is 4"),
        ({}, {A: torch.ones(16, 64)}, "and the rank is 8"),
        ({"target_modules": ["q_proj"]}, {}, "target_modules does not name .*proj"),
        ({"target_modules": ["x_proj"]}, {}, "target_modules does not name"),
        ({"target_modules": None}, {}, "target_modules does not name"),
        ({"target_modules": ".*q_proj"}, {}, "target_modules does not name"),
        ({"target_modules": ENDLESS}, {}, TOO_SLOW),
        ({"rank_pattern": {ENDLESS: 4}}, {}, TOO_SLOW),
        ({"rank_pattern": {SLOW % number: 8 for number in range(400)}}, {}, TOO_SLOW),
        ({"rank_pattern": {"(": 4}}, {}, "missing"),
        ({"rank_pattern": {"(" * 3000 + ")" * 3000: 8}}, {}, "recursion"),
        ({"exclude_modules": "x|" * 5000 + "y"}, {}, COSTLY.format("name or pattern of 10001 characters")),
        ({"rank_pattern": {"a{3000000}": 8}}, {}, COSTLY.format("pattern with '{'")),
        ({"target_modules": "(?:" * 14 + "a{2}" + "){2}" * 14}, {}, COSTLY.format(r"pattern with '\){'")),
        ({"alpha_pattern": {"(?:" * 60 + "a" + ")+" * 60: 8}}, {}, COSTLY.format(r"pattern with '\)\+'")),
        ({"alpha_pattern": {"(?:(?R)?.)*": 8}}, {}, COSTLY.format(r"pattern with '\(\?'")),
        ({"rank_pattern": {"[[:alpha:]]_proj": 8}}, {}, COSTLY.format(r"pattern with '\[:'")),
        (
            {"alpha_pattern": {f"x{number}": 8 for number in range(401)}},
            {},
            COSTLY[:4] + "401 keys in rank_pattern and",
        ),
        ({"alpha_pattern": ["q_proj"]}, {}, "no attribute"),
        ({}, {A.replace("q_proj", "experts.base_layer"): torch.ones(8, 64)}, NO_LINEAR),
        ({}, {A.replace("self_attn.q_proj", "mlp.experts"): torch.ones(8, 64)}, NO_LINEAR),
        ({}, {EMBEDDING: torch.ones(8, 320)}, NO_LINEAR),
        ({}, {A.replace("_A.weight", "_B.bias"): torch.ones(8)}, NO_LINEAR),
        ({}, {A: torch.ones(8, 64, 1)}, NO_LINEAR),
        ({}, {A.replace(".0.", ".9."): torch.ones(8, 64)}, "has no A or no B"),
        ({}, {A.removeprefix(PREFIX): torch.ones(8, 64)}, NO_PREFIX),
        ({}, {A.replace("self_attn", f"{PREFIX}self_attn"): torch.ones(8, 64)}, NO_PREFIX),
        ({}, {PREFIX + A: torch.ones(8, 64)}, NO_PREFIX),
        ({"layers_to_transform": 0}, {}, "does not name model.layers.1"),
        ({"layers_to_transform": [0, 1], "layers_pattern": "blocks"}, {}, "does not name model.layers"),
        ({"layers_to_transform": [0, 1], "layers_pattern": "layers|h"}, {}, "does not name model.layers"),  # PEFT's own
        ({"layers_to_transform": [0, 1], "layers_pattern": "(?P<idx>layers)"}, {}, "redefinition of group"),
        ({"layers_to_transform": ["0", "1"]}, {}, "does not name model.layers"),
        ({"layers_to_transform": [0, 1], "layers_pattern": ENDLESS}, {}, TOO_SLOW),
        ({"exclude_modules": ["v_proj"]}, {}, "does not name .*v_proj"),
        ({"exclude_modules": r".*layers\.0.*"}, {}, "does not name model.layers.0"),
        ({"lora_alpha": math.nan}, {}, "lora_alpha nan"),
        ({"lora_alpha": -math.inf}, {}, "lora_alpha -inf"),
        ({"alpha_pattern": {"up_proj": math.nan}}, {}, "lora_alpha nan for .*up_proj"),
        ({"lora_alpha": 10**400}, {}, "too large to convert"),
        ({"lora_alpha": 1e38}, {}, LARGE),
    ],
)
def test_an_alora_whose_weights_do_not_fit_its_configuration_is_refused(toys, tmp_path, changes, tensors, said):
    """vLLM goes by the file, and would answer where PEFT refuses or answers otherwise."""
    odd = shutil.copytree(toys["linear"].path, tmp_path / "odd")
    edit_config(str(odd), **changes)
    save_file(load_file(odd / "adapter_model.safetensors") | tensors, odd / "adapter_model.safetensors")
    with pytest.raises(
        AdapterError,
        match=said if said in (TOO_SLOW, LARGE) or said.startswith(COSTLY[:4]) else f"do not fit: .*{said}.*{ALIKE}",
    ):
        Records().read(str(odd))
    edit_config(str(odd), alora_invocation_tokens=None)
    assert not Records().read(str(odd)).config.is_alora, "plain LoRA is vLLM's own business"


def test_what_does_not_fit_is_refused_before_a_value_is_read(toys, tmp_path, monkeypatch):
    """A tensor may be of gigabytes, and a file of millions of them."""
    odd = shutil.copytree(toys["linear"].path, tmp_path / "odd")
    weights = load_file(odd / "adapter_model.safetensors")
    read, norm = [], adapter_weights._norm
    monkeypatch.setattr(adapter_weights, "_norm", lambda tensor: read.append(tensor) or norm(tensor))
    monkeypatch.setattr(adapter_weights, "_MOST_TENSORS", len(weights) + 2)
    many = {f"x{number}": torch.ones(1) for number in range(3)}
    for more, said in (({A: torch.ones(16, 64)}, "the rank is 8"), (many, f"tensors, and {len(weights) + 2} are read")):
        save_file(weights | more, odd / "adapter_model.safetensors")
        with pytest.raises(AdapterError, match=said):
            Records().read(str(odd))
    assert not read
    save_file(weights, odd / "adapter_model.safetensors")
    assert Records().read(str(odd))
    assert len(read) == len(weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2])
def test_a_norm_is_that_of_the_whole(dtype, monkeypatch):
    monkeypatch.setattr(adapter_weights, "_PIECE", 7)
    tensor = torch.linspace(-3, 4, 60).reshape(4, 15).to(dtype)
    assert adapter_weights._norm(tensor) == pytest.approx(float(tensor.double().norm()))
    assert adapter_weights._norm(torch.zeros(0, 8)) == 0


def test_a_configuration_of_many_megabytes_is_refused(engine, toys, tmp_path):
    odd = shutil.copytree(toys["linear"].path, tmp_path / "odd")
    edit_config(str(odd), x=[[]] * 280_000)
    refused = pytest.raises(AdapterError, match="not a readable PEFT configuration")
    with refused:
        Records().read(str(odd))
    for tokens in (INVOCATION, None):  # stock vLLM would read it, and run an aLoRA from the first token on
        edit_config(str(odd), alora_invocation_tokens=tokens)
        with refused:
            activation_source.record_of(engine.core, lora_request(ToyAdapter("odd", 197, str(odd), ())))


def test_a_manifest_of_many_megabytes_is_refused(engine, toys, tmp_path):
    """Next to a plain LoRA, or to an aLoRA whose key a tool deleted: nobody looks which."""
    odd = shutil.copytree(toys["linear"].path, tmp_path / "odd")
    edit_config(str(odd), alora_invocation_tokens=None)
    (odd / "alora.json").write_text(json.dumps({"activated": False, "x": [[]] * 280_000}))
    with pytest.raises(AdapterError, match=r"configuration \(alora.json next to it is longer than 1 MiB\)"):
        activation_source.record_of(engine.core, lora_request(ToyAdapter("odd", 197, str(odd), ())))


def test_values_of_four_bits_are_no_numbers_to_compute_with(toys, tmp_path):
    weights = load_file(Path(toys["linear"].path, "adapter_model.safetensors"))
    four_bits = torch.zeros(8, 32, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert math.isnan(adapter_weights._norm(four_bits))
    assert math.isfinite(adapter_weights._norm(weights[A]))


def test_names_have_a_limit_of_time_as_patterns_have(toys, tmp_path, monkeypatch):
    """A million names, and twenty thousand modules to find in them."""
    monkeypatch.setattr(adapter_weights, "_MATCHING_S", 0)
    named = write_adapter(tmp_path / "named", toys.base, INVOCATION, seed=1, targets=["q_proj"])
    with pytest.raises(AdapterError, match=r"the names and patterns of .* do not match within 0 s"):
        Records().read(named)


@pytest.mark.parametrize(
    "how",
    [
        {"targets": "all-linear"},
        {"targets": r".*\.self_attn\.(q|v)_proj"},
        {"targets": r"(?P<of>.*)\.(?:self_attn\.)?[qv]_proj"},
        {"targets": r"^(?!.*visual)(?:model\.)?layers\.\d{1,2}\..+[qv]_proj$"},
        {"targets": ["layers.1.mlp.up_proj", "model.layers.0.self_attn.q_proj"]},
        {"rank_pattern": {r"layers\.0\..*q_proj": 4, "down_proj": 12}, "alpha_pattern": {"v_proj": 64}},
        {"targets": ["q_proj", "v_proj"], "layers_to_transform": [1]},
        {"targets": ["q_proj", "v_proj"], "layers_to_transform": 0, "layers_pattern": "layers"},
        {"targets": ["q_proj", "v_proj"], "layers_to_transform": [0], "layers_pattern": "(h|layers)"},
        {"targets": ["model.layers.0.mlp.up_proj", "q_proj"], "layers_to_transform": [1], "layers_pattern": ["layers"]},
        {"targets": "all-linear", "exclude_modules": ["o_proj"]},
        {"targets": ["q_proj", "v_proj"], "exclude_modules": r".*layers\.0\..*"},
        {"targets": ["q_proj", "lm_head"]},  # PEFT saves the base's own head, too
        {"seed": 3},  # rsLoRA
    ],
)
def test_what_peft_writes_fits(toys, tmp_path, how):
    folder = write_adapter(tmp_path / "written", toys.base, INVOCATION, **{"seed": 1} | how)
    assert Records().read(folder).config.is_alora
    if isinstance(how.get("targets"), str):  # PEFT writes the names that it stands for
        edit_config(folder, target_modules=how["targets"])
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


def test_nothing_is_loaded_into_the_memory_of_a_sleeper(engine, monkeypatch):
    asked, loads = SimpleNamespace(record=SimpleNamespace(loaded=False)), []
    monkeypatch.setattr(compat, "load_adapter", lambda *what: loads.append(what))
    monkeypatch.setattr(engine.core.model_executor, "sleeping_tags", {"weights"})
    activation_source._load_first(engine.core, asked)
    assert (asked.record.loaded, loads) == (False, [])
    monkeypatch.setattr(engine.core.model_executor, "sleeping_tags", set())
    for _ in range(2):
        activation_source._load_first(engine.core, asked)
    assert (asked.record.loaded, loads) == (True, [(engine.core, asked)])


@pytest.mark.parametrize("plain", [True, False])
def test_a_rank_that_this_engine_has_no_room_for_ends_its_request_alone(engine, toys, tmp_path, plain):
    big = write_adapter(tmp_path / "big", toys.base, () if plain else INVOCATION, seed=1, rank=200)
    for _ in range(2):
        with pytest.raises(AdapterError, match="rank"):
            engine.ask_one(prompt(40), ToyAdapter("big", 98, str(big), () if plain else INVOCATION))
    assert engine.ask_one(prompt(40), toys["linear"]).token_ids
