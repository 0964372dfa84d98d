"""What alora exports is what vLLM serves: same verdicts, and a certificate from vLLM's own cache."""

import json
import os
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file, save_file

from alora.adapter.folder import save_adapter
from alora.bundle.golden import TOLERANCES
from alora.bundle.read import load_battery, load_bundle
from alora.client import engine as vllm_here
from alora.client.engine import Engine, ServedAdapter
from alora.client.parity import OFF, parity
from tests.forked import Forked, run_forked
from tests.vllm import bundles as store

CONTROLS = [
    "standard LoRA",
    "LoRA with B scaled by 1e-4",
    "activation one token early",
    "activation one token late",
    "one element changed by 1 ulp",
    "B = 0",
    "adapter silently off",
]


IN_LAYER_0 = """
import os, sys
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
from vllm.lora.model_manager import LoRAModelManager
from alora.cli import main
stock = LoRAModelManager._get_lora_layer_weights
LoRAModelManager._get_lora_layer_weights = lambda self, lora, name: stock(self, lora, name) if ".0." in name else None
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def validated(tmp_path_factory):
    """The outcome of ``alora validate scorer=vllm`` on a battery: certificates by bundle, one engine after another."""
    folder = tmp_path_factory.mktemp("validated")
    arguments = (f"battery={store.battery()}", f"base.source={store.base_folder()}", "identity.conversations=1")
    code, output, errors = run_forked("validate", *arguments, "scorer=vllm", f"output={folder / 'told'}", cache=folder)
    assert code == 0, output + errors
    return json.loads((folder / "told").read_text())["certificates"]


def test_one_call_scores_a_battery_with_the_same_verdicts(tmp_path):
    conversation = tmp_path / "conversation.json"
    conversation.write_text(json.dumps({"messages": [{"role": "user", "content": "Shall I take two of these?"}]}))
    told = {}
    for scorer in ("packed", "vllm"):
        code, output, errors = run_forked(
            *("score", f"battery={store.battery()}", f"base.source={store.base_folder()}", str(conversation)),
            *("json=true", f"scorer={scorer}"),
            cache=tmp_path,
        )
        assert code == 0, errors
        told[scorer] = json.loads(output)["verdicts"]
    assert [verdict["policy"] for verdict in told["vllm"]] == [policy.id for policy in store.POLICIES]
    for ours, theirs in zip(told["packed"], told["vllm"], strict=True):
        assert (ours["label"], ours["adapter_digest"]) == (theirs["label"], theirs["adapter_digest"])
        assert ours["probability"] == pytest.approx(theirs["probability"], abs=1e-4)
        assert 0 < ours["probability"] < 1


def test_an_engine_takes_the_longest_prompt_of_its_bundles(monkeypatch):
    """One row of that length would end the command, and the engine's default is shorter."""
    bundle, asked = load_bundle(store.battery() / store.POLICIES[0].id), {}
    prompt = replace(bundle.manifest.prompt, max_prefix_tokens=20_000)
    vllm = SimpleNamespace(LLM=lambda **options: asked.update(options))
    monkeypatch.setattr(vllm_here, "vllm_api", lambda: SimpleNamespace(vllm=vllm))
    monkeypatch.setattr(vllm_here, "_longest", lambda base: 32_768)
    for long, wanted in ((replace(bundle, manifest=replace(bundle.manifest, prompt=prompt)), 20_001), (bundle, 4608)):
        Engine.of([long], store.base(), str(store.base_folder()))
        assert asked["max_model_len"] - wanted in (0, len(bundle.suffix.token_ids))


def test_a_partly_absent_adapter_fails_in_vllm_too(tmp_path):
    """Layer 0 alone changes every block behind the activation."""
    bundle = load_bundle(store.battery() / store.POLICIES[1].id)
    kept = {name: (a, b * (".layers.0." in name)) for name, (a, b) in bundle.weights.tensors.items()}
    save_adapter(replace(bundle.weights, tensors=kept), tmp_path / "adapter", str(store.base_folder()))
    arguments = (f"artifact={tmp_path / 'adapter'}", f"base.source={store.base_folder()}", "identity.conversations=1")
    options = ("identity.negative_controls=false", f"output={tmp_path / 'told'}")
    code, output, errors = run_forked("validate", *arguments, *options, "scorer=vllm", cache=tmp_path)
    assert code == 1, output + errors
    (record,) = json.loads((tmp_path / "told").read_text())["dtypes"]
    assert {finding["check"] for finding in record["findings"]} == {"module"}
    named = {finding["detail"].split(":")[0] for finding in record["findings"]}
    assert named == {name for name in kept if ".layers.0." not in name}


