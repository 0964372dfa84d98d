"""Bases, adapters, bundles and runs that are damaged, foreign, refused or of another version."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from alora.adapter.folder import CONFIG_FILE, WEIGHTS_FILE, AdapterSpec, new_adapter, save_adapter
from alora.cli import main
from alora.text import content_digest
from tests.integration.bad_input.conftest import Case, Damage, arguments, copy, cut, edit, remove, write
from tests.toy_models import toy_model
from tests.toy_tokenizers import toy_tokenizer


def quantized(method: str) -> Damage:
    settings = {"quant_method": method, "bits": 4, "group_size": 32, "dataset": "c4"}
    return edit("config.json", lambda config: config.update(quantization_config=settings))


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")


def newer(manifest: dict) -> None:
    manifest["schema_version"] += 1
    manifest["sha256"] = content_digest(manifest)


BASES = {
    "no chat template": (remove("chat_template.jinja"), ["no chat template", "base.chat_template=plain"]),
    "quantized with GPTQ": (quantized("gptq"), ["quantized with gptq", "refuses", "use its bf16 base"]),
    "quantized with HQQ": (quantized("hqq"), ["quantized with hqq", "refuses", "use its bf16 base"]),
    "quantized with AWQ": (quantized("awq"), ["quantized with awq", "refuses", "use its bf16 base"]),
    "broken config": (write("config.json", "{"), ["cannot be loaded", "check base.source"]),
    "no config": (remove("config.json"), ["cannot be loaded", "check base.source"]),
    "unknown architecture": (
        edit("config.json", lambda config: config.update(model_type="nothing", architectures=["Nothing"])),
        ["cannot be loaded", "nothing", "check base.source"],
    ),
    "no weights": (remove("model.safetensors"), ["cannot be loaded", "check base.source"]),
    "pickled weights": (pickled, ["cannot be loaded", "safetensors", "check base.source"]),
    "truncated weights": (cut("model.safetensors"), ["cannot be loaded", "check base.source"]),
    "broken tokenizer": (write("tokenizer.json", "{}"), ["cannot be loaded", "check base.source"]),
    "broken template": (
        write("chat_template.jinja", "{% if %}"),
        ["chat template fails", "mend its chat_template.jinja"],
    ),
}


BUNDLES = {
    "truncated adapter": (cut(WEIGHTS_FILE), [f"{WEIGHTS_FILE} is cut short", "copy or export"]),
    "changed adapter config": (
        edit(CONFIG_FILE, lambda config: config.update(r=3)),
        [CONFIG_FILE, "copy or export"],
    ),
    "invocation stripped": (
        edit(CONFIG_FILE, lambda config: config.pop("alora_invocation_tokens")),
        [CONFIG_FILE, "a tool deleted the key", "copy the original file back"],
    ),
    "no weights": (remove(WEIGHTS_FILE), [f"lacks {WEIGHTS_FILE}", "copy or export"]),
    "manifest of a newer alora": (edit("alora.json", newer), ["schema_version is 2", "pip install -U"]),
    "edited manifest": (
        edit("alora.json", lambda manifest: manifest["operating_point"].update(threshold=0.01)),
        ["was changed after it was written", "export the bundle again"],
    ),
    "broken manifest": (cut("alora.json"), ["alora.json cannot be read as JSON", "export the bundle again"]),
    "manifest of something else": (write("alora.json", "{}"), ["schema_version is None", "export"]),
    "truncated golden rows": (cut("golden.jsonl"), ["golden.jsonl is cut short", "copy or export"]),
    "no certificate": (remove("identity.json"), ["lacks identity.json", "copy or export"]),
}


def other_tokenizer(folder: Path) -> None:
    tokenizer = toy_tokenizer("llama3")
    tokenizer.chat_template = toy_tokenizer("qwen3").chat_template
    tokenizer.save_pretrained(folder)


STRANGE_BASES = {
    "other weights": (lambda folder: None, "other", ["weights are not those"]),
    "other width": (lambda folder: None, "wide", ["weights are not those"]),
    "other tokenizer": (other_tokenizer, "base", ["tokenizer is another one"]),
    "other template": (write("chat_template.jinja", "{{ messages[0].content }}"), "base", ["chat template is another"]),
}


def test_a_recipe_in_the_working_folder_does_not_change_the_base(place, here, refused):
    (here / "recipe.yaml").write_text(f"base:\n  source: {place / 'other'}\n")
    for verb in ("score conversation={place}/talk.json", "validate"):
        command = f"{verb} artifact={{place}}/run"
        assert main(arguments(command, place, here)) == 0
        refused(Case(f"{command} base.source={{place}}/other", ["weights are not those"]))


ADAPTERS = {
    "truncated weights": (cut(WEIGHTS_FILE), [WEIGHTS_FILE, "is damaged", "export the adapter again"]),
    "no safetensors at all": (write(WEIGHTS_FILE, "\x80" * 99), [WEIGHTS_FILE, "is damaged"]),
    "no weights": (remove(WEIGHTS_FILE), [f"has no {WEIGHTS_FILE}", "save it again with PEFT"]),
    "broken config": (cut(CONFIG_FILE), [f"{CONFIG_FILE} cannot be read", "export the adapter again"]),
    "a rank without end": (edit(CONFIG_FILE, lambda c: c.update(r=math.inf)), ["is not a usable LoRA config"]),
    "a rank beyond all": (write(CONFIG_FILE, '{"peft_type": "LORA", "r": 1e999}'), ["is not a usable LoRA config"]),
    "no rank": (edit(CONFIG_FILE, lambda c: c.update(r=0)), ["r must be a whole number of 1 or more"]),
    "another rank": (edit(CONFIG_FILE, lambda c: c.update(r=3)), ["rank 3", "do not belong together"]),
    "some layers alone": (edit(CONFIG_FILE, lambda c: c.update(layers_to_transform=[0])), ["layers_to_transform"]),
    "but some modules": (edit(CONFIG_FILE, lambda c: c.update(exclude_modules=["v_proj"])), ["exclude_modules"]),
    "DoRA": (edit(CONFIG_FILE, lambda c: c.update(use_dora=True)), ["use_dora", "train it without"]),
    "PiSSA": (
        edit(CONFIG_FILE, lambda c: c.update(init_lora_weights="pissa")),
        ["init_lora_weights=pissa", "train it without"],
    ),
    "the first aLoRA package": (
        edit(CONFIG_FILE, lambda c: (c.pop("alora_invocation_tokens"), c.update(invocation_string="<|im_start|>"))),
        ["invocation_string", "one token later", "train the adapter again"],
    ),
    "no LoRA": (edit(CONFIG_FILE, lambda c: c.update(peft_type="IA3")), ["peft_type is not LORA"]),
    "no invocation tokens": (
        edit(CONFIG_FILE, lambda c: c.update(alora_invocation_tokens=[])),
        ["alora_invocation_tokens must be"],
    ),
}


def no_invocation(config: dict) -> None:
    """What tools do that delete keys which they do not know."""
    config.pop("alora_invocation_tokens")


def signed(change: Callable[[dict], object]) -> Callable[[dict], None]:
    """A change of a record whose digest is made right again."""

    def changed(content: dict) -> None:
        change(content)
        content["sha256"] = content_digest(content)

    return changed


def other_threshold(evaluation: dict) -> None:
    evaluation["operating_point"].update(threshold=0.99, threshold_high=0.99)


def in_settings(old: str, new: str) -> Damage:
    """A run without its bundle, and with another text in its ``run.yaml``."""

    def damage(run: Path) -> None:
        shutil.rmtree(run / "battery")
        text = (run / "run.yaml").read_text()
        assert old in text
        (run / "run.yaml").write_text(text.replace(old, new))

    return damage


EXPORT, FIGURES = "export artifact={here}/run output={here}/out", "policies/toy/evaluation.json"
RUNS = {
    "no claim": (remove("inputs.json"), Case(EXPORT, ["inputs.json cannot be read", "train again, or name a bundle"])),
    "a claim that is cut": (cut("inputs.json"), Case(EXPORT, ["inputs.json cannot be read", "train again"])),
    "a claim to evaluate by": (remove("inputs.json"), Case("evaluate artifact={here}/run", ["inputs.json cannot be"])),
    "a claim of a list": (
        edit("inputs.json", lambda claim: claim.update(inputs=[])),
        Case(EXPORT, ["inputs.json is not the record", "inputs: "]),
    ),
    "a claim of a list, trained on": (
        edit("inputs.json", lambda claim: claim.update(inputs=[])),
        Case("train", ["inputs.json is not the record of an alora run", "another run_dir="]),
    ),
    "another prompt": (
        in_settings("layout: transcript", "layout: turns"),
        Case("evaluate artifact={here}/run", ["run.yaml is not as it was", "prompt.layout: transcript -> turns"]),
    ),
    "another prompt, exported": (
        in_settings("layout: transcript", "layout: turns"),
        Case(EXPORT, ["run.yaml is not as it was", "prompt.layout: transcript -> turns"]),
    ),
    "other words for its labels": (
        in_settings("label_map: {}", "label_map: {violation: ok, ok: violation}"),
        Case("evaluate artifact={here}/run", ["run.yaml is not as it was", "data.label_map.ok: None -> violation"]),
    ),
    **{
        f"another base, {command.split()[0]}": (
            lambda run: shutil.rmtree(run / "battery"),
            Case(
                f"{command} base.source={{place}}/other",
                ["does not fit the base", "weights are not those that the adapter"],
            ),
        )
        for command in ("evaluate artifact={here}/run", "validate artifact={here}/run", EXPORT)
    },
    "another adapter": (
        edit("policies/toy/training.json", lambda record: record.update(adapter_digest="0" * 64)),
        Case(EXPORT, ["training.json has adapter_digest 000000000000", "train again"]),
    ),
    "another policy's adapter": (
        edit("policies/toy/training.json", lambda record: record.update(policy="other")),
        Case(EXPORT, ["training.json has policy other, not toy", "train again"]),
    ),
    "an adapter of no policy": (
        edit("policies/toy/training.json", lambda record: record.pop("policy")),
        Case(EXPORT, ["training.json has policy None, not toy", "train again"]),
    ),
    "another threshold": (
        edit(FIGURES, lambda content: other_threshold(content["evaluations"][0])),
        Case(EXPORT, ["evaluation.json", "its sha256 differs", "evaluate again"]),
    ),
    "an adapter whose invocation was stripped": (
        lambda run: (shutil.rmtree(run / "battery"), edit("policies/toy/adapter/" + CONFIG_FILE, no_invocation)(run)),
        Case("evaluate artifact={here}/run", ["alora_invocation_tokens is gone", "copy the original file back"]),
    ),
    "no bundle yet": (
        lambda run: shutil.rmtree(run / "battery"),
        Case("score artifact={here}/run {place}/talk.json", ["holds no bundle", "alora export"]),
    ),
    "no adapter yet": (
        lambda run: [shutil.rmtree(run / name) for name in ("battery", "policies")],
        Case("evaluate artifact={here}/run", ["holds no adapter yet", "alora train"]),
    ),
    "no adapter to score by": (
        lambda run: [shutil.rmtree(run / name) for name in ("battery", "policies")],
        Case("score artifact={here}/run {place}/talk.json", ["holds no bundle", "run its `alora train` to the end"]),
    ),
    "settings of another version": (
        lambda run: (run / "run.yaml").write_text((run / "run.yaml").read_text() + "epochs_total: 3\n"),
        Case("score artifact={here}/run {place}/talk.json", ["run.yaml: unknown key 'epochs_total'", "train again"]),
    ),
    "settings that are no YAML": (
        lambda run: (run / "run.yaml").write_text("name: ["),
        Case("score artifact={here}/run {place}/talk.json", ["run.yaml:1: not YAML"]),
    ),
    "settings of a wrong type": (
        lambda run: (run / "run.yaml").write_text("training: {epochs: many}"),
        Case(
            "score artifact={here}/run {place}/talk.json",
            ["run.yaml: training.epochs", "'many'", "train again or edit"],
        ),
    ),
    "an evaluation of another adapter": (
        edit(FIGURES, signed(lambda content: content["evaluations"][0].update(adapter_digest="0" * 64))),
        Case("export artifact={here}/run", ["evaluation.json is of another adapter", "train again"]),
    ),
    "a damaged evaluation": (
        cut("policies/toy/evaluation.json"),
        Case("export artifact={here}/run", ["evaluation.json", "evaluate again"]),
    ),
    "a damaged certificate": (
        cut("policies/toy/identity.json"),
        Case("export artifact={here}/run", ["identity.json", "alora validate"]),
    ),
    "no certificate": (
        remove("policies/toy/identity.json"),
        Case("export artifact={here}/run", ["no KV identity certificate", "alora validate"], exit_code=1),
    ),
    "other settings": (lambda run: None, Case("train adapter.rank=8", ["adapter.rank: 16 -> 8", "run_dir="])),
    "a damaged claim": (
        cut("inputs.json"),
        Case("train", ["inputs.json cannot be read", "remove the folder"]),
    ),
}


BASE, EVALUATE = "base.source={place}/base", "evaluate data.test={place}/test.jsonl"
SCORE, OF_ADAPTER = "score conversation={place}/talk.json", EVALUATE + " policy.file={place}/policy.yaml"

CASES = {
    f"bases: {name}": Case("train base.source={here}/base", words, copied="base", damage=damage)
    for name, (damage, words) in BASES.items()
}
CASES |= {
    f"bundles, {verb.split()[0]}: {name}": Case(
        f"{verb} artifact={{here}}/bundle {BASE}", words, copied="run/bundle", damage=damage
    )
    for verb in (SCORE, "validate")
    for name, (damage, words) in BUNDLES.items()
}
CASES |= {
    f"another base, {verb.split()[0]}: {name}": Case(
        f"{verb} artifact={{place}}/run base.source={{here}}/{start}",
        [*words, "does not fit the base"],
        copied=start,
        damage=damage,
    )
    for verb in (SCORE, "validate", EVALUATE)
    for name, (damage, start, words) in STRANGE_BASES.items()
}
CASES |= {
    f"adapters, {verb.split()[0]}: {name}": Case(
        f"{verb} artifact={{here}}/adapter {BASE}", words, copied="run/adapter", damage=damage
    )
    for verb in (OF_ADAPTER, "validate")
    for name, (damage, words) in ADAPTERS.items()
}
CASES |= {
    f"adapters, {verb.split()[0]}: of another width": Case(
        f"{verb} artifact={{place}}/run/adapter base.source={{place}}/wide", ["does not fit", "restore that of"]
    )
    for verb in (OF_ADAPTER, "validate")
}
CASES |= {f"runs: {name}": replace(case, copied="run", damage=damage) for name, (damage, case) in RUNS.items()}


TRAINED_ON = {
    "another adapter": (
        edit("policies/toy/training.json", lambda record: record.update(adapter_digest="0" * 64)),
        "training.json has adapter_digest 000000000000",
    ),
    "another policy's adapter": (
        edit("policies/toy/training.json", lambda record: record.update(policy="other")),
        "training.json has policy other, not toy",
    ),
    "another threshold": (
        edit(FIGURES, lambda content: other_threshold(content["evaluations"][0])),
        "evaluation.json is damaged or of another version; remove it and run the same command again",
    ),
    "a bundle with another threshold": (
        edit("battery/toy/alora.json", signed(other_threshold)),
        "battery/toy is not of this run: another operating point; remove it and run the same command again",
    ),
}


@pytest.mark.parametrize("name", TRAINED_ON)
def test_a_finished_run_shows_no_verdict_of_a_stage_that_is_not_its_own(name, place, here, capsys):
    damage, words = TRAINED_ON[name]
    damage(copy(place / "run", here / "run"))
    assert main(arguments("train", place, here)) == 2
    output, errors = capsys.readouterr()
    assert words in errors
    assert "verdict" not in output


@pytest.mark.parametrize("file", ["policies/toy/evaluation.json", "policies/toy/identity.json"])
def test_the_same_training_over_a_damaged_file(file, place, here, capsys):
    """What the message advises is enough."""
    run = copy(place / "run", here / "run")
    before = (run / file).read_bytes()
    cut(file)(run)
    assert main(arguments("train", place, here)) == 2
    errors = capsys.readouterr().err
    assert f"run/{file} is damaged" in errors
    assert "remove it and run the same command again" in errors
    assert "Traceback" not in errors
    (run / file).unlink()
    assert main(arguments("train", place, here)) == 0
    assert json.loads((run / file).read_text()).keys() == json.loads(before).keys()


def test_a_plain_lora_has_no_identity_to_certify(place, here, refused):
    model = toy_model("qwen3", vocab=len(toy_tokenizer("qwen3")))
    save_adapter(new_adapter(AdapterSpec(4, 8.0, ("q_proj",), None), model, seed=0), here / "lora", "toy")
    words = ["plain LoRA", "from token 0"]
    refused(Case("validate artifact={here}/lora base.source={place}/base", words, exit_code=1))
