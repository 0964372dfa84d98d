"""Settings of PEFT, TRL and transformers are refused by name, each with its reason."""

import pytest

from alora.config.convert import schema_types, unknown_key_message
from alora.config.elsewhere import REFUSED, REFUSED_VALUES, RENAMED, advice
from alora.config.schema import Recipe
from alora.config.setting import settings_of
from alora.config.validate import check_recipe
from alora.errors import ConfigError
from tests.unit.config.test_setting import recipe_with


def test_the_tables_follow_the_schema():
    keys = set(schema_types())
    leaves = {key.rpartition(".")[2] for key in keys}
    assert not leaves & (REFUSED.keys() | RENAMED.keys())
    assert not REFUSED.keys() & RENAMED.keys()
    assert set(RENAMED.values()) <= keys


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("training.packing", "only the last one adapted"),
        ("packing", "always packed behind shared prefixes"),
        ("training.padding_free", "without padding"),
        ("num_beams", "no beam search"),
        ("do_sample", "nothing is generated"),
        ("inputs_embeds", "PEFT runs the base alone"),
        ("adapter.lora_dropout", "early stopping instead"),
        ("training.gradient_checkpointing_kwargs", "training.gradient_checkpointing=true"),
        ("adapter.alora_invocation_tokens", "the length of the prefix"),
        ("export.merge", "cannot be merged"),
        ("adapter_names", "policies=[A,B]"),
        ("training.max_length", "here it is prompt.max_prefix_tokens"),
        ("training.truncation_mode", "here it is prompt.truncation"),
        ("training.per_device_train_batch_size", "here it is training.batch_size"),
    ],
)
def test_what_the_user_is_told(key, words):
    text = unknown_key_message(key)
    assert words in text
    assert key in text


def test_a_key_of_nobodys_is_no_setting_of_another_library():
    assert advice("training.epcohs") is None
    assert "did you mean 'training.epochs'?" in unknown_key_message("training.epcohs")


@pytest.mark.parametrize(("key", "value"), REFUSED_VALUES)
def test_values_that_are_refused_with_a_reason(key, value):
    assert value not in {name: limits.choices for name, _, limits in settings_of(Recipe)}[key]
    with pytest.raises(ConfigError) as caught:
        check_recipe(recipe_with(key, value), "doctor")
    assert REFUSED_VALUES[key, value] in str(caught.value)
    check_recipe(Recipe(), "doctor")
