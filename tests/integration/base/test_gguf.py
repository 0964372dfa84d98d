"""A GGUF file as a base: converted once, whole or not at all."""

import io
import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from alora.base.gguf import converted
from alora.base.load import load_base
from alora.base.stored import load_tokenizer
from alora.config.schema import BaseSettings
from alora.errors import BaseError
from tests.toy_gguf import toy_gguf
from tests.toy_tokenizers import toy_tokenizer


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ALORA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_converted_base_is_the_model_that_the_file_was_made_from(tmp_path):
    model = toy_gguf(tmp_path / "toy.gguf")
    base = load_base(BaseSettings(source=str(tmp_path / "toy.gguf")), progress=False)
    ids = torch.arange(3, 40)[None]
    torch.testing.assert_close(base.model(ids).logits, model(ids).logits, rtol=1e-5, atol=1e-5)
    text = "User: can you tell me what to take?<|im_end|>\n"
    assert base.tokenizer.encode(text) == toy_tokenizer("qwen3").encode(text)
    assert base.tokenizer.chat_template == toy_tokenizer("qwen3").chat_template


def test_a_quantized_file_becomes_plain_float32_near_the_original(tmp_path):
    model = toy_gguf(tmp_path / "toy.gguf", quantized=True)
    again = AutoModelForCausalLM.from_pretrained(converted(tmp_path / "toy.gguf"))
    assert {tensor.dtype for tensor in again.state_dict().values()} == {torch.float32}
    assert not hasattr(again.config, "quantization_config")
    embedding, original = again.get_input_embeddings().weight, model.get_input_embeddings().weight
    assert 0 < (embedding - original).abs().max() < 0.1 * original.abs().max()


def test_what_lies_next_to_the_file_is_neither_run_nor_read(tmp_path, monkeypatch):
    toy_gguf(tmp_path / "toy.gguf")
    (tmp_path / "evil.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nfrom transformers import Qwen2TokenizerFast as Evil\n"
    )
    settings = {"auto_map": {"AutoTokenizer": [None, "evil.Evil"]}, "tokenizer_class": "Evil", "chat_template": "no"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    folder = converted(tmp_path / "toy.gguf")
    assert not (tmp_path / "ran").exists()
    assert load_tokenizer(BaseSettings(source=str(folder))).chat_template == toy_tokenizer("qwen3").chat_template


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"lacks": "blk.1.attn_q"}, "its files lack tensor model.layers.1.self_attn.q_proj.weight"),
        ({"architecture": "qwen2"}, "its files lack tensor model.layers.0.self_attn.k_proj.bias"),
    ],
    ids=str,
)
def test_a_file_that_is_not_what_its_header_says_makes_no_base(fault, words, tmp_path, cache):
    toy_gguf(tmp_path / "toy.gguf", **fault)
    with pytest.raises(BaseError, match=r"toy\.gguf.*download it again") as refused:
        converted(tmp_path / "toy.gguf")
    assert words in str(refused.value)
    assert [entry.name for entry in (cache / "bases").iterdir() if entry.is_dir()] == []


def test_tensors_of_other_shapes_than_the_config_says_make_no_base(tmp_path, cache):
    """transformers reads no head size from a Qwen3's header, and takes tensors of any shape from the file."""
    toy_gguf(tmp_path / "good.gguf", architecture="qwen3", family="qwen3", head_dim=128)
    load_base(BaseSettings(source=str(tmp_path / "good.gguf")), progress=False)
    shutil.rmtree(cache)
    toy_gguf(tmp_path / "toy.gguf", architecture="qwen3", family="qwen3", head_dim=8)
    with pytest.raises(BaseError, match=r"weight is \(8,\) in its files and \(128,\) by its config"):
        load_base(BaseSettings(source=str(tmp_path / "toy.gguf")), progress=False)


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def damaged_header(file: Path) -> None:
    file.write_bytes(b"GGUF" + bytes(200))


def foreign_bytes(file: Path) -> None:
    file.write_text("not a model")


@pytest.mark.parametrize("damage", [truncated, damaged_header, foreign_bytes])
def test_a_damaged_file_is_one_message_and_leaves_nothing(damage, tmp_path, cache):
    file = tmp_path / "toy.gguf"
    toy_gguf(file)
    damage(file)
    with pytest.raises(BaseError, match=r"toy.gguf cannot be read as a GGUF base: .*; check that the file is whole"):
        converted(file)
    assert [entry for entry in (cache / "bases").iterdir() if entry.is_dir()] == []


def test_a_damaged_folder_in_the_cache_is_removed_by_hand_and_made_again(tmp_path):
    toy_gguf(tmp_path / "toy.gguf")
    settings = BaseSettings(source=str(tmp_path / "toy.gguf"))
    folder = converted(tmp_path / "toy.gguf")
    (folder / "model.safetensors").unlink()
    with pytest.raises(BaseError, match=r"remove its folder from .*cache/bases, and the next call makes it again"):
        load_base(settings, progress=False)
    shutil.rmtree(folder)
    load_base(settings, progress=False)
