"""What the checkpoints of a run say of it: which was the best, and whether anything is left to train."""

import pytest
from transformers import TrainerState

from alora.training.trl_engine import _best, _is_finished


def test_the_best_checkpoint_lies_next_to_the_last_one_wherever_it_was_written(tmp_path):
    last = tmp_path / "checkpoint-6"
    last.mkdir()
    TrainerState(best_model_checkpoint="/before/it/was/moved/checkpoint-3").save_to_json(
        str(last / "trainer_state.json")
    )
    assert _best(last) == tmp_path / "checkpoint-3"
    TrainerState().save_to_json(str(last / "trainer_state.json"))
    assert _best(last) is None


@pytest.mark.parametrize(("step", "stopped", "finished"), [(6, False, True), (3, True, True), (3, False, False)])
def test_a_run_is_finished_by_its_steps_or_because_it_stopped_early(step, stopped, finished, tmp_path):
    control = {"TrainerControl": {"args": {"should_training_stop": stopped}, "attributes": {}}}
    state = TrainerState(global_step=step, max_steps=6)
    state.stateful_callbacks = control
    state.save_to_json(str(tmp_path / "trainer_state.json"))
    assert _is_finished(tmp_path) == finished
