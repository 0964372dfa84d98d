"""What computes verdicts says what it waits for."""

import pytest

from alora.batch.shards import scorer_of
from alora.config.schema import Recipe


@pytest.mark.parametrize(("scorer", "told"), [("vllm", True), ("packed", False)])
def test_a_start_that_takes_long_is_told(scorer, told, monkeypatch, capsys):
    monkeypatch.setattr("alora.client.in_process.load", lambda *_, scorer, **__: scorer)
    assert scorer_of(Recipe(scorer=scorer, artifact="bundle")) == ("vllm" if told else "packed")
    assert ("starting vLLM in this process" in capsys.readouterr().err) is told
