"""Every kind of damage, and every wrong base, has its own message. Each case starts from a bundle that loads."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from alora.adapter.folder import load_adapter
from alora.base.load import LoadedBase
from alora.base.stored import fingerprint_base
from alora.bundle.artifact import Artifact, Kind, find_artifact, members_by_policy
from alora.bundle.battery import require_one_base, write_battery
from alora.bundle.read import check_bundles, check_golden, load_battery, load_bundle
from alora.bundle.write import BundleContents, write_bundle
from alora.config.schema import BaseSettings
from alora.errors import BundleError, CheckFailed, ConfigError, RenderError
from alora.policy import Policy
from alora.received import CHANGED, DAMAGED, NEWER, NOT_OURS, file_record, sealed
from alora.text import content_digest
from tests.integration.bundle.conftest import POLICIES, PROMPT, make_adapter, make_base, make_contents
from tests.toy_tokenizers import toy_tokenizer
from tests.unit.bundle.cases import with_weights


def edit(file: Path, change) -> None:
    """Rewrite a JSON file as a tool would."""
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content, indent=2))


def resign(folder: Path, change) -> None:
    """Rewrite the manifest with a right digest, as someone would who knows how."""
    file = folder / "alora.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(sealed(content)))


def delete_invocation(folder: Path) -> None:
    edit(folder / "adapter_config.json", lambda config: config.pop("alora_invocation_tokens"))


def resign_file(folder: Path, name: str) -> None:
    record = file_record(folder / name)
    resign(folder, lambda m: m["files"].update({name: {"size": record.size, "sha256": record.sha256}}))


def third_logit(folder: Path) -> None:
    file = folder / "golden.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[-1]["label_logits"] = [0.0, 1.0, 2.0]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    resign_file(folder, file.name)


def scaled(tensors):
    return {name: tensor * 3 if "lora_B" in name else tensor for name, tensor in tensors.items()}


def swapped(tensors):
    """Each B in the place of another layer's."""
    names = [name for name in tensors if "lora_B" in name and "q_proj" in name]
    return tensors | {name: tensors[other].clone() for name, other in zip(names, reversed(names), strict=True)}


def forge(folder: Path, change) -> None:
    """Other weights, and every digest made right again."""
    weights = folder / "adapter_model.safetensors"
    save_file(change(load_file(weights)), weights)
    digest = load_adapter(folder).digest
    resign_file(folder, weights.name)
    resign(folder, lambda m: m.update(adapter_digest=digest))
    change_certificate(folder, lambda c: c.update(adapter_digest=digest))


def change_certificate(folder: Path, change) -> None:
    edit(folder / "identity.json", lambda content: (change(content), content.update(sealed(content))))
    resign_file(folder, "identity.json")
    record = file_record(folder / "identity.json")
    resign(folder, lambda m: m["certificate"].update(sha256=record.sha256))


def other_digest(folder: Path) -> None:
    change_certificate(folder, lambda certificate: certificate.update(adapter_digest="0" * 64))
    resign(folder, lambda manifest: manifest.update(adapter_digest="0" * 64))


def signed(**changed):
    """The manifest says otherwise, under a right digest."""
    return lambda folder: resign(folder, lambda manifest: manifest.update(changed))


def of_certificate(**changed):
    return lambda folder: resign(folder, lambda manifest: manifest["certificate"].update(changed))


