"""An adapter folder on a toy base, the prompts to certify it on, and the runs that a check compares."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import OPTConfig, OPTForCausalLM

from alora.adapter.folder import save_adapter
from alora.base.fingerprint import Fingerprint
from alora.base.load import LoadedBase
from alora.identity.capture import Call, Capture, Site, capture, make_calls, twin
from alora.identity.certify import with_adapter
from alora.identity.controls import Models
from alora.identity.equality import adapted_modules, reached_sites
from alora.prompt.render import Prefix, Prompt, Suffix
from tests.peft_reference import ALL_TARGETS, random_adapter
from tests.toy_models import toy_model

INVOCATION = (5, 6, 7)
FINGERPRINT = Fingerprint("weights", "tokenizer", "template")
DTYPES = (torch.float32, torch.bfloat16)


def toy_base(family: str, **shape: int) -> LoadedBase:
    """A base without a tokenizer, which a check with ready prompts does not need."""
    return LoadedBase(toy_model(family, **shape), None, FINGERPRINT, f"toy {family}")  # type: ignore[arg-type]


def opt_base() -> LoadedBase:
    """OPT, whose causal LM runs a part of its base model, and whose fc1 gets the tokens of all rows at once."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "num_hidden_layers": 2}
    config = OPTConfig(vocab_size=200, num_attention_heads=4, max_position_embeddings=256, **shape)
    return LoadedBase(OPTForCausalLM(config).eval(), None, FINGERPRINT, "toy opt")  # type: ignore[arg-type]


def toy_prompts(lengths: Sequence[int] = (17, 40), seed: int = 1) -> list[Prompt]:
    """Prompts of random ids, prefixes of the given lengths, one suffix."""
    generator = torch.Generator().manual_seed(seed)
    suffix = Suffix((*INVOCATION, 20, 21), INVOCATION, (3, 4))
    rows = (torch.randint(10, 190, (length,), generator=generator).tolist() for length in lengths)
    return [Prompt(Prefix(tuple(row)), suffix) for row in rows]


def write_adapter(base: LoadedBase, folder: Path, targets: Sequence[str] = ALL_TARGETS, **options: Any) -> Path:
    """A PEFT folder with a random, non-zero B; ``invocation=None`` makes a plain LoRA."""
    save_adapter(random_adapter(base.model, targets=targets, **options), folder, base.source)
    return folder


def adapted(folder: Path, family: str = "qwen3", **options: Any) -> tuple[LoadedBase, Path]:
    """A toy base and the folder of an adapter of it."""
    base = toy_base(family)
    return base, write_adapter(base, folder / "adapter", **options)


@dataclass(frozen=True)
class Stage:
    """One dtype's models and calls, the base's captures, and the sites that must differ."""

    bare: Any
    models: Models
    calls: Sequence[Call]
    bases: dict[str, Capture]
    reached: frozenset[Site]

    @property
    def batch(self) -> Call:
        """The left-padded batch."""
        return self.calls[-1]


def stage(base: LoadedBase, folder: Path, dtype: torch.dtype) -> Stage:
    """What :func:`alora.identity.certify.certify_dtype` sets up before it judges."""
    bare = twin(base.model, dtype)
    alora = with_adapter(bare, folder)
    plain = with_adapter(bare, folder, alora_invocation_tokens=None)
    calls = make_calls(toy_prompts(), base.model, INVOCATION)
    bases = {call.name: capture(bare, call) for call in calls}
    layers = base.model.config.num_hidden_layers
    return Stage(bare, Models(alora, plain), calls, bases, reached_sites(adapted_modules(alora), layers))
