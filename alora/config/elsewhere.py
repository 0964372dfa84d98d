"""Settings that a user brings along from PEFT, TRL and transformers: what alora calls them, or why it has none.

Most of those without a counterpart fail silently with an activated LoRA elsewhere, so each is refused with its reason.
"""

_ONE_SHAPE = (
    "the packed forward runs plain low-rank products of one rank; set adapter.rank, adapter.alpha and adapter.targets"
)
# Their names → why alora has none of them.
_NONE = {
    "packing packing_strategy padding_free group_by_length eval_packing": (
        "suffixes are always packed behind shared prefixes, without padding "
        "(training.max_suffix_tokens bounds a pass); rows joined as TRL joins them would have only the last one adapted"
    ),
    "num_beams beam_search do_sample top_p top_k max_new_tokens "
    "generation_config predict_with_generate num_return_sequences": (
        "a verdict is read from the label words' logits at one position; nothing is generated, so there is "
        "no beam search and no sampling"
    ),
    "inputs_embeds prompt_embeds": (
        "an activated LoRA finds its activation in token ids; given embeddings, PEFT runs the base alone"
    ),
    "alora_invocation_tokens alora_offsets invocation_tokens invocation_ids "
    "invocation_string invocation activation_index response_template": (
        "invocation tokens come from the chat template, and the activation index is the length of the prefix; "
        "neither can be set"
    ),
    "use_dora use_rslora use_qalora lora_bias rank_pattern alpha_pattern "
    "modules_to_save init_lora_weights layers_to_transform target_parameters": _ONE_SHAPE,
    "completion_only_loss assistant_only_loss train_on_inputs": (
        "the loss is that of the label word at its position, and of no other token"
    ),
    "gradient_checkpointing_kwargs use_reentrant use_cache": (
        "set training.gradient_checkpointing=true: alora recomputes suffixes itself and keeps the prefix KV; other "
        "ways of checkpointing drop the KV cache and train on the suffix alone"
    ),
    "merge merge_adapter merge_and_unload": (
        "an activated LoRA cannot be merged: the base must stay itself before the activation index"
    ),
    "adapter_names adapter_name": (
        "list policies=[A,B] or bundles=[A,B]: one pass runs them all, each with its own adapter"
    ),
    "lora_dropout dropout attention_dropout": (
        "adapters train without dropout; regularise with adapter.rank, training.weight_decay and early stopping instead"
    ),
}
# The key that alora has → their names for it.
_ANOTHER_NAME = {
    "prompt.max_prefix_tokens": "max_length max_seq_length model_max_length",
    "prompt.truncation": "truncation_mode truncation_side",
    "adapter.rank": "r lora_r lora_rank",
    "adapter.alpha": "lora_alpha",
    "adapter.targets": "target_modules",
    "base.source": "model_name_or_path model_id pretrained_model_name_or_path",
    "base.dtype": "torch_dtype bf16 fp16 autocast_adapter_dtype",
    "base.device": "device_map",
    "base.quantization": "load_in_4bit load_in_8bit quantization_config bits",
    "training.epochs": "num_train_epochs",
    "training.batch_size": "per_device_train_batch_size train_batch_size",
    "training.learning_rate": "lr lr_rate",
    "training.scheduler": "lr_scheduler_type lr_scheduler",
    "training.warmup_ratio": "warmup_steps",
    "training.gradient_accumulation_steps": "grad_accum_steps",
    "run_dir": "output_dir save_dir",
    "tracking.kind": "report_to",
    "export.push_to": "push_to_hub hub_model_id",
    "data.train": "train_file dataset_name dataset",
    "data.validation": "validation_file eval_dataset",
    "data.columns.messages": "dataset_text_field messages_field",
}
REFUSED = {name: reason for names, reason in _NONE.items() for name in names.split()}
RENAMED = {name: key for key, names in _ANOTHER_NAME.items() for name in names.split()}

REFUSED_VALUES = {
    ("base.quantization", "gptq"): "PEFT silently trains a plain LoRA on GPTQ layers; use the bf16 base",
    ("base.quantization", "hqq"): "PEFT silently trains a plain LoRA on HQQ layers; use the bf16 base",
    ("base.quantization", "awq"): "its kernels give no gradient that alora has checked; use the bf16 base",
    ("adapter.kind", "dora"): _ONE_SHAPE,
    ("prompt.truncation", "end"): "the end of a conversation is judged, so it is never cut; choose middle, start",
    ("prompt.truncation", "keep_start"): "it would cut off the end, which is judged; choose middle, start",
}


def advice(key: str) -> str | None:
    """What to say about a key that other libraries have, by its last part; None for a key of nobody's."""
    name = key.rpartition(".")[2]
    if name in REFUSED:
        return f"alora has no '{key}': {REFUSED[name]}"
    if name in RENAMED:
        return f"alora has no '{key}'; here it is {RENAMED[name]}"
    return None
