"""Upper bounds of what a layer launches on a GPU; nothing in a layer waits for the host or is made from Python."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from alora.adapter.folder import AdapterSpec
from alora.lab.bench.material import INVOCATION, LABELS, draw_batch, draw_suffix, random_adapter, token_ids
from alora.lab.bench.roofline import launches_a_layer
from alora.lab.bench.trainers import PackedTrainer
from alora.prefix import side_by_side
from alora.prefix.passes import Pair
from alora.prefix.scorer import Scorer
from alora.prompt.render import Prefix, Question
from alora.training.examples import Batch
from tests.peft_reference import ALL_TARGETS
from tests.toy_models import as_base

VOCAB, SPEC = 211, AdapterSpec(8, 16.0, tuple(sorted(ALL_TARGETS)), INVOCATION)


def suffix(number: int, uneven: bool) -> tuple[int, ...]:
    return draw_suffix(VOCAB, 12 + number % 7 if uneven else 16, 90 + number).token_ids


def training(policies: int, rows: int = 1, uneven: bool = False, some: tuple[int, ...] = ()):
    """A step of ``policies`` (or ``some`` of them) behind one prefix, or of one behind each of ``rows`` prefixes."""

    def step_on(base):
        batch = draw_batch(VOCAB, 64, 16, policies, 0)
        if rows > 1:
            prefixes = tuple(token_ids(VOCAB, 64 + uneven * n, 50 + n, frozenset(INVOCATION)) for n in range(rows))
            pairs = tuple(Pair(n, 0, suffix(n, False), LABELS) for n in range(rows))
            batch = Batch(prefixes, pairs, tuple(n % 2 for n in range(rows)), (1.0 / rows,) * rows)
        if uneven:
            pairs = tuple(replace(pair, suffix_ids=suffix(n, True)) for n, pair in enumerate(batch.pairs))
            batch = replace(batch, pairs=pairs)
        if some:
            batch = replace(
                batch, pairs=tuple(batch.pairs[n] for n in some), labels=(0,) * len(some), weights=(1.0,) * len(some)
            )
        trainer = PackedTrainer(
            base, [random_adapter(SPEC, base, 10 * n) for n in range(policies)], batch, Path(tempfile.gettempdir())
        )
        return lambda: (trainer.clear(), trainer.step())

    return step_on


def scoring(policies: int, rows: int = 1):
    """Conversations of uneven lengths, in one call."""

    def step_on(base):
        adapters = [random_adapter(SPEC, base, 10 * n, dtype=base.dtype) for n in range(policies)]
        prefixes = [Prefix(token_ids(VOCAB, 64 + n, 50 + n, frozenset(INVOCATION))) for n in range(rows)]
        scorer, suffixes = Scorer(as_base(base), adapters), [draw_suffix(VOCAB, 16, 90 + n) for n in range(policies)]
        questions = [Question(prefix, suffixes, range(policies)) for prefix in prefixes]
        return lambda: scorer.score_rows(questions)

    return step_on


@pytest.mark.parametrize(
    ("step_on", "most"),
    [
        pytest.param(training(1), 170, id="P=1"),
        pytest.param(training(1, rows=8), 190, id="P=1, 8 conversations"),
        pytest.param(training(8), 170, id="P=8"),
        pytest.param(training(100), 170, id="P=100"),
        pytest.param(training(8, some=(1, 4, 6)), 230, id="P=8, rows of some"),
        pytest.param(training(8, uneven=True), 230, id="P=8, uneven suffixes"),
        pytest.param(training(100, uneven=True), 230, id="P=100, uneven suffixes"),
        pytest.param(training(1, rows=8, uneven=True), 230, id="P=1, 8 conversations, uneven"),
        pytest.param(scoring(1), 80, id="scoring P=1"),
        pytest.param(scoring(20), 80, id="scoring P=20"),
        pytest.param(scoring(8, rows=32), 380, id="scoring P=8, 32 conversations"),
    ],
)
def test_a_layer_launches_no_more_than(step_on, most):
    found = launches_a_layer(step_on)
    assert most / 2 < found.launches <= most
    assert (found.waits, found.from_python) == (0, 0)


def test_index_work_in_a_layer_is_counted(monkeypatch):
    """Negative control: what every layer makes again, from numbers of Python, is seen as launches and as stops."""
    step_on = training(1, rows=8, uneven=True)
    once = launches_a_layer(step_on)
    monkeypatch.setattr(side_by_side, "_chunks", side_by_side._chunks.__wrapped__)
    each_layer = launches_a_layer(step_on)
    assert each_layer.launches > once.launches + 20
    assert each_layer.waits + each_layer.from_python > once.waits + once.from_python
