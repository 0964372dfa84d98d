"""Bases, adapters, bundles and runs that are damaged, foreign, refused or of another version."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from alora.adapter.folder import CONFIG_FILE, WEIGHTS_FILE
from alora.cli import main
from alora.text import content_digest
from tests.integration.bad_input.conftest import Case, Damage, arguments, copy, cut, edit, remove, write


def quantized(method: str) -> Damage:
    settings = {"quant_method": method, "bits": 4, "group_size": 32, "dataset": "c4"}
    return edit("config.json", lambda config: config.update(quantization_config=settings))


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")


BASES = {
    "no chat template": remove("chat_template.jinja"),
    "quantized with GPTQ": quantized("gptq"),
    "quantized with HQQ": quantized("hqq"),
    "broken config": write("config.json", "{"),
    "unknown architecture": edit(
        "config.json", lambda config: config.update(model_type="nothing", architectures=["Nothing"])
    ),
    "no weights": remove("model.safetensors"),
    "pickled weights": pickled,
    "truncated weights": cut("model.safetensors"),
    "broken template": write("chat_template.jinja", "{% if %}"),
}


BUNDLES = {
    "invocation stripped": edit(CONFIG_FILE, lambda config: config.pop("alora_invocation_tokens")),
}


ADAPTERS = {
    "truncated weights": cut(WEIGHTS_FILE),
    "broken config": write(CONFIG_FILE, '{"r":'),
    "another rank": edit(CONFIG_FILE, lambda c: c.update(r=3)),
    "the first aLoRA package": edit(
        CONFIG_FILE, lambda c: (c.pop("alora_invocation_tokens"), c.update(invocation_string="<|im_start|>"))
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
SCORE_RUN, EVALUATE_RUN = "score artifact={here}/run {place}/talk.json", "evaluate artifact={here}/run"
OF_OTHERS = {
    "another adapter": (
        edit("policies/toy/training.json", signed(lambda record: record.update(adapter_digest="0" * 64))),
        "training.json has adapter_digest 000000000000",
    ),
    "another policy's adapter": (
        edit("policies/toy/training.json", signed(lambda record: record.update(policy="other"))),
        "training.json has policy other, not toy",
    ),
    "another loss": (
        edit("policies/toy/training.json", lambda record: record.update(peak_bytes=1)),
        "training.json was changed",
    ),
    "another certificate": (
        edit("policies/toy/identity.json", lambda record: record.update(created="2026-01-01T00:00:00Z")),
        "identity.json",
    ),
    "another threshold": (edit(FIGURES, lambda found: other_threshold(found["evaluations"][0])), "evaluation.json"),
}
OTHER_POINT = (edit("battery/toy/alora.json", signed(other_threshold)), "battery/toy is not of this run")
RUNS = {  # what is wrong with a finished run, the command that must see it, and its exit code where that is not 2
    "no claim": (remove("inputs.json"), EXPORT),
    "a claim that is cut": (write("inputs.json", '{"kind":'), "train"),
    "another prompt": (in_settings("layout: transcript", "layout: turns"), EVALUATE_RUN),
    "another prompt, exported": (in_settings("layout: transcript", "layout: turns"), EXPORT),
    "other words for its labels": (
        in_settings("label_map: {}", "label_map: {violation: ok, ok: violation}"),
        EVALUATE_RUN,
    ),
    **{f"{name}, exported": (damage, EXPORT) for name, (damage, _) in OF_OTHERS.items()},
    "an adapter whose invocation was stripped": (
        lambda run: (shutil.rmtree(run / "battery"), edit("policies/toy/adapter/" + CONFIG_FILE, no_invocation)(run)),
        EVALUATE_RUN,
    ),
    "no bundle yet": (lambda run: shutil.rmtree(run / "battery"), SCORE_RUN),
    "no adapter yet": (lambda run: [shutil.rmtree(run / name) for name in ("battery", "policies")], EVALUATE_RUN),
    "settings of another version": (
        lambda run: (run / "run.yaml").write_text((run / "run.yaml").read_text() + "epochs_total: 3\n"),
        SCORE_RUN,
    ),
    "an evaluation of another adapter": (
        edit(FIGURES, signed(lambda content: content["evaluations"][0].update(adapter_digest="0" * 64))),
        EXPORT,
    ),
    "a damaged certificate": (write("policies/toy/identity.json", '{"passed":'), EXPORT),
    "no certificate": (remove("policies/toy/identity.json"), EXPORT, 1),
    "other settings": (lambda run: None, "train adapter.rank=8"),
}


BASE, EVALUATE = "base.source={place}/base", "evaluate data.test={place}/test.jsonl"
SCORE, OF_ADAPTER = "score conversation={place}/talk.json", EVALUATE + " policy.file={place}/policy.yaml"

CASES = {
    f"bases: {name}": Case("train base.source={here}/base", copied="base", damage=damage)
    for name, damage in BASES.items()
}
CASES |= {
    f"bundles: {name}": Case(f"{SCORE} artifact={{here}}/bundle {BASE}", copied="run/bundle", damage=damage)
    for name, damage in BUNDLES.items()
}
CASES |= {
    f"another base, {verb.split()[0]}": Case(f"{verb} artifact={{place}}/run base.source={{place}}/other")
    for verb in (SCORE, "validate", EVALUATE)
}
CASES |= {
    f"adapters: {name}": Case(f"{OF_ADAPTER} artifact={{here}}/adapter {BASE}", copied="run/adapter", damage=damage)
    for name, damage in ADAPTERS.items()
}
CASES |= {
    f"adapters, {verb.split()[0]}: of another width": Case(
        f"{verb} artifact={{place}}/run/adapter base.source={{place}}/wide"
    )
    for verb in (OF_ADAPTER, "validate")
}
CASES |= {
    f"runs: {name}": Case(command, *code, copied="run", damage=damage)
    for name, (damage, command, *code) in RUNS.items()
}


@pytest.mark.parametrize(("damage", "word"), [*OF_OTHERS.values(), OTHER_POINT])
def test_a_finished_run_shows_no_verdict_of_a_stage_that_is_not_its_own(damage, word, place, here, capsys):
    damage(copy(place / "run", here / "run"))
    assert main(arguments("train", place, here)) == 2
    output, errors = capsys.readouterr()
    assert word in errors
    assert "verdict" not in output


def test_the_same_training_over_a_damaged_file(place, here, capsys):
    """What the message advises is enough."""
    file = "policies/toy/evaluation.json"
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
