"""What all systems are made of: a base, distinct adapters (each also as a standard LoRA), and the policies' prompts."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from alora.adapter.folder import WEIGHTS_FILE, AdapterSpec, AdapterWeights, new_adapter, save_adapter
from alora.base.load import LoadedBase, load_base
from alora.base.location import base_location
from alora.bundle.read import check_bundles, load_battery
from alora.config.schema import BaseSettings, BenchSettings
from alora.errors import ConfigError
from alora.lab.bench.record import MeasuredBase
from alora.lab.bench.shapes import SHAPES, BaseShape, base_mib, random_base, shape_of
from alora.lab.bench.trials import READS_TEXT, Piece
from alora.prefix.passes import Pair
from alora.prompt.render import Suffix
from alora.training.examples import Batch

INVOCATION = (5, 6, 7)
LABELS = (41, 71)  # ordinary tokens of a real base too: reserved ones, which no training has touched, answer alike
FIRST_CONTENT = 20  # token ids below are reserved for what a prompt must not hold by chance
POLICY_TOKENS = 96  # of a policy's text, which the base alone reads: what a rule in the prompt takes
SERVED_SCALE = 0.5  # of a random adapter's B: large enough that verdicts move beyond the rounding of 16 bits


@dataclass(frozen=True)
class BenchBase:
    """A base in memory. ``folder`` is None for random weights, which nobody has written yet."""

    name: str
    model: PreTrainedModel
    shape: BaseShape
    fingerprint: dict[str, str]
    folder: str | None = None
    banned: frozenset[int] = frozenset(INVOCATION)  # tokens that no conversation holds

    def record(self, quantization: str) -> MeasuredBase:
        shape, model = self.shape, self.model
        on_gpu = model.device.type == "cuda"
        return MeasuredBase(
            self.name, self.fingerprint, shape.parameters, shape.layers, shape.hidden, shape.vocab,
            str(model.dtype).removeprefix("torch."),
            torch.cuda.get_device_name(model.device) if on_gpu else "cpu", quantization,
            base_mib(model),
        )  # fmt: skip


@dataclass(frozen=True)
class Material:
    """P adapters on one base. ``folders`` are the PEFT folders that vLLM loads, by system; the rest is by policy."""

    base: BenchBase
    adapters: tuple[AdapterWeights, ...]
    folders: dict[str, list[Path]]
    suffixes: tuple[Suffix, ...]
    policy_texts: tuple[tuple[int, ...], ...]

    def prompt(self, system: str, prefix_ids: tuple[int, ...], policy: int) -> tuple[int, ...]:
        return prefix_ids + (self.policy_texts[policy] if system in READS_TEXT else self.suffixes[policy].token_ids)

    def piece(self, prefix_ids: tuple[int, ...], policy: int) -> Piece:
        suffix = self.suffixes[policy]
        return Piece.of(prefix_ids + suffix.token_ids, suffix.label_token_ids, policy)

    def twin(self, policy: int) -> AdapterWeights:
        return as_lora(self.adapters[policy])

    def conversation(self, tokens: int, seed: int) -> tuple[int, ...]:
        """Prefix ids of one conversation; a longer one begins with a shorter one."""
        return token_ids(self.base.shape.vocab, tokens, seed, self.base.banned)


def bench_base(settings: BenchSettings, base: BaseSettings, device: torch.device, dtype: torch.dtype) -> BenchBase:
    """The base that is measured on: the one that ``base.source`` names, else random weights of ``bench.shape``."""
    if base.source is not None:
        base = replace(base, device=str(device), dtype=str(dtype).removeprefix("torch."))
        return _loaded(base.source or "", base)[0]
    shape = SHAPES[settings.shape]
    model = random_base(shape, device, dtype, settings.seed, base.quantization == "nf4")
    return BenchBase(settings.shape, model, shape, {"weights": f"random, seed {settings.seed}, shape {settings.shape}"})


def _loaded(name: str, base: BaseSettings) -> tuple[BenchBase, LoadedBase]:
    loaded = load_base(base)
    banned = frozenset((*loaded.tokenizer.all_special_ids, *INVOCATION))
    folder = base_location(base) if base.weights == "pretrained" else None
    shape, fingerprint = shape_of(loaded.model.config), loaded.fingerprint.as_dict()
    return BenchBase(name, loaded.model, shape, fingerprint, folder, banned), loaded


def random_material(settings: BenchSettings, base: BenchBase, count: int, scratch: Path) -> Material:
    """``count`` random adapters, written below ``scratch`` for vLLM to load."""
    spec, dtype = adapter_spec(settings, base.shape), base.model.dtype
    if base.folder is None:
        base = replace(base, folder=str(scratch / "base"))
        base.model.save_pretrained(str(base.folder))
    seed, vocab, numbers = settings.seed, base.shape.vocab, range(count)
    adapters = tuple(random_adapter(spec, base.model, seed + 10 * n, SERVED_SCALE, dtype) for n in numbers)
    suffixes = tuple(draw_suffix(vocab, settings.suffix, seed + 1 + n) for n in numbers)
    texts = tuple(token_ids(vocab, POLICY_TOKENS, seed - 1 - n, base.banned) for n in numbers)
    return Material(base, adapters, write_folders(adapters, scratch, str(base.folder)), suffixes, texts)


def bundle_material(settings: BenchSettings, base: BaseSettings, scratch: Path) -> Material:
    """Real bundles from ``bench.battery``, on the base that they name; conversations are random ordinary tokens."""
    bundles = load_battery(Path(str(settings.battery)))
    measured, loaded = _loaded(str(settings.battery), bundles[0].base_settings(base))
    check_bundles(bundles, loaded)
    adapters, suffixes = tuple(bundle.weights for bundle in bundles), tuple(bundle.suffix for bundle in bundles)
    invocations = {token for suffix in suffixes for token in suffix.invocation_ids}
    folders = write_folders(adapters, scratch, str(measured.folder)) | {"alora": [bundle.folder for bundle in bundles]}
    texts = []
    for bundle in bundles:
        text = f"{bundle.policy.title}. {bundle.policy.rule}"
        tail = bundle.suffix.token_ids[len(bundle.suffix.invocation_ids) :]
        texts.append((*loaded.tokenizer(text, add_special_tokens=False)["input_ids"], *tail))
    return Material(replace(measured, banned=measured.banned | invocations), adapters, folders, suffixes, tuple(texts))


def adapter_spec(settings: BenchSettings, shape: BaseShape) -> AdapterSpec:
    unknown = sorted(set(settings.targets) - set(shape.linears))
    if unknown:
        raise ConfigError(f"bench.targets: {', '.join(unknown)} is none of {', '.join(shape.linears)}")
    return AdapterSpec(settings.rank, 2.0 * settings.rank, tuple(sorted(settings.targets)), INVOCATION)


def random_adapter(
    spec: AdapterSpec, model: nn.Module, seed: int, scale: float = 0.02, dtype: torch.dtype = torch.float32
) -> AdapterWeights:
    """An adapter whose B is not zero: at zero, A would have no gradient and the adapter no effect."""
    fresh, generator = new_adapter(spec, model, seed), torch.Generator().manual_seed(seed + 1)
    tensors = {
        name: (a_RD.to(dtype), (scale * torch.randn(b_OR.shape, generator=generator)).to(dtype))
        for name, (a_RD, b_OR) in fresh.tensors.items()
    }
    return AdapterWeights(spec, tensors)


def as_lora(adapter: AdapterWeights) -> AdapterWeights:
    return AdapterWeights(replace(adapter.spec, invocation_ids=None), adapter.tensors)


def adapted(adapter: AdapterWeights) -> set[str]:
    """Last parts of the names of all modules that an adapter has weights for, however its targets name them."""
    return {name.rpartition(".")[-1] for name in adapter.tensors}


def write_folders(adapters: Sequence[AdapterWeights], scratch: Path, base: str) -> dict[str, list[Path]]:
    """Each adapter as an aLoRA and as a standard LoRA of the same weights: one file under two names."""
    folders: dict[str, list[Path]] = {"alora": [], "lora": []}
    for policy, adapter in enumerate(adapters):
        for system, one in (("alora", adapter), ("lora", as_lora(adapter))):
            folders[system].append(scratch / f"{system}_{policy:04d}")
            save_adapter(one, folders[system][-1], base)
        activated, plain = (own[-1] / WEIGHTS_FILE for own in folders.values())
        plain.unlink()
        plain.hardlink_to(activated)
    return folders


def draw_suffix(vocab: int, tokens: int, seed: int) -> Suffix:
    own = token_ids(vocab, tokens - len(INVOCATION), seed, frozenset(INVOCATION))
    return Suffix(INVOCATION + own, INVOCATION, LABELS)


def token_ids(vocab: int, count: int, seed: int, banned: frozenset[int] = frozenset()) -> tuple[int, ...]:
    """``count`` random ids that hold no reserved and no ``banned`` token; a longer draw begins with a shorter one."""
    generator = random.Random(f"tokens {seed}")
    drawn = (generator.randrange(FIRST_CONTENT, vocab) for _ in itertools.count())
    return tuple(itertools.islice((token for token in drawn if token not in banned), count))


def draw_batch(
    vocab: int, prefix: int, suffix: int, policies: int, seed: int, banned: frozenset[int] = frozenset(INVOCATION),
    conversations: int = 1, own: bool = False,
) -> Batch:  # fmt: skip
    """Random pairs: each conversation with all policies, or with one alone where rows are ``own``, policy after policy.
    A policy's pair of a conversation is the same for any number of policies above it."""
    suffixes = [draw_suffix(vocab, suffix, seed + 1 + policy).token_ids for policy in range(policies)]
    drawn = [(n, policy) for n in range(conversations) for policy in ([n % policies] if own else range(policies))]
    pairs = tuple(Pair(n, policy, suffixes[policy], LABELS) for n, policy in drawn)
    labels = tuple((n // policies if own else n) + policy for n, policy in drawn)
    prefixes = tuple(token_ids(vocab, prefix, seed + 1000 * n, banned) for n in range(conversations))
    return Batch(prefixes, pairs, tuple(label % len(LABELS) for label in labels), (1.0,) * len(pairs))


def some_pairs(batch: Batch, chosen: Sequence[int]) -> Batch:
    """A batch of these pairs alone, each with its conversation."""
    pairs = tuple(replace(batch.pairs[at], prefix=number) for number, at in enumerate(chosen))
    prefixes = tuple(batch.prefixes[batch.pairs[at].prefix] for at in chosen)
    labels = tuple(batch.labels[at] for at in chosen)
    return Batch(prefixes, pairs, labels, tuple(batch.weights[at] for at in chosen))


def whole_prompts(batch: Batch, policy: int) -> Batch:
    """A policy's pairs as a standard LoRA trains them: all of a prompt is adapted, and nothing lies before it."""
    own = some_pairs(batch, pairs_of(batch, policy))
    prompts = zip(own.prefixes, own.pairs, strict=True)
    pairs = tuple(replace(pair, policy=0, suffix_ids=prefix + pair.suffix_ids) for prefix, pair in prompts)
    return replace(own, prefixes=((),) * len(pairs), pairs=pairs)


def pairs_of(batch: Batch, policy: int) -> list[int]:
    return [at for at, pair in enumerate(batch.pairs) if pair.policy == policy]


def over_vocabulary(batch: Batch, vocab: int) -> Batch:
    """The same answers, each chosen among all tokens, as language-model trainers do."""
    answers = tuple(pair.label_token_ids[label] for pair, label in zip(batch.pairs, batch.labels, strict=True))
    pairs = tuple(replace(pair, label_token_ids=tuple(range(vocab))) for pair in batch.pairs)
    return replace(batch, pairs=pairs, labels=answers)


def piece_of(prefixes: Sequence[tuple[int, ...]], pair: Pair, label: int) -> Piece:
    return Piece.of(prefixes[pair.prefix] + pair.suffix_ids, (pair.label_token_ids[label],), pair.policy)
