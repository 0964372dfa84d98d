"""Which checkpoint a training goes on from."""

from pathlib import Path

from alora.training.checkpoints import last_whole_checkpoint, mark_complete


def whole(folder: Path, step: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "scheduler.pt").write_bytes(bytes(step))
    mark_complete(folder, step)
    return folder


def test_the_newest_is_the_one_of_the_highest_step(tmp_path):
    newest = [whole(tmp_path / f"checkpoint-{step}", step) for step in (90, 100)][1]
    assert last_whole_checkpoint(tmp_path) == newest
