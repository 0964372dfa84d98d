"""What all arms are made of: a base, distinct adapters (each also as a standard LoRA), and the policies' prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from alora.adapter.folder import CONFIG_FILE, WEIGHTS_FILE, AdapterSpec, AdapterWeights, new_adapter, save_adapter
from alora.bench.serving.draws import token_ids
from alora.bench.shapes import SHAPES, BaseShape, random_base
from alora.bench.workload import INVOCATION, LABELS
from alora.config.schema import BaseSettings, BenchSettings
from alora.errors import BaseError, ConfigError

B_SCALE = 0.5  # of a random adapter's B: large enough that verdicts move beyond the rounding of 16 bits
KNOWN = {"Qwen/Qwen3-0.6B": "qwen3_0_6b", "Qwen/Qwen3-4B": "qwen3_4b"}  # bases whose shape needs no download


@dataclass(frozen=True)
class Material:
    """P adapters on one base. ``folders`` are the PEFT folders that vLLM loads, by kind; the rest is by place."""

    name: str
    base: str
    model: PreTrainedModel
    shape: BaseShape
    adapters: tuple[AdapterWeights, ...]
    folders: dict[str, list[Path]]
    invocations: tuple[tuple[int, ...], ...]
    suffixes: tuple[tuple[int, ...], ...]
    policy_texts: tuple[tuple[int, ...], ...]
    labels: tuple[tuple[int, ...], ...]
    banned: frozenset[int] = frozenset()
    tokenizer: bool = False

    def twin(self, place: int) -> AdapterWeights:
        """The adapter at ``place`` as a standard LoRA: the same weights, on from token 0."""
        adapter = self.adapters[place]
        return AdapterWeights(replace(adapter.spec, invocation_ids=None), adapter.tensors)

    def conversation(self, tokens: int, seed: int) -> tuple[int, ...]:
        """Prefix ids of one conversation."""
        return token_ids(self.shape.vocab, tokens, seed, self.banned)


def shape_name(bench: BenchSettings, base: BaseSettings) -> str:
    """Which shape of random weights is asked for: ``bench.shape``, or a known base with ``base.weights=random``.

    Raises:
        BaseError: a base whose shape is not known here, or pre-trained weights, which nothing here needs.
    """
    if base.source is None:
        return bench.shape
    if base.source not in KNOWN or base.weights != "random":
        raise BaseError(
            f"base.source={base.source} with base.weights={base.weights}: random adapters run on a base of random "
            f"weights, since speed does not depend on the values; add base.weights=random to {' or '.join(KNOWN)}, "
            f"give bench.shape=NAME ({', '.join(SHAPES)}), or real bundles with bench.battery=DIR"
        )
    return KNOWN[base.source]


def random_material(
    bench: BenchSettings, base: BaseSettings, device: torch.device, dtype: torch.dtype, count: int, scratch: Path
) -> Material:
    """A base of random weights and ``count`` random adapters, written below ``scratch`` for vLLM to load.

    Raises:
        BaseError: as :func:`shape_name`.
        ConfigError: a target that this base does not have.
    """
    name, serving = shape_name(bench, base), bench.serving
    shape = SHAPES[name]
    unknown = sorted(set(serving.targets) - set(shape.linears))
    if unknown:
        raise ConfigError(f"bench.serving.targets: {', '.join(unknown)} is none of {', '.join(shape.linears)}")
    model = random_base(shape, device, dtype, bench.seed)
    folder = scratch / "base"
    model.save_pretrained(folder)
    spec = AdapterSpec(bench.rank, 2.0 * bench.rank, tuple(sorted(serving.targets)), INVOCATION)
    own = serving.suffix - len(INVOCATION)
    adapters = tuple(
        _random_adapter(spec, model, bench.seed + 10 * place, dtype)
        for place in tqdm(range(count), desc="adapters", disable=None, leave=False)
    )
    return Material(
        name=name,
        base=str(folder),
        model=model,
        shape=shape,
        adapters=adapters,
        folders=write_folders(adapters, scratch, str(folder)),
        invocations=(INVOCATION,) * count,
        suffixes=tuple(INVOCATION + token_ids(shape.vocab, own, bench.seed + 1 + p) for p in range(count)),
        policy_texts=tuple(token_ids(shape.vocab, serving.policy_tokens, bench.seed - 1 - p) for p in range(count)),
        labels=(LABELS,) * count,
        banned=frozenset(INVOCATION),
    )


def bundle_material(bench: BenchSettings, base: BaseSettings, scratch: Path) -> Material:
    """Real bundles from ``bench.battery``, on the base that they name; conversations are random ordinary tokens."""
    from alora.base.load import base_location, load_base
    from alora.bundle.battery import load_battery

    bundles = load_battery(Path(str(bench.battery)))
    settings = bundles[0].base_settings(base)
    loaded = load_base(settings)
    for bundle in bundles:
        bundle.check_base(loaded)
    adapters = tuple(bundle.weights for bundle in bundles)
    folders = write_folders(adapters, scratch, base_location(settings))
    folders["alora"] = [bundle.folder for bundle in bundles]
    texts = [f"{bundle.policy.title}. {bundle.policy.rule}" for bundle in bundles]
    tails = [bundle.suffix.token_ids[len(bundle.suffix.invocation_ids) :] for bundle in bundles]
    encoded = [tuple(loaded.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
    special = frozenset(loaded.tokenizer.all_special_ids)
    return Material(
        name=str(bench.battery),
        base=base_location(settings),
        model=loaded.model,
        shape=shape_of(loaded.model.config),
        adapters=adapters,
        folders=folders,
        invocations=tuple(bundle.suffix.invocation_ids for bundle in bundles),
        suffixes=tuple(bundle.suffix.token_ids for bundle in bundles),
        policy_texts=tuple((*text, *tail) for text, tail in zip(encoded, tails, strict=True)),
        labels=tuple(bundle.suffix.label_token_ids for bundle in bundles),
        banned=special | {token for bundle in bundles for token in bundle.suffix.invocation_ids},
        tokenizer=True,
    )


def adapted(adapter: AdapterWeights) -> set[str]:
    """Last parts of the names of all modules that an adapter has weights for, however its targets name them."""
    return {name.rpartition(".")[-1] for name in adapter.tensors}


def shape_of(config: Any) -> BaseShape:
    """Sizes of a loaded base, for counting arithmetic."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return BaseShape(
        vocab=config.vocab_size, hidden=config.hidden_size, intermediate=config.intermediate_size,
        layers=config.num_hidden_layers, heads=config.num_attention_heads, kv_heads=config.num_key_value_heads,
        width=width,
    )  # fmt: skip


