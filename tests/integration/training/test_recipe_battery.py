"""``recipe=battery`` as it comes, on a toy base and a few of its rows: six bundles, and one policy that cannot be."""

import json
from pathlib import Path

import pytest

from alora.adapter.folder import load_adapter
from tests.forked import run_forked
from tests.toy_recipe import QUICK, toy_base_folder

SHIPPED = Path(__file__).parents[3] / "recipes" / "battery"
COUNTS = {"train": 60, "validation": 40, "test": 24}
SIX = ["no_medical_advice", "no_legal_advice", "no_money_advice", "no_referral", "no_question_back", "no_travel_talk"]


def _train(folder: Path, policies: Path, run: str):
    return run_forked(
        "train", "recipe=battery", f"base.source={folder / 'base'}", f"policy.file={policies}",
        *(f"data.{split}={folder / split}.jsonl" for split in ("train", "validation", "test")),
        f"run_dir={folder / run}", *QUICK, "training.max_steps=4", cache=folder / "cache",
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipe")
    toy_base_folder(folder / "base")
    for split in ("train", "validation", "test"):
        rows = [json.loads(line) for line in (SHIPPED / f"{split}.jsonl").read_text().splitlines()[: COUNTS[split]]]
        for row in rows:
            row["labels"]["never_broken"] = "ok"
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    extra = "  - {id: never_broken, title: Never broken, rule: Nobody breaks this.}\n"
    (folder / "policies.yaml").write_text((SHIPPED / "policies.yaml").read_text() + extra)
    return folder, _train(folder, folder / "policies.yaml", "seven")


def test_six_are_whole_and_the_seventh_is_named(trained):
    folder, (code, output, errors) = trained
    assert code == 1, errors
    assert "hold no 'violation' of policy 'never_broken'" in output
    assert json.loads((folder / "seven/battery/battery.json").read_text())["bundles"] == SIX
    for name in SIX:
        own = folder / "seven/policies" / name
        assert json.loads((own / "training.json").read_text())["standing"]["dropped"] is None
        assert json.loads((own / "identity.json").read_text())["passed"]
        assert json.loads((own / "evaluation.json").read_text())
        assert load_adapter(folder / "seven/battery" / name).spec.activated


def test_the_seventh_has_hurt_no_other(trained):
    folder, _ = trained
    code, _, errors = _train(folder, SHIPPED / "policies.yaml", "six")
    assert code == 0, errors
    digests = {
        run: [load_adapter(folder / run / "policies" / name / "adapter").digest for name in SIX]
        for run in ("six", "seven")
    }
    assert digests["six"] == digests["seven"]
    assert len(set(digests["six"])) == len(SIX)
