"""Every key of every JSON file with a value of another type, its digests made right again: refused by the key's name.

One test runs all keys of one section, because which keys a section has is known only once a run is there.
"""

import json
import shutil
from typing import Any

import pytest

from alora.adapter.folder import CONFIG_FILE
from alora.bundle.manifest import CERTIFICATE_FILE, GOLDEN_FILE, MANIFEST_FILE
from alora.text import content_digest
from alora.training.layout import EVALUATION
from tests.integration.bad_input.conftest import Case, breaches
from tests.integration.bad_input.generated import SCORE, keys, sign, swap

EXPORT = "export artifact={here}/run"
SECTIONS = {  # where a file lies, the command that reads it, and the sections of it that are read
    MANIFEST_FILE: (
        "run/bundle",
        SCORE,
        "schema_version activated created policy prompt suffix base adapter_digest operating_point evaluations data "
        "certificate files versions card moved system_share sha256",
    ),
    CONFIG_FILE: (
        "run/bundle",
        SCORE,
        "alora_invocation_tokens bias lora_alpha peft_type r target_modules use_rslora init_lora_weights use_dora "
        "rank_pattern alpha_pattern modules_to_save lora_bias layer_replication fan_in_fan_out target_parameters "
        "use_qalora use_bdlora trainable_token_indices arrow_config kasa_config monteclora_config megatron_config "
        "layers_to_transform layers_pattern exclude_modules",
    ),
    GOLDEN_FILE: ("run/bundle", SCORE, "id messages prefix_sha256 label_logits"),
    f"policies/toy/{CERTIFICATE_FILE}": (
        "run",
        EXPORT,
        "passed engine created base_source base adapter_digest invocation_ids adapted_modules environment lengths "
        "dtypes notes parity vllm format",
    ),
    "policies/toy/evaluation.json": ("run", EXPORT, "schema_version evaluations findings sha256"),
}


def first_row(text: str) -> tuple[dict[str, Any], str]:
    """The first JSON value of a file, and what follows it."""
    content, end = json.JSONDecoder().raw_decode(text)
    return content, text[end:]


@pytest.mark.parametrize(
    ("file", "section"), [(file, name) for file, (_, _, names) in SECTIONS.items() for name in names.split()]
)
def test_a_swapped_key_is_named(file, section, place, here, capsys):
    folder, command, _ = SECTIONS[file]
    content, _ = first_row((place / folder / file).read_text())
    found = {}
    for path in keys({section: content[section]}):
        name = [step for step in path if isinstance(step, str)][-1]
        name = "answer words" if path[:2] == ("policy", "labels") and len(path) > 2 else name
        case = Case(command, [file, name], copied=folder, damage=lambda copied, path=path: swapped(copied, file, path))
        broken = breaches(case, place, here, capsys)
        if broken:
            found[".".join(map(str, path))] = broken
        shutil.rmtree(here / folder.split("/")[-1])
    assert found == {}


def swapped(folder, file, *paths):
    content, rest = first_row((folder / file).read_text())
    for path in paths:
        swap(content, path)
    if file.endswith(EVALUATION) and paths != (("sha256",),):
        content["sha256"] = content_digest(content)
    (folder / file).write_text(json.dumps(content) + rest)
    if (folder / MANIFEST_FILE).exists() and paths != (("sha256",),):
        sign(folder, file)


def test_every_section_is_there(place):
    for file, (folder, _, names) in SECTIONS.items():
        content, _ = first_row((place / folder / file).read_text())
        assert set(names.split()) - set(content) == set()
        if file != CONFIG_FILE:
            assert set(content) - set(names.split()) == set()


def test_keys_of_peft_that_change_no_answer_may_be_anything(place, here, capsys):
    content, _ = first_row((place / "run/bundle" / CONFIG_FILE).read_text())
    others = [(name,) for name in set(content) - set(SECTIONS[CONFIG_FILE][2].split())]
    case = Case(
        SCORE,
        exit_code=0,
        copied="run/bundle",
        damage=lambda copied: swapped(copied, CONFIG_FILE, *others),
        result=["violation"],
    )
    assert breaches(case, place, here, capsys) == []
