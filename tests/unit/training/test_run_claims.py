"""A run folder belongs to its settings and inputs; what another run made is never taken for this one's."""

from dataclasses import replace

import pytest

from alora.base.fingerprint import Fingerprint
from alora.config.schema import (
    BenchSettings,
    ColumnSettings,
    DataSettings,
    EvaluationSettings,
    ExportSettings,
    GenerateSettings,
    LogsSettings,
    PlanSettings,
    PromptSettings,
    Recipe,
    ServingSettings,
    TrackingSettings,
)
from alora.errors import RunError
from alora.training.run_folder import RunFolder, holds_finished, open_claim

INPUTS = {"train": "a" * 64, "policy p": "b" * 64}


def recipe(folder, **settings):
    return Recipe(run_dir=str(folder / "run"), **settings)


def claim(settings, inputs):
    with RunFolder(settings) as folder:
        return folder.claim(inputs)


@pytest.mark.parametrize(
    ("changed", "inputs", "complaint"),
    [
        ({}, INPUTS | {"train": "c" * 64}, r"inputs\.train"),
        ({"prompt": PromptSettings(max_prefix_tokens=77)}, INPUTS, r"prompt\.max_prefix_tokens: \d+ -> 77"),
        ({"evaluation": EvaluationSettings(target="fpr")}, INPUTS, r"evaluation\.target: None -> fpr"),
    ],
    ids=["inputs", "prompt", "evaluation"],
)
@pytest.mark.parametrize("output", ["battery/p/alora.json", "policies/p/training.json"])
def test_outputs_of_other_settings_or_inputs_are_refused(tmp_path, changed, inputs, complaint, output):
    first, other = recipe(tmp_path), recipe(tmp_path, **changed)
    assert claim(first, INPUTS) is False
    assert claim(other, inputs) is False  # nothing was made yet
    assert claim(first, INPUTS) is False
    made = tmp_path / "run" / output
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text("{}")
    assert claim(first, INPUTS) is True
    with pytest.raises(RunError, match=complaint):
        claim(other, inputs)
    assert made.exists()
    assert claim(first, INPUTS) is True


@pytest.mark.parametrize(
    "changed",
    [
        {"tracking": TrackingSettings(kind="tensorboard")},
        {"serving": ServingSettings(port=8001)},
        {"scorer": "vllm"},
        {"output": "elsewhere"},
        {"logs": LogsSettings(rows=7)},
        {"plan": PlanSettings(rate=3.0)},
        {"bench": BenchSettings(rounds=9)},
        {"generate": GenerateSettings(pairs=9)},
        {"export": ExportSettings(push_to="me/guard", private=False)},
        {"data": DataSettings(noise=True, columns=ColumnSettings(time="at"))},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_settings_that_change_nothing_that_was_made_go_on_in_the_same_run(changed, tmp_path):
    claim(recipe(tmp_path), INPUTS)
    made = tmp_path / "run/battery/p/alora.json"
    made.parent.mkdir(parents=True)
    made.write_text("{}")
    (tmp_path / "run/battery/battery.json").write_text("{}")
    assert holds_finished(recipe(tmp_path, **changed), INPUTS, ["p"])
    with RunFolder(recipe(tmp_path, **changed)) as folder:
        assert folder.claim(INPUTS) is True
    assert made.exists()


def test_a_run_is_opened_whatever_the_settings_that_training_does_not_use(tmp_path):
    settings = recipe(tmp_path)
    inputs = INPUTS | {f"base {name}": "x" for name in Fingerprint.__dataclass_fields__}
    claim(settings, inputs)
    other = replace(settings, data=DataSettings(noise=True, columns=ColumnSettings(time="at")))
    assert open_claim(tmp_path / "run", other).inputs == inputs
    with pytest.raises(RunError, match=r"data\.columns\.label: label -> toxic; put it back"):
        open_claim(tmp_path / "run", replace(settings, data=DataSettings(columns=ColumnSettings(label="toxic"))))


def test_finished_is_a_bundle_of_every_policy_from_these_inputs(tmp_path):
    one, two = recipe(tmp_path / "one"), recipe(tmp_path / "two", policies=["p", "q"])
    for settings in (one, two):
        claim(settings, INPUTS)
        assert not holds_finished(settings, INPUTS, ["p", "q"])
    (tmp_path / "one/run/battery/p").mkdir(parents=True)
    assert not holds_finished(one, INPUTS, ["p"])
    (tmp_path / "one/run/battery/battery.json").write_text("{}")
    assert holds_finished(one, INPUTS, ["p"])
    assert holds_finished(one, {"train": INPUTS["train"]}, ["p"])
    assert not holds_finished(one, INPUTS | {"train": "c" * 64}, ["p"])
    assert not holds_finished(one, INPUTS | {"base": "c" * 64}, ["p"])
    assert not holds_finished(replace(one, prompt=PromptSettings(max_prefix_tokens=77)), INPUTS, ["p"])
    battery = tmp_path / "two/run/battery"
    (battery / "p").mkdir(parents=True)
    (battery / "battery.json").write_text("{}")
    assert not holds_finished(two, INPUTS, ["p", "q"])
    (battery / "q").mkdir()
    assert holds_finished(two, INPUTS, ["p", "q"])
