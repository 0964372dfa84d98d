"""What a step of PEFT launches on a GPU, counted here, and that the count sees a backward pass."""

from pathlib import Path

import pytest

from alora.adapter.folder import AdapterSpec
from alora.lab.bench.launches import VOCABULARY, launches_a_layer
from alora.lab.bench.material import INVOCATION, as_lora, random_adapter
from alora.lab.bench.pairs import draw_batch
from alora.lab.bench.reference import peft_model
from alora.lab.bench.shapes import SHAPES
from alora.lab.bench.trainers import PeftTrainer

SPEC = AdapterSpec(8, 16.0, tuple(sorted(SHAPES["toy"].linears)), INVOCATION)


def peft(activated, rows):
    def step_on(base):
        adapter = random_adapter(SPEC, base, 0)
        adapter = adapter if activated else as_lora(adapter)
        batch = draw_batch(VOCABULARY, 64, 16, 1, 0, conversations=rows)
        return cleared(PeftTrainer(peft_model(base, adapter.spec), adapter, batch, Path("unused"), rows=rows))

    return step_on


def cleared(trainer):
    def step():
        trainer.clear()
        trainer.step()

    return step


@pytest.mark.parametrize(("activated", "launched"), [(True, 352), (False, 247)])
def test_peft_launches_the_same_for_one_conversation_as_for_eight(activated, launched):
    """What the count is held against: `launches` of a batch divide by its conversations."""
    assert [launches_a_layer(peft(activated, rows)).launches for rows in (1, 8)] == [launched, launched]
