"""Settings that a user brings along from PEFT, TRL and transformers: what alora calls them, or why it has none.

Most of those without a counterpart fail silently with an activated LoRA elsewhere, so each is refused with its reason.
"""

_ROWS_ARE_PACKED = (
    "suffixes are always packed behind shared prefixes, without padding (training.max_suffix_tokens bounds a pass); "
    "rows joined as TRL joins them would have only the last one adapted"
)
_NOTHING_IS_GENERATED = (
    "a verdict is read from the label words' logits at one position; nothing is generated, so there is no beam search "
    "and no sampling"
)
_IDS_ONLY = "an activated LoRA finds its activation in token ids; given embeddings, PEFT runs the base alone"
_BY_CONSTRUCTION = (
    "invocation tokens come from the chat template, and the activation index is the length of the prefix; "
    "neither can be set"
)
_ONE_SHAPE = (
    "the packed forward runs plain low-rank products of one rank; set adapter.rank, adapter.alpha and adapter.targets"
)
_LABELS_ONLY = "the loss is that of the label word at its position, and of no other token"
_CHECKPOINTING = (
    "set training.gradient_checkpointing=true: alora recomputes suffixes itself and keeps the prefix KV; other ways of "
    "checkpointing drop the KV cache and train on the suffix alone"
)
_NEVER_MERGED = "an activated LoRA cannot be merged: the base must stay itself before the activation index"
_ALL_AT_ONCE = "list policies=[A,B] or bundles=[A,B]: one pass runs them all, each with its own adapter"
_NO_DROPOUT = (
    "adapters train without dropout; regularise with adapter.rank, training.weight_decay and early stopping instead"
)

REFUSED = {
    **dict.fromkeys(
        ("packing", "packing_strategy", "padding_free", "group_by_length", "eval_packing"), _ROWS_ARE_PACKED
    ),
    **dict.fromkeys(
        ("num_beams", "beam_search", "generate", "do_sample", "temperature", "top_p", "top_k", "max_new_tokens"),
        _NOTHING_IS_GENERATED,
    ),
    **dict.fromkeys(("generation_config", "predict_with_generate", "num_return_sequences"), _NOTHING_IS_GENERATED),
    **dict.fromkeys(("inputs_embeds", "prompt_embeds"), _IDS_ONLY),
    **dict.fromkeys(
        ("alora_invocation_tokens", "alora_offsets", "invocation_tokens", "invocation_ids", "invocation_string"),
        _BY_CONSTRUCTION,
    ),
    **dict.fromkeys(("invocation", "activation_index", "response_template"), _BY_CONSTRUCTION),
    **dict.fromkeys(("use_dora", "use_rslora", "use_qalora", "lora_bias", "rank_pattern", "alpha_pattern"), _ONE_SHAPE),
    **dict.fromkeys(("modules_to_save", "init_lora_weights", "layers_to_transform", "target_parameters"), _ONE_SHAPE),
    **dict.fromkeys(("completion_only_loss", "assistant_only_loss", "train_on_inputs"), _LABELS_ONLY),
    **dict.fromkeys(("gradient_checkpointing_kwargs", "use_reentrant", "use_cache"), _CHECKPOINTING),
    **dict.fromkeys(("merge", "merge_adapter", "merge_and_unload"), _NEVER_MERGED),
    **dict.fromkeys(("adapter_names", "adapter_name"), _ALL_AT_ONCE),
    **dict.fromkeys(("lora_dropout", "dropout", "attention_dropout"), _NO_DROPOUT),
}

RENAMED = {
    **dict.fromkeys(("max_length", "max_seq_length", "model_max_length"), "prompt.max_prefix_tokens"),
    **dict.fromkeys(("truncation_mode", "truncation_side"), "prompt.truncation"),
    **dict.fromkeys(("r", "lora_r", "lora_rank"), "adapter.rank"),
    "lora_alpha": "adapter.alpha",
    "target_modules": "adapter.targets",
    **dict.fromkeys(("model_name_or_path", "model_id", "pretrained_model_name_or_path"), "base.source"),
    **dict.fromkeys(("torch_dtype", "bf16", "fp16", "autocast_adapter_dtype"), "base.dtype"),
    "device_map": "base.device",
    **dict.fromkeys(("load_in_4bit", "load_in_8bit", "quantization_config", "bits"), "base.quantization"),
    "num_train_epochs": "training.epochs",
    **dict.fromkeys(("per_device_train_batch_size", "train_batch_size"), "training.batch_size"),
    **dict.fromkeys(("lr", "lr_rate"), "training.learning_rate"),
    **dict.fromkeys(("lr_scheduler_type", "lr_scheduler"), "training.scheduler"),
    "warmup_steps": "training.warmup_ratio",
    "grad_accum_steps": "training.gradient_accumulation_steps",
    **dict.fromkeys(("output_dir", "save_dir"), "run_dir"),
    **dict.fromkeys(("push_to_hub", "hub_model_id"), "export.push_to"),
    **dict.fromkeys(("train_file", "dataset_name", "dataset"), "data.train"),
    **dict.fromkeys(("validation_file", "eval_dataset"), "data.validation"),
    **dict.fromkeys(("dataset_text_field", "messages_field"), "data.columns.messages"),
}

REFUSED_VALUES = {
    ("base.quantization", "gptq"): "PEFT silently trains a plain LoRA on GPTQ layers; use the bf16 base",
    ("base.quantization", "hqq"): "PEFT silently trains a plain LoRA on HQQ layers; use the bf16 base",
    ("base.quantization", "awq"): "its kernels give no gradient that alora has checked; use the bf16 base",
    ("adapter.kind", "dora"): _ONE_SHAPE,
    (
        "prompt.truncation",
        "end",
    ): "the end of a conversation is what is judged, so it is never cut; choose middle, start",
    ("prompt.truncation", "keep_start"): "it would cut off the end, which is what is judged; choose middle, start",
}


def advice(key: str) -> str | None:
    """What to say about a key that other libraries have, by its last part; None for a key of nobody's."""
    name = key.rpartition(".")[2]
    if name in REFUSED:
        return f"alora has no '{key}': {REFUSED[name]}"
    if name in RENAMED:
        return f"alora has no '{key}'; here it is {RENAMED[name]}"
    return None
