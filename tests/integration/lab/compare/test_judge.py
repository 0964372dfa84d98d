"""The judge's arm from rows to scores, and what a comparison makes of one that is of no use."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alora.config.schema import JudgeSettings, Recipe
from alora.data.conversation import Conversation, LabelledConversation, Message
from alora.data.splits import Splits
from alora.errors import ConfigError, RunError
from alora.lab.compare.compare_report import ASK_AGAIN
from alora.lab.compare.methods import ask_and_score, logits
from alora.lab.compare.task import MethodRun, Task
from alora.llm.judge_prompt import Answer
from alora.policy import Policy
from tests.unit.llm.endpoint import completion, endpoint, says

POLICY = Policy("refunds", "No refunds", "Nobody promises a refund.")
FILTER = (400, {}, {"error": {"message": "Filtered by the content management policy.", "code": "content_filter"}})
UNKNOWN = (400, {}, {"error": {"message": "Bad request."}})


def rows(name: str, count: int) -> tuple[LabelledConversation, ...]:
    """As files often are: all of one label, then all of the other."""
    said = ["refund" if number < count // 2 else "thanks" for number in range(count)]
    return tuple(
        LabelledConversation(
            Conversation(f"{name}-{number}", (Message("user", f"{name} {number} {word}"),)),
            {"refunds": "violation" if word == "refund" else "ok"},
            f"{name}:{number}",
        )
        for number, word in enumerate(said)
    )


def score(behaviour, home: Path, count: int = 60, **settings: Any):
    with endpoint(behaviour) as server:
        given = {"url": server.url, "model": "m", "retries": 0} | settings
        task = Task(
            Recipe(judge=JudgeSettings(**given)), (POLICY,), Splits((), rows("known", 10), rows("new", count)), {}
        )
        return ask_and_score(task, MethodRun("judge"), home)["refunds"], server.bodies


def sees(body) -> str:
    return "refund" if 'refund"' in body["messages"][1]["content"] else "thanks"


def honest(number, body):
    return says("violation" if sees(body) == "refund" else "ok", 80)


@pytest.mark.parametrize("refusal", [FILTER, UNKNOWN])
def test_refused_rows_of_one_label_cost_themselves_alone(refusal, tmp_path, capsys):
    found, bodies = score(lambda number, body: refusal if sees(body) == "refund" else honest(0, body), tmp_path)
    assert (len(found.test.ids), found.test.asked) == (30, 60)
    assert (found.facts["refused_rows"], found.facts[ASK_AGAIN]) == (35, 0)
    assert len(bodies) == 70
    err = capsys.readouterr().err
    assert "refunds: 35 rows have no answer" in err
    assert refusal[2]["error"]["message"] in err


@pytest.mark.parametrize(
    ("behaviour", "kind", "words"),
    [
        (lambda number, body: UNKNOWN, ConfigError, "refuses every request: HTTP 400.*Bad request"),
        (lambda number, body: 503, RunError, "it says HTTP 503"),
        (lambda number, body: completion("Let me think."), RunError, "raise judge.max_tokens"),
        (lambda number, body: UNKNOWN if number > 20 else honest(0, body), RunError, "it says HTTP 400"),
    ],
)
def test_an_endpoint_that_is_of_no_use_stops_early(behaviour, kind, words, tmp_path):
    with pytest.raises(kind, match=words):
        score(behaviour, tmp_path, count=60, concurrency=1)
    if kind is RunError:
        again, _ = score(honest, tmp_path, count=60)
        assert len(again.test.ids) == 60


def test_a_confidence_never_ranks_below_the_label_that_was_given():
    for labels in (2, 3, 5):
        for confidence in (None, 0.0, 0.01, 0.4, 1 / labels, 0.95, 1.0):
            found = logits(Answer(1, confidence), labels)
            assert found[1] == max(found)
    assert np.exp(logits(Answer(0, 0.95), 2)) == pytest.approx([0.95, 0.05])