DAMAGE = {
    "a certificate of another adapter": (
        lambda f: change_certificate(f, lambda c: c.update(adapter_digest="0" * 64)),
        r"the certificate's is 000000000000",
    ),
    "a certificate that checked nothing": (
        lambda f: change_certificate(f, lambda c: c.update(dtypes=[])),
        r"says that it passed, and holds: no dtype",
    ),
    "a pickle next to it": (
        lambda f: (f / "adapter_model.bin").write_bytes(b"x"),
        r"advice/adapter_model.bin is not a file of this bundle, and its name makes it part of the adapter",
    ),
    "invocation deleted": (delete_invocation, r"has no alora_invocation_tokens.*silently run as a plain LoRA"),
    "invocation changed": (
        lambda f: edit(f / "adapter_config.json", lambda c: c["alora_invocation_tokens"].append(9)),
        r"alora_invocation_tokens is \[.*9\], but the suffix",
    ),
    "manifest edited": (
        lambda f: edit(f / "alora.json", lambda m: m["operating_point"].update(threshold=0.01)),
        r"alora.json was changed after it was written",
    ),
    "newer schema": (signed(schema_version=2), r"schema_version is 2, and this alora reads 1; upgrade"),
    "marker false": (signed(activated=False), r"says that this is a plain LoRA"),
    "suffix shifted": (lambda f: resign(f, lambda m: m["suffix"]["token_ids"].pop(0)), r"not a valid manifest"),
    "path outside": (
        lambda f: resign(f, lambda m: m["files"].update({"../../passwd": {"size": 1, "sha256": ""}})),
        r"is none of alora.json",
    ),
    "another template": (
        lambda f: resign(f, lambda m: m["prompt"].update(template_kwargs={"chat_template": "{{ messages }}"})),
        r"template_kwargs.chat_template is ",
    ),
    "logits of three labels": (third_logit, r"golden.jsonl has not one logit per label"),
    "other digest": (signed(adapter_digest="0" * 64), r"the adapter's digest is 000000000000, the certificate's is"),
    "other digest, also in the certificate": (other_digest, r"not the adapter that was"),
    "no certificate": (signed(certificate=None), r"has no KV identity certificate"),
    "failed certificate": (of_certificate(passed=False), r"a KV identity certificate that failed"),
    "another certificate": (of_certificate(sha256="0" * 64), r"is not the certificate that alora.json names"),
    "missing manifest": (lambda f: (f / "alora.json").unlink(), r"no alora.json.*alora export"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(case, folder):
    assert load_bundle(folder).policy.id == "advice"
    damage, message = DAMAGE[case]
    damage(folder)
    with pytest.raises(BundleError, match=message) as caught:
        load_bundle(folder)
    assert str(folder) in str(caught.value)
    assert caught.value.code in (DAMAGED, CHANGED, NEWER, NOT_OURS)


def test_every_part_of_the_manifest_is_in_its_digest(folder):
    content = json.loads((folder / "alora.json").read_text())
    known = content.pop("sha256")
    assert content_digest(content) == known
    assert {name for name in content if content_digest(content | {name: "changed"}) == known} == set()


def test_a_lora_that_claims_an_invocation(base, tmp_path):
    contents = BundleContents(POLICIES["advice"], PROMPT, base=base, weights=make_adapter(base, activated=False))
    folder = write_bundle(contents, tmp_path / "lora", golden_rows=1).folder
    edit(folder / "adapter_config.json", lambda config: config.update(alora_invocation_tokens=[1, 2]))
    with pytest.raises(BundleError, match=r"has alora_invocation_tokens, but alora\.json says.*plain LoRA"):
        load_bundle(folder)


def another_tokenizer(base: LoadedBase) -> LoadedBase:
    tokenizer = toy_tokenizer("qwen3")
    tokenizer.add_tokens(["<unheard_of>"])
    return replace(base, tokenizer=tokenizer, fingerprint=fingerprint_base(None, base.model, tokenizer))


def another_template(base: LoadedBase) -> LoadedBase:
    tokenizer = toy_tokenizer("qwen3")
    tokenizer.chat_template = tokenizer.chat_template.replace("<|im_end|>", "<|im_end|> ")
    return replace(base, tokenizer=tokenizer, fingerprint=fingerprint_base(None, base.model, tokenizer))


WRONG_BASES = {
    "weights": (lambda base: make_base(seed=1), "weights are not those"),
    "tokenizer": (another_tokenizer, "tokenizer is another one"),
    "template": (another_template, "chat template is another one"),
    "quantization": (
        lambda base: replace(base, fingerprint=replace(base.fingerprint, quantization="nf4")),
        "quantized in another way",
    ),
}


@pytest.mark.parametrize("part", WRONG_BASES)
def test_another_base_is_refused_by_the_part_that_differs(part, folder, base):
    bundle = load_bundle(folder)
    bundle.check_base(make_base())  # the same base, made again, is the same
    change, message = WRONG_BASES[part]
    with pytest.raises(BundleError, match=message) as caught:
        bundle.check_base(change(base))
    others = [text for name, (_, text) in WRONG_BASES.items() if name != part]
    assert not any(text in str(caught.value) for text in others)


def test_a_suffix_that_was_changed_is_not_blamed_on_a_version(folder, base):
    load_bundle(folder).check_base(base)
    resign(folder, lambda m: m["suffix"]["label_token_ids"].reverse())
    with pytest.raises(BundleError, match=r"label tokens.*was changed after it was written") as caught:
        load_bundle(folder).check_base(base)
    assert "install that version" not in str(caught.value)


def test_golden_logits_catch_another_answer(folder, base):
    bundle = load_bundle(folder)
    row = bundle.golden[0]
    wrong = replace(row, label_logits=(row.label_logits[0] + 1e-3, *row.label_logits[1:]))
    with pytest.raises(CheckFailed, match="differ by"):
        check_golden(replace(bundle, golden=(wrong,)), base, 1e-5)
    broken = replace(row, label_logits=(row.label_logits[0], math.nan))
    with pytest.raises(CheckFailed, match="differ by inf"):
        check_golden(replace(bundle, golden=(row, broken)), base, 1e-5)
    other = with_weights(bundle, make_adapter(base, seed=9))
    with pytest.raises(CheckFailed, match="differ by"):
        check_golden(other, base, 1e-2)
    with pytest.raises(BundleError, match="chat template is another one"):
        check_golden(bundle, another_template(base), 1e9)


@pytest.mark.parametrize("change", [scaled, swapped])
def test_other_tensors_under_right_digests_are_refused(change, contents, folder, base, tmp_path):
    """A digest shows only that a file is the listed one; both bundles go through one pass, and one is at fault."""
    whole = write_bundle(make_contents(base, tmp_path / "b", "refunds", 2), tmp_path / "refunds", golden_rows=2)
    check_bundles([load_bundle(folder), whole], base)
    forge(folder, change)
    forged = load_bundle(folder)
    assert forged.weights.digest != contents.weights.digest
    with pytest.raises(CheckFailed, match=r"advice: log-probabilities .* differ by .*tolerance 0.001") as caught:
        check_bundles([whole, forged], base)
    assert "refunds" not in str(caught.value)
    coarse = replace(forged.manifest, base=replace(forged.manifest.base, dtype="bfloat16"))
    check_bundles([with_weights(replace(forged, manifest=coarse), contents.weights)], base)


def test_the_base_to_load(folder, base):
    bundle = load_bundle(folder)
    assert bundle.base_settings(BaseSettings()).source == "toys/qwen3"
    assert bundle.base_settings(BaseSettings(source="/other", dtype="float64")).dtype == "float64"
    made = replace(bundle.manifest.base.fingerprint, quantization="nf4")
    pinned = replace(bundle.manifest.base, revision="v1", fingerprint=made)
    manifest = replace(bundle.manifest, base=pinned, template_kwargs={"enable_thinking": False})
    here, elsewhere = (replace(bundle, manifest=manifest).base_settings(BaseSettings(source=s)) for s in (None, "/x"))
    assert (here.revision, elsewhere.revision) == ("v1", None)
    assert here.quantization == elsewhere.quantization == "nf4"
    assert here.template_kwargs == elsewhere.template_kwargs == {"enable_thinking": False}
    given = BaseSettings(revision="v2", quantization="none")
    chosen = replace(bundle, manifest=manifest).base_settings(given)
    assert (chosen.revision, chosen.quantization) == ("v2", "none")
    record = replace(bundle.manifest.base, local=True)
    local = replace(bundle, manifest=replace(bundle.manifest, base=record))
    with pytest.raises(ConfigError, match=r"local folder.*base\.source=FOLDER"):
        local.base_settings(BaseSettings())


def test_a_battery_is_one_base(base, contents, tmp_path):
    first = write_bundle(contents, tmp_path / "advice", golden_rows=1)
    second = write_bundle(make_contents(base, tmp_path / "a", "refunds", 2), tmp_path / "refunds", golden_rows=1)
    write_battery(tmp_path, [second, first])
    assert [bundle.policy.id for bundle in load_battery(tmp_path)] == ["refunds", "advice"]
    assert find_artifact(tmp_path).kind is Kind.BATTERY

    strange = make_contents(make_base(seed=4), tmp_path / "c", "refunds", 2)
    with pytest.raises(BundleError, match=r"different bases \(weights differ\)"):
        write_battery(tmp_path, [first, write_bundle(strange, tmp_path / "strange", golden_rows=1)])
    assert [bundle.policy.id for bundle in load_battery(tmp_path)] == ["refunds", "advice"]
    third = replace(second, manifest=replace(second.manifest, policy=Policy("third", "T", "R")))
    for change, name in (
        ({"prompt": replace(PROMPT, max_prefix_tokens=300)}, r"prompt\.max_prefix_tokens"),
        ({"prompt": replace(PROMPT, truncation="start")}, r"prompt\.truncation"),
        ({"prompt": replace(PROMPT, layout="turns")}, r"prompt\.layout"),
        ({"template_kwargs": {"enable_thinking": False}}, r"base\.template_kwargs"),
    ):
        with pytest.raises(BundleError, match=f"differ in {name}"):
            require_one_base([first, second, replace(third, manifest=replace(third.manifest, **change))])
    spelled_out = replace(second.manifest, prompt=replace(PROMPT, instruction="rule"))
    require_one_base([first, replace(second, manifest=spelled_out)])
    with pytest.raises(BundleError, match=r"2 bundles answer the policy 'advice'"):
        require_one_base([first, second, first])
    with pytest.raises(BundleError, match="no bundles"):
        require_one_base([])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ('{"schema_version": 2, "bundles": ["gone"]}', "schema_version is"),
        *(
            (f'{{"schema_version": 1, "bundles": ["advice", {name}]}}', r"not a name of a folder|bundles\[1\] is ")
            for name in ('"../advice"', '".."', "7")
        ),
        ('{"schema_version": 1, "bundles": []}', "no bundles"),
        ('{"schema_version": 1, "bundles": ["gone"]}', "has no alora.json"),
    ],
)
def test_damaged_batteries(text, message, tmp_path):
    (tmp_path / "battery.json").write_text(text)
    with pytest.raises(BundleError, match=message) as caught:
        load_battery(tmp_path)
    assert len(str(caught.value)) < 500


