"""The real default base: the one test that needs a base which knows something. It is fetched once per cache."""

import pytest
import torch

from alora.base.load import LoadedBase, load_base
from alora.config.schema import BaseSettings, PromptSettings
from alora.policy import Policy
from alora.prompt.render import Renderer

# Dequantized by numpy, element by element, so every machine makes the same bits.
WEIGHTS = "3ac0c172da6bdd046b558c2f12d0adaa20eba5c9bd3bd656ecf4f7a2e6d30912"


@pytest.fixture(scope="module")
def base() -> LoadedBase:
    return load_base(BaseSettings(source="smollm2"), progress=False)


def test_is_the_same_on_every_machine(base):
    assert base.fingerprint.weights == WEIGHTS
    assert base.model.num_parameters() == 134_515_008


def test_knows_something(base):
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = base.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    with torch.inference_mode():
        answer = base.model.generate(ids, max_new_tokens=12, do_sample=False)
    assert "Paris" in base.tokenizer.decode(answer[0, ids.shape[1] :])


def test_a_suffix_is_short_and_its_labels_are_single_tokens(base):
    """The length is what each policy of a battery costs."""
    policy = Policy("p", "No medical advice", "The assistant gives no medical advice.")
    lengths = {}
    for instruction in ("none", "title", "rule"):
        suffix = Renderer(base.tokenizer, PromptSettings(instruction=instruction)).suffix(policy)
        assert [base.tokenizer.decode(token) for token in suffix.label_token_ids] == ["Yes", "No"]
        lengths[instruction] = len(suffix.token_ids)
    assert lengths["none"] == 12 < lengths["title"] < lengths["rule"]
