"""Bundles written by ``write_bundle`` on a toy base whose heads are as wide as vLLM's CPU kernels need."""

import functools
from pathlib import Path

from alora.adapter.folder import save_adapter
from alora.base.load import LoadedBase, load_base
from alora.bundle.battery import write_battery
from alora.bundle.read import Bundle
from alora.bundle.write import BundleContents, write_bundle
from alora.config.schema import BaseSettings, IdentitySettings, PromptSettings
from alora.data.conversation import Conversation, Message
from alora.identity.certify import certify
from alora.policy import Policy
from alora.prompt.render import Renderer
from alora.verdict import OperatingPoint
from tests.peft_reference import ATTENTION_TARGETS, random_adapter
from tests.toy_recipe import toy_base_folder
from tests.vllm import toys as store

PROMPT = PromptSettings(max_prefix_tokens=400)
POLICIES = (
    Policy("advice", "Unauthorized advice", "No medical advice.\nNo legal advice."),
    Policy("refunds", "Promised refunds", "No refund is promised."),
)
POINT = OperatingPoint(1.5, 0.42, 0.35, 0.5, "f1", None, 40, 18)


@functools.cache
def base_folder() -> Path:
    folder = toy_base_folder(store.folder() / "bundled base", head_dim=32)
    # vLLM's server takes it for a default of its requests; a verdict must not.
    (folder / "generation_config.json").write_text('{"repetition_penalty": 1.5}')
    return folder


@functools.cache
def base() -> LoadedBase:
    return load_base(BaseSettings(source=str(base_folder()), dtype="float32"))


@functools.cache
def battery() -> Path:
    """A battery of two bundles, of unequal rank, targets and scaling."""
    folder = store.folder() / "battery"
    folder.mkdir()
    made = [write(policy, folder, seed) for seed, policy in enumerate(POLICIES)]
    write_battery(folder, made)
    return folder


def write(policy: Policy, folder: Path, seed: int) -> Bundle:
    renderer = Renderer(base().tokenizer, PROMPT)
    suffix = renderer.suffix(policy)
    narrow = {"rank": 4, "targets": ATTENTION_TARGETS, "scaling": 0.7}
    shape = {"rank": 8, "scaling": 1.3, "rank_stabilised": True} if seed else narrow
    weights = random_adapter(base().model, seed=seed, invocation=suffix.invocation_ids, **shape)
    adapter = store.folder() / f"adapter-{policy.id}"
    save_adapter(weights, adapter, str(base_folder()))
    prompts = [renderer.prompt(conversation("Where is my parcel, please?"), policy)]
    settings = IdentitySettings(dtypes=["float32"], negative_controls=False)
    certificate = certify(base(), adapter, prompts, settings)
    contents = BundleContents(policy, PROMPT, POINT, base=base(), weights=weights, certificate=certificate)
    return write_bundle(contents, folder / policy.id, golden_rows=3)


def conversation(text: str) -> Conversation:
    return Conversation("c", (Message("user", text),))
