"""A toy Llama or Qwen3 as a GGUF file, float32 or 4 bits a weight, written the way llama.cpp's converter does."""

from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from transformers import PreTrainedModel

from tests.toy_models import toy_model
from tests.toy_tokenizers import toy_tokenizer

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
NORMAL, CONTROL = 1, 3  # token types of llama.cpp


def toy_gguf(
    file: Path,
    architecture: str = "llama",
    quantized: bool = False,
    lacks: str = "-",
    family: str = "llama",
    head_dim: int = 8,
    chat_template: bool = True,
    **header: int | None,
) -> PreTrainedModel:
    """Write ``file`` and return the model that it was made from.

    ``lacks``: how the names of tensors begin that are left out; ``header``: numbers that it gets wrong.
    """
    tokenizer = toy_tokenizer("qwen3")
    if not chat_template:
        tokenizer.chat_template = None
    model = toy_model(family, vocab=len(tokenizer), head_dim=head_dim)
    config = model.config
    writer = GGUFWriter(file, architecture)
    writer.add_name("toy")
    writer.add_context_length(config.max_position_embeddings)
    if (layers := header.get("layers", config.num_hidden_layers)) is not None:
        writer.add_block_count(layers)
    writer.add_feed_forward_length(header.get("feed_forward") or config.intermediate_size)
    writer.add_embedding_length(config.hidden_size)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10_000.0)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _write_tokenizer(writer, tokenizer)
    for name, tensor in model.state_dict().items():
        array = _renamed(writer, name, tensor, config)
        if array[0].startswith(lacks):
            continue
        if quantized and array[1].ndim == 2 and array[1].shape[1] % 32 == 0:
            kind = GGMLQuantizationType.Q4_1
            writer.add_tensor(array[0], quants.quantize(array[1], kind), raw_dtype=kind)
        else:
            writer.add_tensor(*array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _write_tokenizer(writer: GGUFWriter, tokenizer) -> None:
    import json

    state = json.loads(tokenizer.backend_tokenizer.to_str())
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    special = set(tokenizer.all_special_tokens) | {item["content"] for item in state["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL if token in special else NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
    writer.add_bos_token_id(tokenizer.pad_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def _renamed(writer: GGUFWriter, name: str, tensor: torch.Tensor, config) -> tuple[str, np.ndarray]:
    array = tensor.float().numpy()
    top = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm", "lm_head.weight": "output"}
    if name in top:
        return f"{top[name]}.weight", array
    layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    # llama.cpp interleaves the halves that RoPE turns
    if config.model_type == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
        heads = config.num_attention_heads if part.endswith("q_proj") else config.num_key_value_heads
        array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
    return f"blk.{layer}.{NAMES[part]}.weight", np.ascontiguousarray(array)
