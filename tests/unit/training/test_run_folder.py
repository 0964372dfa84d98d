"""Whose folder it is: a run or a comparison works in its own, and nothing of a user's is removed."""

import json
import shutil

import pytest

from alora.config.schema import Recipe
from alora.errors import RunError
from alora.lab.compare.compare_report import ComparisonFolder
from alora.training.layout import remove_checkpoints
from alora.training.run_folder import RunFolder
from tests.integration.bad_input.conftest import tree

KINDS = {
    "run": (RunFolder, ["checkpoints/checkpoint-3/optimizer.pt", "policies/red/training.json", "battery/battery.json"]),
    "comparison": (ComparisonFolder, ["arms/alora seed 0/red.json", "arms/judge/answers/red.jsonl"]),
}
PARTS = ["battery/.red.01234567.alora-part/red/alora.json", "policies/red/.adapter.01234567.alora-part/x",
         ".run.yaml.01234567.alora-part"]  # fmt: skip


def claim(kind, path, rank=16):
    recipe = Recipe(run_dir=str(path))
    recipe.adapter.rank = recipe.prompt.max_prefix_tokens = rank
    with KINDS[kind][0](recipe) as folder:
        return folder.claim({"rows": "digest", "policy red": ""})


def fill(path, names):
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("x")


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_holds_one_run_and_names_the_folder_of_another(kind, tmp_path):
    path = tmp_path / "run"
    assert claim(kind, path) is False
    fill(path, [*KINDS[kind][1], "notes.md", ".git/HEAD"])
    before = tree(tmp_path)
    assert claim(kind, path) is True
    with pytest.raises(RunError, match=f"run_dir={path}-[0-9a-f]{{6}} ") as refused:
        claim(kind, path, rank=8)
    assert tree(tmp_path) == before
    named = str(refused.value).partition("run_dir=")[2].partition(" ")[0]
    assert claim(kind, named, rank=8) is False


def test_checkpoints_are_removed_and_a_link_is_not_followed(tmp_path):
    fill(tmp_path, ["checkpoints/checkpoint-3/optimizer.pt", "mine/checkpoint-3/optimizer.pt"])
    remove_checkpoints(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").symlink_to("mine")
    remove_checkpoints(tmp_path / "checkpoints")
    assert (tmp_path / "mine/checkpoint-3/optimizer.pt").exists()


INPUTS = {"a user's own": {"inputs": ["a.csv"], "settings": {}}, "the other kind's": None, "a list": []}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_users_folder_is_no_run_because_of_a_name(kind, name, tmp_path):
    path = tmp_path / "mine"
    fill(path, ["policies/mine.yaml", "run.yaml", ".hidden"])
    (path / "inputs.json").write_text(json.dumps(INPUTS[name]))
    if name == "the other kind's":
        (other,) = KINDS.keys() - {kind}
        claim(other, tmp_path / "other")
        shutil.copy(tmp_path / "other/inputs.json", path)
    before = tree(tmp_path)
    with pytest.raises(RunError, match=r"inputs\.json"):
        claim(kind, path)
    assert tree(tmp_path) == before
    (path / "inputs.json").unlink()
    with pytest.raises(RunError, match="is not empty"):
        claim(kind, path)


def test_what_a_killed_process_was_writing_is_swept_and_hidden_files_of_the_users_stay(tmp_path):
    claim("run", tmp_path)
    fill(tmp_path, ["battery/.git/HEAD", "battery/.env", "policies/red/.notes", ".adapter.mine"])
    before = tree(tmp_path)
    fill(tmp_path, PARTS)
    assert tree(tmp_path).keys() > before.keys()
    assert claim("run", tmp_path) is True
    assert tree(tmp_path).keys() == before.keys()
