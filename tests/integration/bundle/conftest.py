"""One toy base, one adapter that changes answers, and its real certificate."""

from pathlib import Path

import pytest

from alora.adapter.folder import AdapterWeights, save_adapter
from alora.base.load import LoadedBase
from alora.base.stored import fingerprint_base
from alora.bundle.write import BundleContents, write_bundle
from alora.config.schema import IdentitySettings, PromptSettings
from alora.data.conversation import Conversation, Message
from alora.identity.certify import certify
from alora.policy import Policy
from alora.prompt.render import Renderer
from alora.verdict import OperatingPoint
from tests.peft_reference import random_adapter
from tests.toy_models import toy_model
from tests.toy_tokenizers import toy_tokenizer

PROMPT = PromptSettings(max_prefix_tokens=400)
POLICIES = {
    "advice": Policy("advice", "Unauthorized advice", "No medical advice.\nNo legal advice."),
    "refunds": Policy("refunds", "Promised refunds", "No refund is promised."),
}
POINT = OperatingPoint(1.5, 0.42, 0.35, 0.5, "f1", None, 40, 18)


def make_base(seed: int = 0, source: str = "toys/qwen3", tokenizer_family: str = "qwen3") -> LoadedBase:
    tokenizer = toy_tokenizer(tokenizer_family)
    model = toy_model("qwen3", seed=seed, vocab=len(tokenizer))
    return LoadedBase(model, tokenizer, fingerprint_base(None, model, tokenizer), source)


def make_adapter(base: LoadedBase, policy: str = "advice", seed: int = 0, activated: bool = True) -> AdapterWeights:
    invocation = Renderer(base.tokenizer, PROMPT).suffix(POLICIES[policy]).invocation_ids
    return random_adapter(base.model, seed=seed, invocation=invocation if activated else None)


def make_contents(base: LoadedBase, folder: Path, policy: str = "advice", seed: int = 0) -> BundleContents:
    """Everything a bundle needs, with a certificate of this very adapter."""
    weights = make_adapter(base, policy, seed)
    save_adapter(weights, folder, base.source)
    renderer = Renderer(base.tokenizer, PROMPT)
    prompts = [
        renderer.prompt(Conversation(text, (Message("user", text),)), POLICIES[policy])
        for text in ("Can you tell me what to take?", "The parcel will arrive on 12 May.", "Thank you very much!")
    ]
    certificate = certify(base, folder, prompts, IdentitySettings(dtypes=["float32"], negative_controls=False))
    return BundleContents(POLICIES[policy], PROMPT, POINT, base=base, weights=weights, certificate=certificate)


@pytest.fixture(scope="session")
def base() -> LoadedBase:
    return make_base()


@pytest.fixture(scope="session")
def contents(base: LoadedBase, tmp_path_factory: pytest.TempPathFactory) -> BundleContents:
    return make_contents(base, tmp_path_factory.mktemp("adapter") / "advice")


@pytest.fixture
def folder(contents: BundleContents, tmp_path: Path) -> Path:
    """A fresh bundle that a test may damage."""
    return write_bundle(contents, tmp_path / "advice", golden_rows=3).folder
