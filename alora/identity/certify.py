"""Certify KV identity of one adapter on one base: every call, every dtype, every negative control."""

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel
from peft.tuners.lora.variants import calculate_alora_offsets
from torch import nn
from transformers import DynamicCache

from alora.adapter.folder import AdapterWeights, load_adapter
from alora.adapter.targets import require_linear, target_modules
from alora.base.load import LoadedBase, multiplies_bfloat16
from alora.config.environment import package_version
from alora.config.schema import IdentitySettings
from alora.errors import AdapterError, CheckFailed, ConfigError
from alora.identity.capture import OUTPUT, Call, Capture, Site, cache_sites, capture, forward, make_calls, twin
from alora.identity.certificate import (
    ENGINE,
    Certificate,
    ControlRecord,
    DtypeRecord,
    Environment,
    FindingRecord,
    HandoverRecord,
    LayerRecord,
)
from alora.identity.controls import Models, run_controls
from alora.identity.equality import (
    ACTIVATION,
    SiteCount,
    adapted_modules,
    bits_differ,
    compare,
    count_sites,
    prefix_findings,
    reached_sites,
    record_active,
)
from alora.prompt.render import Prompt
from alora.version import __version__

REPEAT, SEARCH, MODULE = "repeat", "search", "module"
# Largest absolute difference of logits over their largest absolute value, by dtype. In bfloat16, twenty adapters on
# SmolLM2-135M were at most 0.053 off by rounding alone; eight of them, at least 0.13 off with the adapter off.
BOUNDS = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-1}
EXPERTS_NOTE = (
    "mixture of experts: an expert multiplies tokens of all positions in one kernel call, so where an adapter sends "
    "suffix tokens to other experts the prefix's rounding changes (measured in float32); identity cannot be expected"
)


def certify(
    base: LoadedBase, adapter_folder: Path, prompts: Sequence[Prompt], settings: IdentitySettings
) -> Certificate:
    """Run PEFT's own aLoRA and the base on the same calls and compare their KV as integers.

    The adapter runs as it is served, in the base's dtype. A quantized base is certified in its own dtype only. The
    definition is in :mod:`alora.identity.equality`. The base in memory is not changed.

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


def hand_over(base: nn.Module, adapter: nn.Module, call: Call, full_logits_V: torch.Tensor) -> HandoverRecord:
    """Prefix on ``base``, suffix on ``adapter`` over the same cache; ``call`` holds one row, without padding."""
    (split,) = call.activation_B
    cache = DynamicCache()
    head, tail = (slice(None), slice(None, split)), (slice(None), slice(split, None))
    forward(base, call.input_ids_BT[head], call.attention_mask_BT[head], call.position_ids_BT[head], cache)
    before = {site: tensor.clone() for site, tensor in cache_sites(cache).items()}
    logits_V = forward(
        adapter,
        call.input_ids_BT[tail],
        call.attention_mask_BT,
        call.position_ids_BT[tail],
        cache,
        alora_offsets=[call.tokens - split],
    )[0, -1]
    after = cache_sites(cache)
    changed = sum(int(bits_differ(kept, after[site][:, :split]).sum()) for site, kept in before.items())
    wanted_V = full_logits_V.double()
    error = float((logits_V.double() - wanted_V).abs().max() / wanted_V.abs().max())
    dtype = str(full_logits_V.dtype).removeprefix("torch.")
    elements = sum(tensor.numel() for tensor in before.values())
    passed = changed == 0 and error <= BOUNDS[dtype]  # NaN is not
    return HandoverRecord(call.name, elements, changed, error if math.isfinite(error) else None, BOUNDS[dtype], passed)


def certify_dtype(
    model: nn.Module, folder: Path, calls: Sequence[Call], dtype: torch.dtype | None, with_controls: bool
) -> DtypeRecord:
    """Compare the base and PEFT's aLoRA of ``folder`` on every call, in ``dtype`` (None: the model's own)."""
    bare = twin(model, dtype)
    adapted = with_adapter(bare, folder)
    bases = {call.name: capture(bare, call) for call in calls}
    layers = 1 + max(site.layer for site in bases[calls[0].name].sites)
    modules = adapted_modules(adapted)
    reached = reached_sites(modules, layers)

    findings = _unrepeatable(bare, calls[-1], bases)
    counts: dict[Site, SiteCount] = {}
    handovers = []
    active: set[str] = set()
    for call in calls:
        with record_active(modules, call, active):
            honest = capture(adapted, call, alora_offsets=call.offsets())
        findings += [FindingRecord(f.check, str(f)) for f in compare(call, bases[call.name], honest, reached)]
        findings += _logits_findings(call, bases[call.name], honest)
        findings += _search_findings(adapted, call, honest)
        for site, count in count_sites(call, bases[call.name], honest).items():
            counts[site] = counts[site] + count if site in counts else count
        if len(call.activation_B) == 1:
            handovers.append(hand_over(bare, adapted, call, honest.logits_BV[0]))

    findings += [
        FindingRecord(MODULE, f"{name}: the first activated token is the base's in every call")
        for name in modules
        if name not in active
    ]
    ordered = sorted(counts, key=lambda site: (site == OUTPUT, site))
    controls: tuple[ControlRecord, ...] = ()
    if with_controls:
        models = Models(adapted, with_adapter(bare, folder, alora_invocation_tokens=None))
        controls = run_controls(models, calls, bases, reached)
    return DtypeRecord(
        dtype=str(bare.dtype).removeprefix("torch."),
        passed=not findings and all(h.passed for h in handovers) and all(c.caught for c in controls),
        findings=tuple(findings),
        layers=tuple(LayerRecord(str(site), site in reached, **asdict(counts[site])) for site in ordered),
        handovers=tuple(handovers),
        controls=controls,
    )


def environment_here(device: str, attention: str) -> Environment:
    """This process, with the device and the attention kernels that the caller ran on."""
    return Environment(
        alora=__version__,
        torch=torch.__version__,
        transformers=package_version("transformers") or "unknown",
        peft=package_version("peft") or "unknown",
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        device=device,
        threads=torch.get_num_threads(),
        attention=attention,
    )


def with_adapter(bare: nn.Module, folder: Path, **config_changes: Any) -> PeftModel:
    """A PeftModel on a twin of ``bare``, the adapter cast to the base's dtype as a server casts it."""
    host = twin(bare)
    try:
        config: Any = LoraConfig.from_pretrained(str(folder))
        require_linear(bare, [*(config.target_modules or ())])
        for name, value in config_changes.items():
            setattr(config, name, value)
        return PeftModel.from_pretrained(
            host, str(folder), config=config, autocast_adapter_dtype=False, torch_device=str(host.device)
        ).eval()
    except AdapterError:
        raise
    except (TypeError, ValueError) as error:
        raise AdapterError(f"PEFT cannot load {folder} ({error}); export the adapter again") from error