def write_folders(adapters: Sequence[AdapterWeights], scratch: Path, base: str) -> dict[str, list[Path]]:
    """Each adapter as an aLoRA and as a standard LoRA of the same weights: one file under two names."""
    folders: dict[str, list[Path]] = {"alora": [], "lora": []}
    for place, adapter in enumerate(adapters):
        activated, plain = (scratch / f"{kind}_{place:04d}" for kind in folders)
        save_adapter(adapter, activated, base)
        plain.mkdir()
        (plain / WEIGHTS_FILE).hardlink_to(activated / WEIGHTS_FILE)
        config = json.loads((activated / CONFIG_FILE).read_text(encoding="utf-8"))
        (plain / CONFIG_FILE).write_text(json.dumps(config | {"alora_invocation_tokens": None}), encoding="utf-8")
        folders["alora"].append(activated)
        folders["lora"].append(plain)
    return folders


def _random_adapter(spec: AdapterSpec, model: PreTrainedModel, seed: int, dtype: torch.dtype) -> AdapterWeights:
    """An adapter whose B is not zero, in the dtype in which vLLM runs it, so that every arm has the same values."""
    fresh = new_adapter(spec, model, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    tensors = {}
    for name, (a_RD, b_OR) in fresh.tensors.items():
        drawn_OR = B_SCALE * torch.randn(b_OR.shape, generator=generator)
        tensors[name] = (a_RD.to(dtype), drawn_OR.to(dtype))
    return AdapterWeights(spec, tensors)
