"""Whose folder it is: a run's or a comparison's own files are removed, and nobody else's."""

import json
import shutil

import pytest

from alora.comparison.folder import ComparisonFolder
from alora.config.schema import Recipe
from alora.errors import RunError
from alora.layout import PAGE_MARK
from alora.training.run_folder import LOCK, RunFolder, remove_checkpoints
from tests.integration.bad_input.conftest import tree

RUN = [
    "checkpoints/checkpoint-3/optimizer.pt", "checkpoints/red/checkpoint-12/rng_state.pth", "checkpoints/red/README.md",
    "checkpoints/checkpoint-3/tokenizer.json", "checkpoints/checkpoint-3/vocab.txt",
    "policies/red/training.json", "policies/red/adapter/adapter_config.json", "policies/blue/evaluation.json",
    "policies/red/predictions.parquet", "policies/red/report.html", "report.html",
    "battery/battery.json", "battery/red/alora.json", "battery/red/adapter_model.safetensors",
]  # fmt: skip
RUN_OF_0_1 = [
    "checkpoints/checkpoint-3/optimizer.pt", "training.json", "evaluation.json", "identity.json",
    "adapter/adapter_config.json", "adapter/adapter_model.safetensors",
    "bundle/alora.json", "bundle/README.md", "bundle/golden.jsonl", "bundle/identity.json",
]  # fmt: skip
COMPARISON = [
    "arms/alora seed 0/red.json", "arms/alora seed 0/left_out.json", "arms/judge/open", "arms/judge/answers/red.jsonl",
    "arms/alora seed 0/adapters/red/adapter_config.json",
    "arms/alora seed 0/checkpoints/checkpoint-4/model.safetensors",
    "arms/judge/.red.json.01234567.alora-part",
]  # fmt: skip
KINDS = {"run": (RunFolder, RUN), "comparison": (ComparisonFolder, COMPARISON)}


def claim(kind, path, rank=16, force=False):
    recipe = Recipe(run_dir=str(path), force=force)
    recipe.adapter.rank = recipe.prompt.max_prefix_tokens = rank
    with KINDS[kind][0](recipe) as folder:
        return folder.claim({"rows": "digest", "policy red": "", "policy blue": ""})


def fill(path, names):
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(PAGE_MARK if name.endswith("report.html") else "x")


@pytest.mark.parametrize("kind", KINDS)
def test_force_removes_all_that_it_has_made_and_keeps_what_lies_beside(kind, tmp_path):
    path = tmp_path / "run"
    assert claim(kind, path) is False
    fill(path, [*KINDS[kind][1], "notes.md", "tracking/wandb/x", ".git/HEAD"])
    kept = {name: found for name, found in tree(path).items() if "notes" in name or "tracking" in name or "git" in name}
    assert claim(kind, path) is True
    with pytest.raises(RunError, match="force=true"):
        claim(kind, path, rank=8)
    assert claim(kind, path, rank=8, force=True) is False
    assert {name: found for name, found in tree(path).items() if not name.endswith("inputs.json")} == kept


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("run", "policies/mine.yaml"),
        ("run", "adapter/notes.md"),
        ("run", "bundle/.git/HEAD"),
        ("run", "battery/red/figures/roc.png"),
        ("run", "checkpoints/notes.md"),
        ("run", "checkpoints/checkpoint-3/mine.txt"),
        ("run", "checkpoints/checkpoint-3/customer_token_notes.csv"),
        ("run", "training.json"),
        ("run", "evaluation.json"),
        ("run", "identity.json"),
        ("run", "checkpoints/thesis/README.md"),
        ("run", "checkpoints/README.md"),
        ("run", "policies/my/report.html"),
        ("run", "battery/my/README.md"),
        ("comparison", "arms/notes.md"),
        ("comparison", "arms/mine/weights.bin"),
    ],
)
def test_force_removes_nothing_while_something_of_the_users_lies_among_it(kind, name, tmp_path):
    path = tmp_path / "run"
    claim(kind, path)
    fill(path, [*KINDS[kind][1], name])
    before = tree(tmp_path)
    with pytest.raises(RunError, match=f"{name} is not a file of alora's"):
        claim(kind, path, rank=8, force=True)
    assert tree(tmp_path) == before
    (path / name).rename(tmp_path / "away")
    assert claim(kind, path, rank=8, force=True) is False


def test_force_removes_what_a_run_of_0_1_has_made(tmp_path):
    path = tmp_path / "run"
    claim("run", path)
    fill(path, [*RUN_OF_0_1, "notes.md"])
    assert claim("run", path, force=True) is False
    assert {file.name for file in path.rglob("*")} - {LOCK} == {"notes.md", "inputs.json"}


