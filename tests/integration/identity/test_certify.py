"""The certificate on four families: an honest aLoRA passes, everything else fails for its own reason."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from alora.adapter import CONFIG_FILE
from alora.adapter.folder import load_adapter
from alora.config.schema import IdentitySettings
from alora.errors import AdapterError, BaseError
from alora.identity.capture import capture, make_call
from alora.identity.certify import certify, certify_dtype
from alora.identity.controls import CONTROLS
from tests.integration.identity.subjects import INVOCATION, adapted, toy_base, toy_prompts, write_adapter
from tests.peft_reference import ATTENTION_TARGETS
from tests.toy_models import FAMILIES, WINDOW

QUICK = IdentitySettings(dtypes=["float32"], negative_controls=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_honest_adapter_passes_in_every_dtype_and_length(family: str, tmp_path: Path):
    base, folder = adapted(tmp_path, family)
    certificate = certify(base, folder, toy_prompts(), IdentitySettings(dtypes=["float32", "bfloat16"]))
    assert certificate.failures == ()
    assert certificate.passed
    assert [record.dtype for record in certificate.dtypes] == ["float32", "bfloat16"]
    names = [name for name, _, _ in certificate.lengths]
    assert names == ["short prefix", "conversation 1", "conversation 2", "long prefix", "left-padded batch"]
    assert certificate.lengths[3][1][0] > 10 * WINDOW
    assert certificate.lengths[4][1:] == ((3, 17, 40), 45)
    assert certificate.adapter_digest == load_adapter(folder).digest
    for record in certificate.dtypes:
        assert [control.name for control in record.controls] == [control.name for control in CONTROLS]
        assert len(record.controls) == 7
        assert all(control.caught for control in record.controls)
        assert len(record.layers) == 2 * 3 + 1
        assert all(layer.must_differ and layer.activation_different > 0 for layer in record.layers)
        assert all(layer.prefix_elements > 0 == layer.prefix_different for layer in record.layers)
        tokens = sum(index for _, indices, _ in certificate.lengths for index in indices)
        assert {layer.prefix_elements for layer in record.layers} == {2 * 8 * tokens, 32 * tokens}
        assert len(record.handovers) == 4


@pytest.mark.parametrize(("fast", "dtypes"), [(True, ["float32", "bfloat16"]), (False, ["float32"])])
def test_bfloat16_is_certified_where_the_processor_has_it(fast, dtypes, tmp_path: Path, monkeypatch):
    """A processor without it emulates each product, for minutes; the certificate says what it left out."""
    monkeypatch.setattr("alora.identity.certify.multiplies_bfloat16", lambda device: fast)
    base = toy_base("qwen3")
    certificate = certify(base, write_adapter(base, tmp_path / "adapter"), toy_prompts(), IdentitySettings())
    assert [record.dtype for record in certificate.dtypes] == dtypes
    assert any("bfloat16 was not certified" in note for note in certificate.notes) != fast


@pytest.mark.parametrize(
    ("targets", "not_reached"),
    [
        (ATTENTION_TARGETS, set()),
        (("v_proj",), {"layer 0 K"}),
        (("o_proj",), {"layer 0 K", "layer 0 V"}),
        (("up_proj", "down_proj"), {"layer 0 K", "layer 0 V"}),
        (("model.layers.1.self_attn.k_proj",), {"layer 0 K", "layer 0 V", "layer 1 V"}),
        (("model.layers.2.mlp.down_proj",), {f"layer {layer} {kind}" for layer in range(3) for kind in "KV"}),
    ],
)
def test_partial_adapters_differ_exactly_where_they_reach(targets, not_reached, tmp_path: Path):
    base, folder = adapted(tmp_path, targets=targets)
    certificate = certify(base, folder, toy_prompts(), IdentitySettings())
    assert certificate.failures == ()
    for record in certificate.dtypes:
        assert {layer.site for layer in record.layers if not layer.must_differ} == not_reached
        for layer in record.layers:
            assert (layer.activation_different > 0) == layer.must_differ


def test_base_that_does_not_repeat_itself_is_refused(tmp_path: Path):
    base, folder = adapted(tmp_path, "llama")
    calls = [make_call("short", [[9, 8, *INVOCATION, 4]], [2], 0, base.model.device)]
    torch.manual_seed(0)
    base.model.model.layers[0].register_forward_pre_hook(
        lambda _module, inputs: (inputs[0] + 1e-3 * torch.randn_like(inputs[0]), *inputs[1:])
    )
    record = certify_dtype(base.model, folder, calls, torch.float32, with_controls=False)
    assert "repeat" in {finding.check for finding in record.findings}


def test_base_in_memory_is_left_as_it_was(tmp_path: Path):
    base, folder = adapted(tmp_path)
    call = make_call("plain", [list(range(10, 30))], [10], 0, base.model.device)
    names = [name for name, _ in base.model.named_modules()]
    bits = {name: tensor.clone() for name, tensor in base.model.state_dict().items()}
    before = capture(base.model, call)
    certify(base, folder, toy_prompts(), IdentitySettings())
    after = capture(base.model, call)
    assert [name for name, _ in base.model.named_modules()] == names
    assert all(torch.equal(tensor, bits[name]) for name, tensor in base.model.state_dict().items())
    assert all(torch.equal(tensor, after.sites[site]) for site, tensor in before.sites.items())


@pytest.mark.parametrize("ids", [[10**12], [-1, 3], [3, 10_000]])
def test_adapter_that_is_invoked_by_no_token_of_the_base(tmp_path: Path, ids):
    base, folder = adapted(tmp_path)
    config = json.loads((folder / CONFIG_FILE).read_text())
    (folder / CONFIG_FILE).write_text(json.dumps(config | {"alora_invocation_tokens": ids}))
    with pytest.raises(AdapterError, match="invoked by token"):
        certify(base, folder, toy_prompts(), QUICK)


def test_prompts_that_do_not_invoke_the_adapter(tmp_path: Path):
    base, folder = adapted(tmp_path, invocation=(11, 12))
    with pytest.raises(AdapterError, match=r"opens with token ids \[5, 6\].*invoked by \[11, 12\]"):
        certify(base, folder, toy_prompts(), QUICK)


def test_state_space_layers_are_refused():
    from transformers import MambaConfig, MambaForCausalLM

    model = MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4)).eval()
    call = make_call("any", [[1, 2, 3]], [1], 0, model.device)
    with pytest.raises(BaseError, match="keeps no keys and values in any layer"):
        capture(model, call)


def test_quantized_base_is_certified_in_its_own_dtype_only(tmp_path: Path):
    base, folder = adapted(tmp_path)
    quantized = replace(base, fingerprint=replace(base.fingerprint, quantization="nf4"))
    certificate = certify(quantized, folder, toy_prompts(), IdentitySettings(negative_controls=False))
    assert [record.dtype for record in certificate.dtypes] == ["float32"]
    assert "nf4" in certificate.notes[0]
    assert "negative controls were not run" in certificate.notes[1]
