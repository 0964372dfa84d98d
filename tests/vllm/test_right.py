"""Every aLoRA answer on vLLM is PEFT's own, within 1e-4 over the whole vocabulary in float32."""

from types import SimpleNamespace

import pytest
import torch

from alora.errors import AdapterError
from alora.vllm_plugin import compat
from alora.vllm_plugin.activation_source import find_activation, require_accepted
from alora.vllm_plugin.adapter_config import AdapterConfig
from tests.vllm import toys as store
from tests.vllm.peft_reference import PeftReference
from tests.vllm.toy_engine import ToyEngine, lora_request
from tests.vllm.toy_models import write_adapter, write_model
from tests.vllm.toys import INVOCATION, filler, prompt

TOLERANCE = 1e-4
ALORA = ("attention", "linear", "wide", "other")


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    assert torch.isfinite(one).all(), "vLLM did not return the whole vocabulary"
    return float((one - other).abs().max())


@pytest.mark.parametrize(("family", "activation"), [("qwen3", 5), ("qwen3", 64), ("qwen3", 90), ("llama", 64)])
def test_every_adapter_answers_as_peft_does(family, activation):
    toys, reference, engine = store.toys(family), store.reference(family), store.engine(family)
    engine.clear()
    for name in (*ALORA, "plain", None):
        adapter = toys[name] if name else None
        ids = prompt(activation, invocation=(adapter and adapter.invocation) or INVOCATION)
        wanted = reference.logprobs_V(ids, adapter)
        assert distance(engine.ask_one(ids, adapter).logprobs_V, wanted) < TOLERANCE, name
        if name:  # the adapter matters, so that this test can fail
            assert distance(wanted, reference.logprobs_V(ids)) > 0.1


def test_adapters_of_all_kinds_answer_right_in_one_batch(engine, toys, reference):
    names = ["attention", "linear", "wide", "plain", None]
    adapters = [toys[name] if name else None for name in names]
    prompts = [prompt(40 + 9 * row, seed=row) for row in range(len(names))]
    for answer, ids, adapter in zip(engine.ask(prompts, adapters), prompts, adapters, strict=True):
        assert distance(answer.logprobs_V, reference.logprobs_V(ids, adapter)) < TOLERANCE, adapter


def test_ranks_mixed_within_an_adapter_answer_right_or_are_refused(engine, toys):
    """vLLM reads rank_pattern and alpha_pattern since 0.32; before, it would drop them."""
    home = store.folder() / "patterned"
    pattern = {"rank_pattern": {"q_proj": 2, "down_proj": 12}, "alpha_pattern": {"down_proj": 3}}
    path = write_adapter(home, toys.base, INVOCATION, seed=31, rank=8, **pattern)
    adapter, ids = store.ToyAdapter("patterned", 40, path, INVOCATION), prompt(70)
    if "rank_pattern" not in compat.peft_fields():
        with pytest.raises(AdapterError, match="does not read"):
            engine.ask_one(ids, adapter)
        return
    wanted = PeftReference(toys.base, [adapter]).logprobs_V(ids, adapter)
    assert distance(engine.ask_one(ids, adapter).logprobs_V, wanted) < TOLERANCE


