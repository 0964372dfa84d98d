"""Tiny random models, a byte tokenizer and PEFT adapters, made in code: what the vLLM tests run on.

The weights are large enough that an adapter moves every logit, so that a wrong mask cannot hide in rounding.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen3Config

VOCABULARY = 320
BLOCK = 32  # the smallest that vLLM's CPU attention takes
SPECIAL = ("<|bos|>", "<|eos|>", "<|pad|>", "<|turn|>", "<|end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL_LINEAR = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class ToyAdapter:
    """An adapter folder; ``invocation`` is empty for plain LoRA."""

    name: str
    number: int
    path: str
    invocation: tuple[int, ...]


def write_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*alphabet, *SPECIAL])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|bos|>", eos_token="<|eos|>", pad_token="<|pad|>"
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return fast


def write_model(folder: Path, family: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> str:
    """A two-layer Qwen3 or Llama of random weights, with its tokenizer."""
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 8192,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "pad_token_id": 258,
        "initializer_range": 0.15,
        "tie_word_embeddings": family == "qwen3",
    }
    config = {"qwen3": Qwen3Config, "llama": LlamaConfig}[family](**shape)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return str(folder)


def write_adapter(
    folder: Path,
    base: str,
    invocation: tuple[int, ...],
    seed: int,
    rank: int = 8,
    targets: list[str] | str | None = None,
    **extra,
) -> str:
    """A PEFT adapter folder with random non-zero A and B; aLoRA unless ``invocation`` is empty."""
    torch.manual_seed(seed)
    scaling, stabilised = (2.0, 0.7)[seed % 2], seed % 3 == 0  # others next to each other, so that a mix-up shows
    config = LoraConfig(
        r=rank,
        lora_alpha=scaling * (rank**0.5 if stabilised else rank),  # pyright: ignore[reportArgumentType]
        use_rslora=stabilised,
        target_modules=targets or ALL_LINEAR,
        task_type="CAUSAL_LM",
        alora_invocation_tokens=list(invocation) or None,
        **extra,
    )
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.randn_like(weight) * 0.15)
    model.save_pretrained(folder)
    return str(folder)


def edit_config(folder: str, **changes) -> None:
    """Change keys of an ``adapter_config.json``."""
    file = Path(folder, "adapter_config.json")
    config = json.loads(file.read_text())
    config.update(changes)
    file.write_text(json.dumps(config))