def _unrepeatable(bare: nn.Module, call: Call, bases: Mapping[str, Capture]) -> list[FindingRecord]:
    """The same call twice on the base alone: without this, a difference would say nothing about the adapter."""
    findings = prefix_findings(_to_the_end(call), bases[call.name], capture(bare, call))
    return [FindingRecord(REPEAT, f"the base does not repeat itself bit for bit: {first}") for first in findings[:1]]


def _logits_findings(call: Call, base: Capture, honest: Capture) -> list[FindingRecord]:
    """An adapter that changes no logit at all is inert, even if some K or V differs."""
    inert_rows = (base.logits_BV == honest.logits_BV).all(dim=1).nonzero().flatten().tolist()
    return [
        FindingRecord(ACTIVATION, f"{call.name}, row {row}: no logit differs from the base's") for row in inert_rows
    ]


def _search_findings(adapted: PeftModel, call: Call, honest: Capture) -> list[FindingRecord]:
    """PEFT's own search must find the known index, and the run by search must have the same bits everywhere."""
    configs: Any = adapted.peft_config  # annotated as one config in PEFT, a mapping by adapter name in fact
    offsets = calculate_alora_offsets(configs, str(adapted.active_adapter), call.input_ids_BT)
    if offsets != call.offsets():
        text = f"PEFT finds the activation {offsets} tokens from the end, the prompt says {call.offsets()}"
        return [FindingRecord(SEARCH, f"{call.name}: {text}")]
    unequal = prefix_findings(_to_the_end(call), honest, capture(adapted, call))
    return [
        FindingRecord(SEARCH, f"the run by PEFT's search is not the explicit one: {first}") for first in unequal[:1]
    ]


def _to_the_end(call: Call) -> Call:
    """The same call, with every position before its "activation": for pairs that must be equal throughout."""
    return replace(call, activation_B=(call.tokens,) * len(call.activation_B))
