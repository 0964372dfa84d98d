"""Which folder is a run's, where its records lie, which links are its own, which checkpoint a training goes on from."""

from pathlib import Path

import pytest

from alora.errors import RunError
from alora.training.layout import (
    BATTERY,
    REPORT,
    home_of,
    last_whole_checkpoint,
    link_only,
    mark_complete,
    own_link,
    require_plain_run,
    run_of,
)


@pytest.fixture
def run(tmp_path):
    run = tmp_path / "run"
    for name in ("battery/red", "policies/red/adapter", "arms/policies/red/adapter"):
        (run / name).mkdir(parents=True)
    for name in ("run.yaml", f"policies/red/{REPORT}"):
        (run / name).touch()
    link_only(run, "red")
    return run


@pytest.mark.parametrize(
    ("part", "home"),
    [
        (".", "."),
        ("battery", "."),
        ("battery/red", "policies/red"),
        ("policies/red", "policies/red"),
        ("policies/red/adapter", "policies/red"),
        ("bundle", "."),  # of version 0.1
        ("adapter", "."),
        ("tracking", None),
        ("policies", None),
        ("battery/red/figures", None),
        ("arms/policies/red/adapter", None),
    ],
)
def test_parts_of_a_run_and_their_home(part, home, run, monkeypatch):
    assert run_of(run / part) == (None if home is None else run)
    assert home_of(run / part).resolve() == (run / (part if home is None else home)).resolve()
    if part == "battery/red":
        monkeypatch.chdir(run / part)
        assert run_of(Path()) == run
    (run / "run.yaml").unlink()
    assert run_of(run / part) is None


def test_the_links_lead_to_the_only_policys(run):
    assert own_link(run / REPORT) == run / "policies/red" / REPORT
    assert own_link(run / "bundle") == run / "battery/red"
    assert own_link(run / "adapter") == run / "policies/red/adapter"
    require_plain_run(run, RunError)
    link_only(run, "blue")  # what is there stays
    assert own_link(run / "bundle") == run / "battery/red"
    for name in ("bundle", REPORT):
        (run / name).unlink()
    (run / "policies/red" / REPORT).unlink()
    link_only(run, "red")  # no link to what is not there yet
    assert not (run / REPORT).is_symlink()
    assert (run / "bundle").is_symlink()


@pytest.mark.parametrize(
    ("name", "target"),
    [
        *(("bundle", target) for target in ("/etc", "battery/../battery/red", "battery/.git", "policies/red/adapter")),
        *(("adapter", target) for target in ("/etc", "policies/red")),
        *((REPORT, target) for target in ("/etc/passwd", "policies/../report.html", "battery/red/report.html")),
        (BATTERY, "battery/red"),
    ],
)
def test_no_other_link_is_a_runs_own(name, target, run):
    if (run / name).is_symlink():
        (run / name).unlink()
    else:
        (run / name).rename(run / "away")
    (run / name).symlink_to(target)
    assert own_link(run / name) is None
    with pytest.raises(RunError, match=f"{name} is a link"):
        require_plain_run(run, RunError)


def test_a_folder_that_a_copy_left_for_a_link_is_a_folder(run):
    """``cp -rL`` and archives do; the run is still one."""
    (run / "bundle").unlink()
    (run / "bundle").mkdir()
    assert own_link(run / "bundle") is None
    require_plain_run(run, RunError)


def whole(folder: Path, step: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "scheduler.pt").write_bytes(bytes(step))
    mark_complete(folder, step)
    return folder


def test_the_newest_is_the_one_of_the_highest_step(tmp_path):
    newest = [whole(tmp_path / f"checkpoint-{step}", step) for step in (90, 100)][1]
    assert last_whole_checkpoint(tmp_path) == newest
