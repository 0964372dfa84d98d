"""A base folder and adapter folders on disk, as a user has them."""

from pathlib import Path

from alora.adapter.folder import AdapterWeights, save_adapter
from alora.base.load import LoadedBase, load_base
from alora.config.schema import BaseSettings, PromptSettings
from alora.policy import Policy
from alora.prompt.render import Renderer
from tests.peft_reference import random_adapter

POLICY = Policy("late", "Late delivery", "The assistant must not promise a delivery date.")


def load(folder: Path) -> LoadedBase:
    """The base, in memory."""
    return load_base(BaseSettings(source=str(folder), dtype="float32", device="cpu"), progress=False)


def write_adapter_for(base: LoadedBase, folder: Path, kind: str = "alora") -> Path:
    """An adapter invoked as the renderer invokes policies: ``alora``, plain ``lora``, or untrained ``zero``."""
    invocation = Renderer(base.tokenizer, PromptSettings()).suffix(POLICY).invocation_ids
    weights = random_adapter(base.model, invocation=None if kind == "lora" else invocation)
    if kind == "zero":
        weights = AdapterWeights(weights.spec, {name: (a, b * 0) for name, (a, b) in weights.tensors.items()})
    save_adapter(weights, folder, base.source)
    return folder
