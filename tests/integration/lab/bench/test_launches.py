"""What a step launches on a GPU, counted here: the numbers of a layer, and that the count sees what it is for."""

from pathlib import Path

import pytest
import torch

from alora.adapter.folder import AdapterSpec
from alora.base.fingerprint import Fingerprint
from alora.base.load import LoadedBase
from alora.lab.bench.launches import VOCABULARY, LaunchCount, count_launches, launches_a_layer
from alora.lab.bench.material import INVOCATION, as_lora, draw_suffix, random_adapter, token_ids
from alora.lab.bench.pairs import draw_batch
from alora.lab.bench.reference import peft_model
from alora.lab.bench.shapes import SHAPES
from alora.lab.bench.trainers import PackedTrainer, PeftTrainer
from alora.lab.bench.trials import Launches
from alora.prefix.scorer import Scorer
from alora.prompt.render import Prefix

SPEC = AdapterSpec(8, 16.0, tuple(sorted(SHAPES["toy"].linears)), INVOCATION)


def ours(policies, conversations=1):
    def step_on(base):
        batch = draw_batch(VOCABULARY, 64, 16, policies, 0, conversations=conversations)
        adapters = [random_adapter(SPEC, base, 10 * n) for n in range(policies)]
        return cleared(PackedTrainer(base, adapters, batch, Path("unused")))

    return step_on


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


def scored(policies):
    def step_on(base):
        unknown = Fingerprint("random", "none", "none")
        adapters = [random_adapter(SPEC, base, 10 * n, dtype=base.dtype) for n in range(policies)]
        scorer = Scorer(LoadedBase(base, None, unknown, "random"), adapters)  # pyright: ignore[reportArgumentType]
        prefix = Prefix(token_ids(VOCABULARY, 64, 50, frozenset(INVOCATION)))
        suffixes = [draw_suffix(VOCABULARY, 16, 90 + n) for n in range(policies)]
        return lambda: scorer.label_logits(prefix, suffixes)

    return step_on


MOST = {  # launches a layer
    "P=1": (ours(1), 170), "P=1, 8 conversations": (ours(1, 8), 179), "P=8": (ours(8), 170), "P=100": (ours(100), 170),
    "scored": (scored(8), 80),
}  # fmt: skip


@pytest.mark.parametrize("case", MOST)
def test_a_layer_launches_no_more_than_it_did(case):
    step_on, most = MOST[case]
    assert launches_a_layer(step_on).launches <= most


@pytest.mark.parametrize(("activated", "launched"), [(True, 352), (False, 247)])
def test_peft_launches_the_same_for_one_conversation_as_for_eight(activated, launched):
    """What the count is held against: `launches` of a batch divide by its conversations."""
    assert [launches_a_layer(peft(activated, rows)).launches for rows in (1, 8)] == [launched, launched]


def test_views_are_free_and_what_stops_the_host_is_counted():
    x = torch.randn(4, 4)
    assert count_launches(lambda: x.t().reshape(2, 8)[0]).launches == 1  # the copy of what cannot be viewed
    assert count_launches(lambda: x.view(2, 8).select(0, 1)) == Launches(0, 0, 0)
    assert count_launches(lambda: x @ x + 1) == Launches(2, 0, 0)
    assert count_launches(lambda: x.sum().item()).waits == 1
    assert count_launches(lambda: x[x[0] > 0]).waits == 1
    assert count_launches(lambda: torch.tensor([1, 2])).from_python == 1


def test_the_backward_pass_is_counted():
    w = torch.randn(3, 3, requires_grad=True)
    with LaunchCount() as forward:
        y = (w @ w).sum()
    with LaunchCount() as backward:
        y.backward()
    assert forward.launches == 2
    assert backward.launches >= 3
