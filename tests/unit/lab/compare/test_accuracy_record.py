"""scripts/accuracy_record.py: a record of several comparisons holds one set of rows, one base and one budget."""

import copy
import functools
import importlib.util
import operator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from alora.config.schema import AdapterSettings, CompareSettings, EvaluationSettings, PromptSettings, TrainingSettings

FILE = Path(__file__).parents[4] / "scripts/accuracy_record.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("accuracy_record", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _comparison(arm: str, shift: float) -> dict:
    draw = np.random.default_rng(len(arm))
    labels = [0, 1] * 30
    logits = [[shift * (label == 0) + draw.normal(), 0.0] for label in labels]
    part = {"ids": [f"row{i}" for i in range(60)], "label_ids": labels, "logits": logits, "asked": 60}
    settings = {
        "base_fingerprint": {"weights": "w", "tokenizer": arm},  # told by another version of transformers
        "adapter": asdict(AdapterSettings()),
        "prompt": asdict(PromptSettings()),
        "training": asdict(TrainingSettings(threads=len(arm))),
        "evaluation": asdict(EvaluationSettings(bootstrap=50)),
        "compare": asdict(CompareSettings(arms=[arm])),
    }
    score = {"arm": arm, "policy": "insult", "seed": 0, "rank": 16, "facts": {}, "validation": part, "test": part}
    return {"settings": settings, "environment": {"commit": arm, "command": f"alora compare {arm}"}, "scores": [score]}


def test_another_arm_on_the_same_rows_joins(script):
    found = script.joined(_comparison("alora", 3.0), _comparison("lora", 0.5))
    assert {item["arm"] for item in found["scores"]} == {"alora", "lora"}
    (gap,) = [one for one in found["gaps"] if one["policy"] == "insult"]
    assert (gap["first"][0], gap["second"][0]) == ("alora", "lora")
    assert gap["value"] > 0.1
    (also,) = found["also"]
    assert (also["arms"], also["commit"]) == (["lora"], "lora")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("settings", "training", "batch_size"), 4),
        (("settings", "compare", "rows"), 7),
        (("settings", "base_fingerprint", "weights"), "other"),
        (("scores", 0, "test", "ids"), list(range(60))),
        (("scores", 0, "test", "label_ids"), list(range(60))),
        (("scores", 0, "arm"), "alora"),  # its seeds would be dropped unsaid
    ],
)
def test_another_budget_other_rows_or_an_arm_that_is_there_do_not(script, place, value):
    other = copy.deepcopy(_comparison("lora", 0.5))
    *outer, last = place
    functools.reduce(operator.getitem, outer, other)[last] = value
    with pytest.raises(SystemExit):
        script.joined(_comparison("alora", 3.0), other)
