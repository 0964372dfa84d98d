"""``tracking=wandb``: offline from a killed run to its end; and what happens when it cannot work."""

import json
import sys

import pytest

from alora.config.schema import Recipe, TrackingSettings
from alora.errors import MissingDependency
from alora.training.tracking import require_tracking, start_tracking
from tests.forked import kill_when, run_forked, start_forked
from tests.toy_recipe import toy_overrides
from tests.unit.config.test_secrets import SECRET, secretive

SMALL = ("identity.negative_controls=false", "export.golden_rows=0", "tracking=wandb", "tracking.mode=offline")


@pytest.fixture(scope="module")
def killed_and_resumed(tmp_path_factory):
    """A battery that is killed behind its first checkpoint and called again."""
    folder = tmp_path_factory.mktemp("wandb")
    overrides = toy_overrides(folder, folder / "run")
    (folder / "policy.yaml").write_text(
        "policies:\n- {id: red, title: No red, rule: No red.}\n- {id: blue, title: No blue, rule: No blue.}\n"
    )
    for split in ("train", "test"):
        rows = [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]
        for row in rows:
            label = row.pop("label")
            row["labels"] = {"red": label, "blue": "ok" if label == "violation" else "violation"}
            del row["policy"]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [*overrides, *SMALL, "policies=[*]"]
    first = start_forked("train", *arguments, cache=folder / "cache")
    kill_when(first, lambda: any((folder / "run/checkpoints").glob("*/complete.json")))
    before = json.loads((folder / "run/tracking/wandb/run.json").read_text())["id"]
    code, _, errors = run_forked("train", *arguments, cache=folder / "cache")
    assert code == 0, errors
    return folder, before


def test_a_resumed_run_keeps_its_id(killed_and_resumed):
    folder, run_id = killed_and_resumed
    assert len([*(folder / "run/tracking/wandb/wandb").glob("offline-run-*")]) == 2
    assert json.loads((folder / "run/tracking/wandb/run.json").read_text()) == {"id": run_id, "finished": True}


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """No account and no server."""
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    return Recipe(name="toy", run_dir=str(tmp_path / "run"), tracking=TrackingSettings(kind="wandb"))


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # wandb's own sockets and temporary folders
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("key", ["", "0" * 40])
def test_without_login_or_network_the_run_goes_on_without(key, nobody, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "3")  # seconds
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    notes: list[str] = []
    with start_tracking(nobody, tmp_path, False, notes.append) as tracking:
        tracking.log({"loss": 0.5}, 1)
        assert not tracking.active
    (note,) = notes
    assert "tracking.mode=offline" in note


def test_a_missing_package_is_told_before_the_work(monkeypatch):
    require_tracking(TrackingSettings(kind="none"))
    require_tracking(TrackingSettings(kind="wandb"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    require_tracking(TrackingSettings(kind="none"))
    with pytest.raises(MissingDependency, match="pip install wandb"):
        require_tracking(TrackingSettings(kind="wandb"))


def test_no_secret_is_recorded(tmp_path, monkeypatch):
    """Neither from the settings nor from the command line, of which wandb keeps a copy."""
    recipe = secretive()
    recipe.tracking = TrackingSettings(kind="wandb", mode="offline", tags=["a-tag"])
    monkeypatch.setattr(sys, "argv", ["alora train", f"serving.arguments=[--api-key,{SECRET}]"])
    with start_tracking(recipe, tmp_path, False, print) as tracking:
        assert tracking.active
    recorded = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"a-tag" in recorded
    assert SECRET.encode() not in recorded
