"""Certify KV identity of one adapter on one base: every call, every dtype, every negative control."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from alora.adapter.folder import AdapterWeights, load_adapter
from alora.adapter.targets import target_modules
from alora.base.load import LoadedBase, multiplies_bfloat16
from alora.config.schema import IdentitySettings
from alora.errors import AdapterError, CheckFailed, ConfigError
from alora.identity.cases import make_calls
from alora.identity.certificate import Certificate
from alora.identity.handover import BOUNDS
from alora.identity.one_dtype import certify_dtype, environment_here
from alora.prompt.render import Prompt

ENGINE = "transformers"
EXPERTS_NOTE = (
    "mixture of experts: an expert multiplies tokens of all positions in one kernel call, so where an adapter sends "
    "suffix tokens to other experts the prefix's rounding changes (measured in float32); identity cannot be expected"
)


def certify(
    base: LoadedBase, adapter_folder: Path, prompts: Sequence[Prompt], settings: IdentitySettings
) -> Certificate:
    """Run PEFT's own aLoRA and the base on the same calls and compare their KV as integers.

    The adapter runs as it is served, in the base's dtype. A quantized base is certified in its own dtype only. The
    definition is in :mod:`alora.identity.compare` and :mod:`alora.identity.reach`. The base in memory is not changed.

    The certificate's ``passed`` says the outcome, and its ``failures`` why. CheckFailed for a plain LoRA, AdapterError
    for an adapter that does not fit the base or that the prompts do not invoke.
    """
    weights = load_adapter(adapter_folder)
    require_activated(weights, adapter_folder)
    _require_fit(weights, base.model)
    dtypes, notes = _dtypes(base, settings)
    invocation_ids = weights.spec.invocation_ids or ()
    calls = make_calls(prompts, base.model, invocation_ids)
    records = tuple(
        certify_dtype(base.model, adapter_folder, calls, dtype, with_controls=settings.negative_controls)
        for dtype in dtypes
    )
    if any(name.endswith(".experts") for name, _ in base.model.named_modules()):
        notes.append(EXPERTS_NOTE)
    if not settings.negative_controls:
        notes.append("negative controls were not run: identity.negative_controls=false")
    return Certificate(
        passed=all(record.passed for record in records),
        engine=ENGINE,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        base_source=base.source,
        base=base.fingerprint,
        adapter_digest=weights.digest,
        invocation_ids=invocation_ids,
        adapted_modules=weights.spec.targets,
        environment=environment_here(_device(base.model), str(base.model.config._attn_implementation)),
        lengths=tuple(
            (call.name, tuple(i - p for i, p in zip(call.activation_B, call.padding_B, strict=True)), call.tokens)
            for call in calls
        ),
        dtypes=records,
        notes=tuple(notes),
    )


def require_activated(weights: AdapterWeights, folder: Path) -> None:
    """CheckFailed when ``weights`` are a plain LoRA: no run is needed to know that they share no prefix."""
    if not weights.spec.activated:
        raise CheckFailed(
            f"{folder} is a plain LoRA: its adapter_config.json has no alora_invocation_tokens, so it changes the KV "
            "from token 0 on and can share no prefix; train it with adapter=alora, or restore the key if a tool "
            "removed it from an aLoRA"
        )


def _require_fit(weights: AdapterWeights, model: nn.Module) -> None:
    modules = target_modules(model, weights.spec.targets)
    unfit = sorted(modules.keys() ^ weights.tensors.keys())
    unfit += [
        name
        for name, (a_rd, b_or) in weights.tensors.items()
        if name in modules and (modules[name].in_features, modules[name].out_features) != (a_rd.shape[1], b_or.shape[0])
    ]
    if unfit:
        raise AdapterError(
            f"the adapter does not fit this base: {len(unfit)} module(s) missing or of another size, first {unfit[0]}; "
            "validate it on the base that it was trained for"
        )
    embedding = cast("Any", model).get_input_embeddings()
    known, ids = embedding.num_embeddings, weights.spec.invocation_ids or ()
    if strange := [token for token in ids if not 0 <= token < known]:
        raise AdapterError(
            f"the adapter is invoked by token {strange[0]}, and this base has {known} tokens; validate it on the base "
            "that it was trained for"
        )


def _dtypes(base: LoadedBase, settings: IdentitySettings) -> tuple[list[torch.dtype | None], list[str]]:
    if [name for name in settings.dtypes if name not in BOUNDS]:
        raise ConfigError(f"identity.dtypes={list(settings.dtypes)}: choose one or more of {', '.join(BOUNDS)}")
    if base.fingerprint.quantization != "none":
        return [None], [f"base quantized as {base.fingerprint.quantized_as}: certified in its own dtype only"]
    if settings.dtypes:
        return [getattr(torch, name) for name in dict.fromkeys(settings.dtypes)], []
    if multiplies_bfloat16(next(base.model.parameters()).device):
        return [torch.float32, torch.bfloat16], []
    note = "bfloat16 was not certified: this processor emulates it; identity.dtypes=[float32,bfloat16] certifies it"
    return [torch.float32], [note]


def _device(model: nn.Module) -> str:
    device = next(model.parameters()).device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
