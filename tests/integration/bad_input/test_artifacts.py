"""What happens around a refusal: what a message advises is enough, and a recipe nearby changes nothing."""

import json

import pytest

from alora.adapter.folder import AdapterSpec, new_adapter, save_adapter
from alora.cli import main
from tests.integration.bad_input.promise import Case, arguments, copy, cut
from tests.toy_models import toy_model
from tests.toy_tokenizers import toy_tokenizer


def test_a_recipe_in_the_working_folder_does_not_change_the_base(place, here, refused):
    (here / "recipe.yaml").write_text(f"base:\n  source: {place / 'other'}\n")
    for verb in ("score conversation={place}/talk.json", "validate"):
        command = f"{verb} artifact={{place}}/run"
        assert main(arguments(command, place, here)) == 0
        refused(Case(f"{command} base.source={{place}}/other", ["weights are not those"]))


@pytest.mark.parametrize("file", ["evaluation.json", "identity.json"])
def test_the_same_training_over_a_damaged_file(file, place, here, capsys):
    """What the message advises is enough."""
    run = copy(place / "run", here / "run")
    before = (run / file).read_bytes()
    cut(file)(run)
    assert main(arguments("train", place, here)) == 2
    errors = capsys.readouterr().err
    assert f"run/{file} is damaged" in errors
    assert "remove it and run the same command again" in errors
    assert "Traceback" not in errors
    (run / file).unlink()
    assert main(arguments("train", place, here)) == 0
    assert json.loads((run / file).read_text()).keys() == json.loads(before).keys()


def test_a_plain_lora_has_no_identity_to_prove(place, here, refused):
    model = toy_model("qwen3", vocab=len(toy_tokenizer("qwen3")))
    save_adapter(new_adapter(AdapterSpec(4, 8.0, ("q_proj",), None), model, seed=0), here / "lora", "toy")
    words = ["plain LoRA", "from token 0"]
    refused(Case("validate artifact={here}/lora base.source={place}/base", words, exit_code=1))
