"""The tiny offline base: built once whatever happens, and worth having."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from alora.base.pretrain import Architecture
from alora.base.tiny import RECIPE, build_tiny_base, ensure_tiny_base, tiny_base_folder
from alora.base.tiny_corpus import turn
from alora.base.tiny_talk import UNSEEN, Talk, random_acts, write_talk
from alora.errors import BaseError
from alora.render import HEADING, SYSTEM_TEXT

SHAPE = Architecture(layers=2, hidden=32, heads=2, kv_heads=1, head_dim=16, intermediate=48, vocab=1024)
QUICK = replace(RECIPE, architecture=SHAPE, documents=100, steps=3)
BUILD = """
import sys
from dataclasses import replace
from alora.base.pretrain import Architecture
from alora.base.tiny import RECIPE, ensure_tiny_base
shape = Architecture(layers=2, hidden=32, heads=2, kv_heads=1, head_dim=16, intermediate=48, vocab=1024)
recipe = replace(RECIPE, architecture=shape, documents=100, steps=int(sys.argv[1]))
print(ensure_tiny_base(progress=False, recipe=recipe))
"""


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ALORA_CACHE", str(tmp_path))
    return tmp_path / "bases"


def start(steps: int) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", BUILD, str(steps)], stdout=subprocess.PIPE, text=True)


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_it_is_built_once(cache):
    folder = ensure_tiny_base(progress=False, recipe=QUICK)
    made = (folder / "model.safetensors").stat()
    assert ensure_tiny_base(progress=False, recipe=QUICK) == folder == tiny_base_folder(QUICK)
    assert (folder / "model.safetensors").stat() == made
    assert visible(cache) == [folder.name]


def test_other_settings_are_another_folder():
    folders = {tiny_base_folder(recipe) for recipe in (QUICK, replace(QUICK, seed=1), replace(QUICK, version=99))}
    assert len(folders) == 3
    assert tiny_base_folder(replace(QUICK)) in folders


def test_the_same_recipe_gives_the_same_weights(tmp_path):
    bases = [build_tiny_base(tmp_path / name, False, QUICK) for name in ("first", "second")]
    other = build_tiny_base(tmp_path / "other", False, replace(QUICK, seed=1))
    first, second, third = (bytes_of(folder) for folder in (*bases, other))
    assert first == second
    assert first != third


def bytes_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_two_processes_build_one_base(cache):
    both = [start(3), start(3)]
    said = [process.communicate(timeout=300)[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1] == str(tiny_base_folder(QUICK))
    assert visible(cache) == [tiny_base_folder(QUICK).name]


def test_a_killed_build_leaves_no_base_and_can_be_repeated(cache):
    process = start(100_000)
    while process.poll() is None and not (cache.is_dir() and any(cache.iterdir())):
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert visible(cache) == []
    assert ensure_tiny_base(progress=False, recipe=QUICK).is_dir()


def test_a_cache_that_is_a_file_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ALORA_CACHE", str(tmp_path / "file"))
    with pytest.raises(BaseError, match="set ALORA_CACHE to a writable folder"):
        ensure_tiny_base(progress=False, recipe=QUICK)


def test_an_existing_folder_is_not_overwritten(tmp_path):
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(BaseError, match="exists already"):
        build_tiny_base(tmp_path / "mine", False, QUICK)
    assert (tmp_path / "mine").read_text() == "precious"


def right_summaries(model, tokenizer, talks: list[Talk]) -> float:
    """Share of conversations in held-out wording whose first turn's topic the base names right."""
    right = 0
    for talk in talks:
        lines = "\n".join(f"{message['role'].capitalize()}: {message['content']}" for message in talk.messages())
        prompt = turn("system", SYSTEM_TEXT) + turn("user", HEADING + lines) + turn("user", "List the turns.")
        ids_BT = torch.tensor([tokenizer.encode(prompt + "<|im_start|>assistant\n")])
        with torch.no_grad():
            answer = int(model(input_ids=ids_BT).logits[0, -1].argmax())
        right += answer == tokenizer.encode(talk.exchanges[0].topic.name)[0]
    return right / len(talks)


def test_it_can_say_what_a_conversation_is_about():
    folder = ensure_tiny_base()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    rng = random.Random(5)
    talks = [write_talk(random_acts(rng), UNSEEN, rng) for _ in range(100)]
    assert right_summaries(model, tokenizer, talks) > 0.7

    torch.manual_seed(0)
    untrained = AutoModelForCausalLM.from_config(model.config)
    assert right_summaries(untrained, tokenizer, talks) < 0.4
