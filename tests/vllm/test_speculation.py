"""n-gram speculation under aLoRA gives the tokens that PEFT gives.

A file of its own, after the others by name: its proposals load llvmlite, and vLLM 0.32 cannot start another engine in a
process in which that is loaded (its search for Triton kernels trips over it).
"""

from tests.vllm.toy_engine import ToyEngine
from tests.vllm.toys import INVOCATION, filler


def test_ngram_speculation(toys, reference, monkeypatch):
    engine = ToyEngine(
        toys.base, speculative_config={"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    )
    drafts = []
    schedule = engine.core.scheduler.schedule

    def counted(*args, **kwargs):
        step = schedule(*args, **kwargs)
        drafts.extend(step.scheduled_spec_decode_tokens.values())
        return step

    monkeypatch.setattr(engine.core.scheduler, "schedule", counted)
    phrase = filler(8, 3)
    ids = phrase * 6 + list(INVOCATION) + phrase * 2
    adapters = [toys["linear"], None, toys["wide"]]
    answers = engine.ask([ids] * 3, adapters, max_tokens=40)
    assert drafts, "nothing was speculated"
    for answer, adapter in zip(answers, adapters, strict=True):
        assert list(answer.token_ids) == reference.greedy(ids, adapter, 40), adapter
