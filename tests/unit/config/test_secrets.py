"""Secrets in settings are used, and never shown, saved or sent."""

import json
import sys
from dataclasses import asdict

import pytest

from alora.cli import main
from alora.config.environment import command_line
from alora.config.saved import read_saved_recipe, save_recipe
from alora.config.schema import JudgeSettings, Recipe, ServingSettings
from alora.config.secrets import HIDDEN, in_the_clear, is_far, redacted, without_secret
from alora.training.tracking import start_tracking

SECRET = "S3cr3t"
TEXTS = [
    f"alora serve serving.arguments=[--api-key,{SECRET}] serving.port=1",
    f"alora serve 'serving.arguments=[--api-key, {SECRET}, other-{SECRET}]'",
    f"vllm serve base --api-key {SECRET} --port 1",
    f"vllm serve base --api-key={SECRET} name",
    f"--hf-token {SECRET}",
    f"arguments:\n  - --api-key\n  - {SECRET}\n  - '{SECRET} {SECRET}'\nname: x",
    f'["--api-key", "{SECRET},{SECRET}"]',
    f"judge.url=https://me:{SECRET}@host/v1",
    f"judge.url=https://me:a'{SECRET}@host/v1",
    f'["https://me:a\\"{SECRET}@host/v1"]',
    f"https://host/v1?api-key={SECRET}&x=1",
]


@pytest.mark.parametrize("text", TEXTS)
def test_hidden_in_every_form_in_which_settings_are_shown(text):
    assert SECRET in text
    assert SECRET not in redacted(text)
    assert HIDDEN in redacted(text)


@pytest.mark.parametrize(
    "text",
    ["--port 1 --max-tokens 5 --tokenizer x", "me@host", "https://host/v1?api-version=2", "http://h/a b@c", "a, b"],
)
def test_what_is_no_secret_stays(text):
    assert redacted(text) == text


def secretive() -> Recipe:
    arguments = ["--api-key", SECRET, "--max-num-seqs", "4", f"--hf-token={SECRET}"]
    return Recipe(
        scorer=f"http://me:{SECRET}@host",
        judge=JudgeSettings(url=f"https://me:{SECRET}@host/v1", model="m"),
        serving=ServingSettings(arguments=arguments),
    )


def test_saved_settings_hold_none(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "alora", f"judge.url=https://me:{SECRET}@host"])
    file = tmp_path / "run.yaml"
    save_recipe(secretive(), file, {"command": command_line()})
    assert SECRET not in file.read_text()
    assert read_saved_recipe(file) == Recipe(judge=JudgeSettings(model="m"))


def test_what_a_tracker_gets(tmp_path, monkeypatch):
    sent: list[str] = []
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_text", lambda self, name, text: sent.append(text))
    recipe = secretive()
    recipe.tracking.kind = "tensorboard"
    with start_tracking(recipe, tmp_path, False, print) as tracking:
        tracking.log({"loss": 1.0}, 1)
    assert json.loads(sent[0])["judge"]["model"] == "m"
    assert SECRET not in str(sent)
    assert SECRET in str(asdict(recipe))  # and the run itself keeps it


@pytest.mark.parametrize(
    "flags", [["score", "--cfg", "job"], ["score", "--cfg=job"], ["score", "--help", "all"], ["compare", "-h"]]
)
def test_settings_on_the_screen(flags, capsys):
    command = [*flags, f"serving.arguments=[--api-key,{SECRET}]", f"judge.url=https://me:{SECRET}@host/v1"]
    assert main([*command, "judge.model=any"]) == 0
    shown = capsys.readouterr()
    assert SECRET not in shown.out + shown.err
    assert f"https://{HIDDEN}@host/v1" in shown.out


@pytest.mark.parametrize(
    ("host", "far"),
    [("127.0.0.1", False), ("127.9.9.9", False), ("::1", False), ("localhost", False), ("0.0.0.0", True), ("::", True),
     ("10.0.0.1", True), ("example.org", True), ("", True), (None, True)],
)  # fmt: skip
def test_hosts_that_others_reach(host, far):
    assert is_far(host) is far


def test_cleartext_to_another_machine_is_remarked_on():
    assert in_the_clear("https://example.org/v1") is None
    assert in_the_clear("http://127.0.0.1:8000") is None
    assert in_the_clear("http://[::1]:8000") is None
    assert "not encrypted" in str(in_the_clear("http://10.0.0.1:8000"))
    assert SECRET not in str(in_the_clear(f"http://me:{SECRET}@10.0.0.1:8000"))


def test_a_command_line_is_kept_without_what_may_hold_a_secret(monkeypatch):
    words = [f"judge.url=https://h/v1?API_KEY={SECRET}", f'++serving.arguments=["--api-key=-{SECRET}"]', "scorer=vllm"]
    monkeypatch.setattr(sys, "orig_argv", ["alora", "train", *words, f"scorer=https://me:{SECRET}@host"])
    kept = command_line()
    assert SECRET not in kept
    assert "scorer=vllm" in kept
    assert without_secret("bench.serving.engine=scorer") == "bench.serving.engine=scorer"  # a record can be run again
    assert f"judge.url={HIDDEN}" in kept.replace("'", "")