@pytest.mark.parametrize(("how", "failing"), [(("-m", "alora"), []), (("-c", IN_LAYER_0), ["answers"])])
def test_the_whole_adapter_is_there_in_an_engine_without_golden_rows(tmp_path, how, failing):
    """Nothing is wrong with the weights; the engine leaves them out of all layers but the first."""
    bundle = load_bundle(store.battery() / store.POLICIES[1].id)
    save_adapter(bundle.weights, tmp_path / "adapter", str(store.base_folder()))
    arguments = (f"artifact={tmp_path / 'adapter'}", f"base.source={store.base_folder()}", "identity.conversations=1")
    options = ("identity.negative_controls=false", f"output={tmp_path / 'told'}", "scorer=vllm")
    process = Forked([*how, "validate", *arguments, *options], os.environ | {"ALORA_CACHE": str(tmp_path)})
    output, errors = process.communicate()
    assert process.returncode == len(failing), output + errors
    told = json.loads((tmp_path / "told").read_text())
    assert [finding["check"] for finding in told["dtypes"][0]["findings"]] == failing
    assert "answers on 1 prompt(s) differ from alora's own engine by" in told["notes"][-1]


@pytest.mark.parametrize("policy", [policy.id for policy in store.POLICIES])
def test_kv_identity_is_certified_in_vllms_cache(validated, policy):
    certificate = validated[policy]
    assert certificate["engine"].startswith("vllm ")
    (record,) = certificate["dtypes"]
    assert [control["name"] for control in record["controls"] if control["caught"]] == CONTROLS
    assert all(layer["prefix_elements"] > 0 and layer["prefix_different"] == 0 for layer in record["layers"])


@pytest.mark.parametrize("policy", [policy.id for policy in store.POLICIES])
def test_the_golden_rows_are_answered_as_the_bundle_says(validated, policy):
    found = validated[policy]["parity"]
    assert (found["rows"], found["passed"], found["tolerance"]) == (3, True, TOLERANCES["float32"])
    assert found["difference"] < 1e-4
    assert [(control["name"], control["caught"]) for control in found["controls"]] == [
        ("adapter silently off", True),
        ("standard LoRA", True),
    ]


@pytest.mark.parametrize("policy", [policy.id for policy in store.POLICIES])
def test_both_certificates_are_in_the_bundle(validated, policy):
    bundle = load_bundle(store.battery() / policy)
    written = json.loads((bundle.folder / "identity.json").read_text())
    assert written["engine"] == "transformers"
    assert written["vllm"] == validated[policy] | {"base_source": written["base_source"]}
    assert str(store.base_folder()) not in (bundle.folder / "identity.json").read_text()  # the path stays private
    assert bundle.manifest.certificate is not None
    assert bundle.manifest.certificate.vllm == validated[policy]["engine"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """Of a battery whose weights are replaced before the first question."""
    bundles = load_battery(shutil.copytree(store.battery(), tmp_path_factory.mktemp("replaced") / "battery"))
    engine = Engine.of(bundles, store.base(), str(store.base_folder()))
    for bundle in bundles:
        file = bundle.folder / "adapter_model.safetensors"
        save_file({name: tensor.roll(1, 0) for name, tensor in load_file(file).items()}, file)
    return engine


def test_files_that_were_replaced_since_they_were_read_change_nothing(engine):
    for bundle in load_battery(store.battery()):
        renderer = bundle.renderer(store.base())
        assert parity(bundle, renderer, engine.label_logits, "float32", bundle.served_name, {}).passed


def test_parity_fails_where_it_should(engine):
    """Another adapter behind the name, an adapter that is left out, and a control that cannot be told apart."""
    bundle, other = load_battery(store.battery())
    renderer, ask = bundle.renderer(store.base()), engine.label_logits
    honest, stranger = ServedAdapter.of(bundle).name, ServedAdapter.of(other).name
    good = parity(bundle, renderer, ask, "float32", honest, {OFF: None})
    assert good.passed
    assert good.difference is not None
    assert good.difference < 1e-4
    assert not parity(bundle, renderer, ask, "float32", stranger, {OFF: None}).passed
    blind = parity(bundle, renderer, ask, "float32", honest, {OFF: honest})
    assert not blind.passed
    assert [control.caught for control in blind.controls] == [False]