@pytest.mark.parametrize(
    ("ids", "activation"),
    [
        pytest.param([*filler(20), *INVOCATION, *filler(30, 1), *INVOCATION, *filler(4, 2)], 53, id="repeated"),
        pytest.param([*filler(20), *INVOCATION, *filler(9, 1), 2, 2, *filler(4, 2)], 20, id="partial after it"),
        pytest.param([*filler(20), 2, 2, 2, 2, 32, *filler(4, 2)], 22, id="overlapping"),
        pytest.param([*filler(20), 2, 2, 32, 2, 2, 32], 23, id="at the very end"),
        pytest.param([*INVOCATION, *filler(30, 2)], 0, id="at the very start"),
    ],
)
def test_activation_is_where_peft_finds_it(engine, toys, reference, ids, activation):
    adapter = toys["linear"]
    answer = engine.ask_one(ids, adapter)
    assert distance(answer.logprobs_V, reference.logprobs_V(ids, adapter)) < TOLERANCE
    base_hit = engine.ask_one(ids).cached_tokens
    assert base_hit == min(activation // 32, (len(ids) - 1) // 32) * 32


def test_an_embedded_position_is_no_invocation_token():
    """Where embeddings stand among tokens, the ids at their positions are placeholders."""
    ids = [*filler(4), *INVOCATION, *filler(3), *INVOCATION, *filler(2)]
    request = SimpleNamespace(prompt_token_ids=ids, prompt_is_token_ids=[True] * 11 + [False] + [True] * 3)
    assert find_activation(request, "a", INVOCATION) == 4
    request.prompt_is_token_ids = None
    assert find_activation(request, "a", INVOCATION) == 10
    request.prompt_token_ids = None
    with pytest.raises(AdapterError, match="prompt_embeds alone"):
        find_activation(request, "a", INVOCATION)
    zeros = SimpleNamespace(prompt_token_ids=[4, 0, 5, 0], prompt_is_token_ids=[True, True, True, False])
    assert find_activation(zeros, "a", (0,)) == 1, "0 is a token like any other"
    with pytest.raises(AdapterError) as refused:
        find_activation(zeros, "a", range(1_000_000))
    assert len(str(refused.value)) < 400, "each prompt of a hostile adapter is answered"


def test_a_prompt_that_is_streamed_in_is_refused():
    """Its last invocation may be yet to come."""
    request = SimpleNamespace(prompt_token_ids=prompt(40), resumable=True)
    with pytest.raises(AdapterError, match="streamed in"):
        find_activation(request, "a", INVOCATION)


def test_more_adapters_than_slots_answer_right(engine, toys, reference):
    ids = prompt(70)
    adapters = [toys[name] for name in ("attention", "linear", "wide", "plain", "plain2")] * 2
    assert len({adapter.name for adapter in adapters}) > 4, "the engine has four slots"
    for answer, adapter in zip(engine.ask([ids] * len(adapters), adapters), adapters, strict=True):
        assert distance(answer.logprobs_V, reference.logprobs_V(ids, adapter)) < TOLERANCE, adapter


def test_base_tokens_keep_the_base_when_every_slot_is_full(engine, toys, reference):
    adapters = [toys[name] for name in ("attention", "linear", "wide", "plain")]
    engine.ask([prompt(33)] * 4, adapters)  # all four slots hold an adapter now
    ids = prompt(64, seed=3)
    for adapter in adapters:
        engine.clear()  # so that each computes the base's tokens itself
        assert distance(engine.ask_one(ids, adapter).logprobs_V, reference.logprobs_V(ids, adapter)) < TOLERANCE


def test_bfloat16_is_as_near_as_the_base_itself():
    home = store.folder() / "bfloat16"
    base = write_model(home / "base", "qwen3", dtype=torch.bfloat16)
    adapter = store.ToyAdapter("b16", 1, write_adapter(home / "b16", base, INVOCATION, seed=1), INVOCATION)
    reference = PeftReference(base, [adapter], dtype=torch.bfloat16)
    engine = ToyEngine(base, dtype="bfloat16")
    prompts = [prompt(20 + 11 * row, seed=row) for row in range(8)]
    base_gap = max(distance(engine.ask_one(ids).logprobs_V, reference.logprobs_V(ids)) for ids in prompts)
    gap = max(distance(engine.ask_one(ids, adapter).logprobs_V, reference.logprobs_V(ids, adapter)) for ids in prompts)
    effect = min(distance(reference.logprobs_V(ids, adapter), reference.logprobs_V(ids)) for ids in prompts)
    print(f"bfloat16: base {base_gap:.4f}, aLoRA {gap:.4f}, effect {effect:.4f}")
    assert gap < 1.5 * base_gap  # the adapter rounds, too; how each CPU's kernels round differs
    assert max(gap, base_gap) < effect / 4


def test_prompt_logprobs_of_an_adapted_head_are_refused(engine, toys):
    """vLLM computes them with one adapter for the whole prompt; without the head they are right."""
    path = write_adapter(store.folder() / "head", toys.base, INVOCATION, seed=33, targets=["q_proj", "lm_head"])
    head = store.ToyAdapter("head", 193, path, INVOCATION)
    ids = prompt(40, suffix=10)
    engine.ask_one(ids, head)
    engine.ask_one(ids, toys["linear"], prompt_logprobs=1)
    for count in (0, 1):  # 0 asks for the prompt's own tokens
        with pytest.raises(AdapterError, match="adapts lm_head"):
            engine.ask_one(ids, head, prompt_logprobs=count)


@pytest.mark.parametrize("key", ["prompt_logprobs", "prompt_logprob_token_ids"])
def test_each_way_to_ask_for_prompt_logprobs_is_refused(key):
    """The second one is of vLLM 0.33."""
    request = SimpleNamespace(prompt_token_ids=prompt(40), sampling_params=SimpleNamespace(**{key: [3]}))
    with pytest.raises(AdapterError, match="adapts lm_head"):
        require_accepted(request, "head", AdapterConfig(INVOCATION, adapts_head=True))
    assert require_accepted(request, "no head", AdapterConfig(INVOCATION)) == 40


@pytest.mark.parametrize(("with_head", "length"), [(False, 53), (True, 53), (True, 3)])
def test_prompt_logprobs_of_the_base_next_to_an_adapter(engine, toys, with_head, length):
    """vLLM's wrapped head gets the prompt's rows with the indices of the sampled ones: two here, as of 3 tokens."""
    path = write_adapter(store.folder() / "beside", toys.base, INVOCATION, seed=34, targets=["q_proj", "lm_head"])
    from vllm import SamplingParams

    adapter = store.ToyAdapter("beside", 290, path, INVOCATION) if with_head else toys["linear"]
    ids = prompt(40, suffix=10)
    answer = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, detokenize=False)
    shown = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, detokenize=False, prompt_logprobs=1)

    def of_the_base(*others):
        inputs = [
            *({"prompt_token_ids": list(ids)} for _ in others),
            {"prompt_token_ids": ids[:length], "cache_salt": "own"},
        ]
        adapters = [*map(lora_request, others), None]
        engine.clear()
        found = engine.llm.generate(inputs, [*[answer] * len(others), shown], lora_request=adapters, use_tqdm=False)[
            -1
        ].prompt_logprobs
        return [entry[token].logprob for entry, token in zip(found[1:], ids[1:length], strict=True)]

    assert of_the_base(adapter) == pytest.approx(of_the_base(), abs=1e-4)