def test_artifacts_are_told_apart(folder, tmp_path, monkeypatch):
    assert find_artifact(folder) == Artifact(Kind.BUNDLE, folder, (folder,), (folder,), None)
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.yaml").write_text("name: run\n")
    assert find_artifact(run) == Artifact(Kind.RUN, run, (), (), run)
    adapters = tuple(run / "policies" / name / "adapter" for name in ("advice", "refunds"))
    for adapter in adapters:
        shutil.copytree(folder, adapter)
        (adapter / "alora.json").unlink()
    found = find_artifact(run)
    assert (found.bundles, found.adapters, found.several) == ((), adapters, True)
    assert members_by_policy(found) == dict(zip(("advice", "refunds"), adapters, strict=True))
    assert find_artifact(adapters[0]) == Artifact(Kind.ADAPTER, adapters[0], (), adapters[:1], run)
    bundle = run / "battery/advice"
    shutil.copytree(folder, bundle)
    write_battery(run / "battery", [load_bundle(bundle)])
    assert members_by_policy(find_artifact(run)) == {"advice": bundle}
    assert find_artifact(run / "battery") == Artifact(Kind.BATTERY, run / "battery", (bundle,), (bundle,), run)
    (folder / "battery").mkdir()
    (folder / "battery" / "battery.json").write_text("{}")
    assert find_artifact(folder).kind is Kind.BUNDLE, "only a run has a battery"
    monkeypatch.chdir(bundle)
    assert find_artifact(".").run == run
    with pytest.raises(BundleError, match="is not a folder"):
        find_artifact(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["chat_template", "tools", "date_string"])
def test_template_settings_that_are_no_switches_are_refused(name, folder, base):
    """Each would render prompts that the template's fingerprint does not know."""
    resign(folder, lambda m: m["prompt"].update(template_kwargs={"unread": False}))
    load_bundle(folder).check_base(base)
    resign(folder, lambda m: m["prompt"].update(template_kwargs={name: False}))
    with pytest.raises(RenderError, match=f"template_kwargs.{name} is not a switch"):
        load_bundle(folder).check_base(base)
