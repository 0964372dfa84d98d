"""The engine under test runs the model runner that its tests are meant for, masked."""

import os

from alora.vllm_plugin import engine_check


def test_this_engine_runs_the_runner_that_was_asked_for(engine):
    module = type(engine.runner).__module__
    wanted = os.environ.get("ALORA_TEST_RUNNER", "v1")
    assert module == {"v1": "vllm.v1.worker.cpu_model_runner", "v2": "vllm.v1.worker.cpu.model_runner"}[wanted]
    assert engine_check.check_engine(engine.core) is None
    assert engine.core._alora_refusal is None