def test_a_page_of_the_users_is_not_removed_for_its_name(tmp_path):
    path = tmp_path / "run"
    claim("run", path)
    fill(path, RUN)
    for name in ("report.html", "policies/red/report.html"):
        (path / name).write_text("<!doctype html>mine")
        with pytest.raises(RunError, match=f"{name} is not a file of alora's"):
            claim("run", path, rank=8, force=True)
        fill(path, [name])
    assert claim("run", path, rank=8, force=True) is False


def test_checkpoints_are_removed_by_the_names_of_their_files(tmp_path):
    own = ["checkpoint-3/optimizer.pt", "red/checkpoint-3/adapter_model.safetensors", "red/README.md"]
    mine = ["checkpoint-3/mine.txt", "blue/checkpoint-3/optimizer.pt", "README.md"]
    fill(tmp_path / "checkpoints", [*own, *mine])
    remove_checkpoints(tmp_path / "checkpoints", ["red"])
    left = {file.relative_to(tmp_path / "checkpoints").as_posix() for file in tmp_path.rglob("*") if file.is_file()}
    assert left == {*mine}


INPUTS = {
    "a user's own": {"inputs": ["a.csv"], "settings": {}},
    "the other kind's": None,
    "a list": [],
    "a text": "inputs",
}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_users_folder_is_no_run_because_of_a_name(kind, name, force, tmp_path):
    path = tmp_path / "mine"
    fill(path, [*RUN, *COMPARISON, "run.yaml", ".hidden"])
    (path / "inputs.json").write_text(json.dumps(INPUTS[name]))
    if name == "the other kind's":
        (other,) = KINDS.keys() - {kind}
        claim(other, tmp_path / "other")
        shutil.copy(tmp_path / "other/inputs.json", path)
    before = tree(tmp_path)
    with pytest.raises(RunError, match=r"is not the record of an alora|\(a (list|str), not an object\)"):
        claim(kind, path, force=force)
    assert tree(tmp_path) == before
    assert not (path / LOCK).exists()
    (path / "inputs.json").unlink()
    with pytest.raises(RunError, match="is not empty"):
        claim(kind, path, force=force)


def test_a_sweep_leaves_hidden_files_of_the_users_alone(tmp_path):
    claim("run", tmp_path)
    mine = ["battery/.git/HEAD", "battery/.env", "policies/red/.notes", ".adapter.mine"]
    parts = ["battery/.red.01234567.alora-part/red/alora.json", "policies/red/.adapter.01234567.alora-part/x",
             ".run.yaml.01234567.alora-part"]  # fmt: skip
    fill(tmp_path, mine)
    before = tree(tmp_path)
    fill(tmp_path, parts)
    assert tree(tmp_path).keys() > before.keys()
    assert claim("run", tmp_path) is True
    assert tree(tmp_path).keys() == before.keys()


def test_a_folder_in_which_a_run_was_killed_at_its_start_is_the_runs(tmp_path):
    fill(tmp_path, [".inputs.json.01234567.alora-part"])
    assert claim("run", tmp_path) is False
    assert {path.name for path in tmp_path.iterdir()} - {LOCK} == {"inputs.json"}


def test_a_long_text_that_changed_is_shown_where_it_parts(tmp_path):
    """Its beginning and its end alone read the same in both."""
    before, after = (f"{'The agent never insults. ' * 4}{word}{' And more of it.' * 4}" for word in ("Never.", "Once."))
    recipe = Recipe(run_dir=str(tmp_path / "run"))
    with RunFolder(recipe) as folder:
        folder.claim({"policy red": before, "rows": "a"})
        fill(folder.path, ["battery/battery.json"])
        with pytest.raises(
            RunError, match=r"policy red: \.\.\. insults\. Never\..* -> \.\.\. insults\. Once\."
        ) as refused:
            folder.claim({"policy red": after, "rows": "b"})
    assert "rows: a -> b" in str(refused.value)


@pytest.mark.parametrize("name", ["battery", "policies/red", "adapter", "inputs.json"])
def test_a_run_folder_that_leads_elsewhere_is_refused(name, tmp_path):
    path, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    claim("run", path)
    fill(path, [*RUN, "adapter/adapter_config.json"])
    elsewhere.mkdir()
    fill(elsewhere, [".red.01234567.alora-part", "training.json"])
    (path / name).rename(tmp_path / "away")
    (path / name).symlink_to(elsewhere)
    before = tree(tmp_path)
    with pytest.raises(RunError, match=f"{name} is a link"):
        claim("run", path, rank=8, force=True)
    assert tree(tmp_path) == before


def test_a_folder_whose_name_is_no_utf_8_is_refused_before_a_training(tmp_path):
    """Safetensors would write below it, and not read."""
    with pytest.raises(RunError, match=r"run folder '.*nu_\\udce9' has no name in UTF-8; set run_dir="):
        RunFolder(Recipe(run_dir=f"{tmp_path}/nu_\udce9"))
    assert list(tmp_path.iterdir()) == []
