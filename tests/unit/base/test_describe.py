"""A base that is computed elsewhere: the tokenizer and template that count are those that make prompts here."""

from alora.base.describe import describe_prompts
from alora.base.fingerprint import Fingerprint, template_digest, tokenizer_digest
from alora.config.schema import BaseSettings
from tests.toy_tokenizers import toy_tokenizer


def test_prompts_are_those_of_the_tokenizer_here_whatever_the_weights_are(tmp_path):
    tokenizer = toy_tokenizer("qwen3")
    tokenizer.save_pretrained(tmp_path)
    elsewhere = Fingerprint("weights", "tokenizer", "template", "nf4", "config", "settings")
    found = describe_prompts(BaseSettings(source=str(tmp_path)), elsewhere)
    assert found.source == str(tmp_path)
    assert found.fingerprint == Fingerprint(
        "weights", tokenizer_digest(tokenizer), template_digest(tokenizer), "nf4", "config", "settings"
    )
