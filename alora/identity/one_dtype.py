"""The certificate's part of one dtype: base and adapter on the same calls, a cached prefix given to the adapter, and
the planted faults."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from peft.tuners.lora.variants import calculate_alora_offsets
from torch import nn

from alora.adapter.targets import require_linear
from alora.config.environment import package_version
from alora.errors import AdapterError
from alora.identity.capture import OUTPUT, Call, Capture, Site, capture, twin
from alora.identity.certificate import ControlRecord, DtypeRecord, Environment, FindingRecord, LayerRecord
from alora.identity.compare import ACTIVATION, SiteCount, compare, count_sites, prefix_findings
from alora.identity.controls import Models, run_controls
from alora.identity.handover import hand_over
from alora.identity.reach import adapted_modules, reached_sites, record_active
from alora.version import __version__

REPEAT, SEARCH, MODULE = "repeat", "search", "module"


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
