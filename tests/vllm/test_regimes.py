"""Right in every regime in which vLLM cuts, interrupts and mixes requests."""

import functools
import shutil

import pytest

from alora.errors import AdapterError
from tests.vllm import toys as store
from tests.vllm.toy_engine import ToyEngine, lora_request
from tests.vllm.toy_models import ToyAdapter, write_adapter
from tests.vllm.toys import INVOCATION, filler, prompt

TOLERANCE = 1e-4
CHUNK = 48


@functools.cache
def chunked() -> ToyEngine:
    """Prefill in chunks of at most 48 tokens."""
    return ToyEngine(
        store.toys("qwen3").base, max_num_batched_tokens=CHUNK, max_num_seqs=8, enable_chunked_prefill=True
    )


@functools.cache
def cramped() -> ToyEngine:
    """A cache of twelve blocks: generating requests push each other out."""
    return ToyEngine(store.toys("qwen3").base, num_gpu_blocks_override=12, max_model_len=320, max_num_seqs=8)


def distance(answer, wanted) -> float:
    return float((answer.logprobs_V - wanted).abs().max())


@pytest.mark.parametrize("activation", [CHUNK - 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK + 20, 10])
def test_chunks_end_before_at_inside_and_after_the_activation(toys, reference, activation):
    engine, ids = chunked(), prompt(activation, suffix=60)
    engine.clear()
    for name in ("linear", "attention"):
        assert distance(engine.ask_one(ids, toys[name]), reference.logprobs_V(ids, toys[name])) < TOLERANCE
    assert distance(engine.ask_one(ids), reference.logprobs_V(ids)) < TOLERANCE


def test_chunked_prompts_of_several_adapters_in_one_batch(toys, reference):
    engine = chunked()
    engine.clear()
    adapters = [toys["linear"], None, toys["wide"], toys["plain"], toys["attention"]]
    prompts = [prompt(30 + 17 * row, suffix=20, seed=row) for row in range(len(adapters))]
    for answer, ids, adapter in zip(engine.ask(prompts, adapters), prompts, adapters, strict=True):
        assert distance(answer, reference.logprobs_V(ids, adapter)) < TOLERANCE, adapter


def test_generation_over_block_boundaries(engine, toys, reference):
    ids = prompt(50, suffix=5)
    for name in ("linear", "attention"):
        answer = engine.ask_one(ids, toys[name], max_tokens=40)
        assert list(answer.token_ids) == reference.greedy(ids, toys[name], 40)
        assert list(answer.token_ids) != reference.greedy(ids, None, 40)


def test_preempted_requests_come_back_right(toys, reference, monkeypatch):
    engine = cramped()
    engine.clear()
    preempted = []
    stock = engine.core.scheduler._preempt_request

    def counted(request, *rest, **more):
        preempted.append(request.request_id)
        return stock(request, *rest, **more)

    monkeypatch.setattr(engine.core.scheduler, "_preempt_request", counted)
    adapters = [toys["linear"], toys["attention"], None, toys["wide"], toys["plain"]]
    prompts = [prompt(60, suffix=6, seed=row) for row in range(len(adapters))]
    answers = engine.ask(prompts, adapters, max_tokens=60)
    assert preempted, "the cache is too large for this test"
    for answer, ids, adapter in zip(answers, prompts, adapters, strict=True):
        assert list(answer.token_ids) == reference.greedy(ids, adapter, 60), adapter


def test_preempted_requests_of_replaced_weights_come_back_right(toys, reference, tmp_path, monkeypatch):
    engine, home = cramped(), tmp_path / "replaced"
    engine.clear()
    shutil.copytree(toys["linear"].path, home)
    adapter = ToyAdapter("replaced", 120, str(home), INVOCATION)
    preempted = []
    stock = engine.core.scheduler._preempt_request

    def replacing(request, *rest, **more):
        if not preempted:
            shutil.copytree(toys["wide"].path, home, dirs_exist_ok=True)
            engine.core.remove_lora(adapter.number)
            engine.core.add_lora(lora_request(adapter))
        preempted.append(request.request_id)
        return stock(request, *rest, **more)

    monkeypatch.setattr(engine.core.scheduler, "_preempt_request", replacing)
    prompts = [prompt(60, suffix=6, seed=row) for row in range(5)]
    for answer, ids in zip(engine.ask(prompts, [adapter] * 5, max_tokens=60), prompts, strict=True):
        assert list(answer.token_ids) == reference.greedy(ids, toys["linear"], 60)
    assert preempted, "the cache is too large for this test"
    answer = engine.ask_one(prompts[0], adapter, max_tokens=60)
    assert list(answer.token_ids) == reference.greedy(prompts[0], toys["wide"], 60)


def test_a_prompt_without_invocation_is_refused_and_the_engine_lives(engine, toys, reference):
    ids = filler(50)
    for wrong in (ids, [*ids, 2, 2], [2, 32, *ids]):
        with pytest.raises(AdapterError, match=r"invocation tokens .* are not in the prompt"):
            engine.ask_one(wrong, toys["linear"])
    engine.ask_one(ids)  # an aborted request must not be left behind
    good = prompt(50)
    assert distance(engine.ask_one(good, toys["linear"]), reference.logprobs_V(good, toys["linear"])) < TOLERANCE


def test_many_tokens_sampled_at_once_from_one_prompt(engine, toys, reference):
    from vllm import SamplingParams

    ids = prompt(50)
    params = SamplingParams(n=3, temperature=1.0, top_k=1, max_tokens=8, ignore_eos=True, detokenize=False)
    (output,) = engine.llm.generate(
        [{"prompt_token_ids": ids}], params, lora_request=lora_request(toys["linear"]), use_tqdm=False
    )
    wanted = reference.greedy(ids, toys["linear"], 8)
    assert [list(completion.token_ids) for completion in output.outputs] == [wanted] * 3


def test_an_alora_of_layers_that_vllm_is_told_to_leave_out_is_refused(engine, toys, tmp_path):
    """It would answer with a part of itself."""
    limited, ids = ToyEngine(store.toys("qwen3").base, lora_target_modules=["q_proj", "v_proj"]), prompt(40)
    for name in ("linear", "attention"):
        with pytest.raises(AdapterError, match=r"has no layer .*; start vLLM without lora_target_modules"):
            limited.ask_one(ids, toys[name])
    some = write_adapter(tmp_path / "some", toys.base, INVOCATION, seed=5, targets=["q_proj", "v_proj"])
    adapter = ToyAdapter("some", 90, some, INVOCATION)
    wanted = engine.ask_one(ids, adapter).logprobs_V
    assert distance(limited.ask_one(ids, adapter), wanted) < TOLERANCE < distance(limited.ask_one(ids), wanted)
