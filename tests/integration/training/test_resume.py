"""A run that is killed goes on with the same command and ends with the same bytes."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from alora.adapter.folder import WEIGHTS_FILE
from alora.identity.certificate import read_certificate, write_certificate
from alora.training.layout import last_whole_checkpoint, mark_complete
from tests.forked import kill_when, run_forked, start_forked
from tests.toy_recipe import run_alora, toy_overrides


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that nobody disturbed, in a fresh process: its folder, its command and its adapter's bytes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    overrides = toy_overrides(folder, folder / "run")
    code, output, errors = run_alora("train", *overrides, cache=folder / "cache")
    assert code == 0, errors
    assert "KV identity certified" in output
    return folder, overrides, (folder / "run/adapter" / WEIGHTS_FILE).read_bytes()


def test_killed_behind_a_checkpoint(finished, tmp_path):
    folder, overrides, wanted = finished
    run = tmp_path / "run"
    again = [f"run_dir={run}" if item.startswith("run_dir=") else item for item in overrides]
    process = start_forked("train", *again, cache=folder / "cache")
    kill_when(process, lambda: (run / "checkpoints/checkpoint-6/complete.json").exists())
    assert not (run / "policies/toy/adapter").exists()
    code, _, errors = run_forked("train", *again, cache=folder / "cache")
    assert code == 0, errors
    assert "going on in" in errors
    assert (run / "adapter" / WEIGHTS_FILE).read_bytes() == wanted
    predictions = "policies/toy/predictions.parquet"
    assert (run / predictions).read_bytes() == (folder / "run" / predictions).read_bytes()


def test_killed_before_the_figures_were_written(finished, tmp_path):
    """The figures are the last of what an evaluation writes, and all of it is made again with the same bytes; of the
    training's checkpoints, which a call that was killed had not all removed, none stays."""
    folder, overrides, _ = finished
    run = shutil.copytree(folder / "run", tmp_path / "run", symlinks=True)
    made = {name: (run / "policies/toy" / name) for name in ("evaluation.json", "predictions.parquet", "report.html")}
    before = {name: file.read_bytes() for name, file in made.items()}
    assert (run / "report.html").readlink() == Path("policies/toy/report.html")
    made["evaluation.json"].unlink()
    made["report.html"].write_text("cut off")
    left = run / "checkpoints/checkpoint-6/trainer_state.json"
    left.parent.mkdir(parents=True)
    left.write_text("{}")
    again = [f"run_dir={run}" if item.startswith("run_dir=") else item for item in overrides]
    code, output, errors = run_forked("train", *again, cache=folder / "cache")
    assert code == 0, errors
    assert {name: file.read_bytes() for name, file in made.items()} == before
    assert "report.html" in output
    assert not (run / "checkpoints").exists()


def unmarked(file: Path) -> None:
    (file.parent / "complete.json").unlink()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:10])


def unread(file: Path) -> None:
    (file.parent / "complete.json").write_text("[")


@pytest.mark.parametrize("damage", [cut, Path.unlink, unread, unmarked])
def test_a_checkpoint_that_was_changed_is_left_for_an_older_one(damage, tmp_path, capsys):
    for step in (3, 6):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "scheduler.pt").write_bytes(bytes(99))
        mark_complete(tmp_path / f"checkpoint-{step}", step)
    (tmp_path / "checkpoint-best").mkdir()
    assert last_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-6"
    damage(tmp_path / "checkpoint-6" / "scheduler.pt")
    assert last_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-3"
    told = capsys.readouterr().err
    assert ("checkpoint-6 was changed since it was written" in told) == (damage is not unmarked)
    assert not (tmp_path / "checkpoint-6").exists()


def test_another_seed_is_another_adapter(finished, tmp_path):
    """Negative control: equal bytes mean something."""
    folder, overrides, wanted = finished
    other = [
        *(item for item in overrides if not item.startswith("run_dir=")),
        f"run_dir={tmp_path}/run",
        "training.seed=1",
    ]
    code, _, errors = run_forked("train", *other, cache=folder / "cache")
    assert code == 0, errors
    assert (tmp_path / "run/adapter" / WEIGHTS_FILE).read_bytes() != wanted


def test_a_finished_run_is_skipped_and_reloads_from_its_own_settings(finished):
    folder, _, wanted = finished
    before = (folder / "run/bundle/alora.json").stat().st_mtime_ns
    code, output, errors = run_forked("train", f"recipe={folder}/run/run.yaml", cache=folder / "cache")
    assert code == 0, errors
    assert "verdict on conversation" in output
    assert (folder / "run/bundle/alora.json").stat().st_mtime_ns == before
    assert (folder / "run/adapter" / WEIGHTS_FILE).read_bytes() == wanted


def test_a_changed_policy_is_not_exported_with_the_old_threshold(finished, tmp_path):
    folder, _, _ = finished
    copied = shutil.copytree(folder, tmp_path / "copy")
    policy = folder / "policy.yaml"
    before = policy.read_text()
    policy.write_text(before.replace("No red", "Something else") + 'labels: {ok: "Yes", violation: "No"}\n')
    code, _, errors = run_forked(
        "export", f"artifact={copied / 'run'}", f"output={tmp_path}/out", cache=folder / "cache"
    )
    policy.write_text(before)
    assert code == 2
    assert "is not the one that" in errors
    assert not (tmp_path / "out").exists()


def test_a_failed_identity_leaves_no_bundle(finished, tmp_path):
    folder, overrides, _ = finished
    run = shutil.copytree(folder / "run", tmp_path / "run", symlinks=True)
    shutil.rmtree(run / "battery/toy")
    file = run / "policies/toy/identity.json"
    certificate = read_certificate(file)
    (record,) = certificate.dtypes
    handovers = tuple(replace(handover, prefix_changed=1, passed=False) for handover in record.handovers[:1])
    failed = replace(record, passed=False, handovers=handovers)
    write_certificate(replace(certificate, passed=False, dtypes=(failed,)), file)
    again = [f"run_dir={run}" if item.startswith("run_dir=") else item for item in overrides]
    code, _, errors = run_forked("train", *again, cache=folder / "cache")
    assert code == 1
    assert "KV identity failed: " in errors
    assert not (run / "battery/toy").exists()
