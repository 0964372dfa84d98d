"""A check, in milliseconds and without a model, that the patched functions do what they are there for.

Runs on real vLLM objects right after the patches go in. If any check fails, all patches are removed.
"""

from types import SimpleNamespace
from typing import Any

from alora.vllm_plugin import compat, stand_ins
from alora.vllm_plugin.carried_request import CarriedLoRARequest

_BLOCK = 4
_PROMPT = list(range(100, 122))
_ACTIVATION = 10  # inside the third block: two whole blocks are the base's


class SelfTestFailed(Exception):
    """A patched function does not behave; the message says which."""


def _expect(truth: bool, what: str) -> None:
    if not truth:
        raise SelfTestFailed(f"{what}; this vLLM is not as the plugin expects")


def _carried(name: str, number: int, digest: str, activation: int = _ACTIVATION) -> CarriedLoRARequest:
    return CarriedLoRARequest(
        lora_name=name, lora_int_id=number, lora_path=f"/{name}", activation_index=activation, weights_digest=digest
    )


def _test_hashes() -> None:
    with stand_ins.block_hashing(_BLOCK) as hashes:
        base = hashes(_PROMPT)
        first = hashes(_PROMPT, _carried("first", 1, "a"))
        earlier = hashes(_PROMPT, _carried("first", 1, "a", _ACTIVATION - 1))
        other_weights = hashes(_PROMPT, _carried("first", 1, "b"))
        plain = hashes(_PROMPT, _carried("first", 1, "a", activation=0))
        salted = hashes(_PROMPT, _carried("first", 1, "a"), salt="tenant")
    shared = _ACTIVATION // _BLOCK
    _expect(len(base) == len(_PROMPT) // _BLOCK, "requests are not hashed block by block")
    _expect(first[:shared] == base[:shared], "blocks before the activation do not hash as the base's")
    _expect(not set(first[shared:]) & set(base), "blocks after the activation hash as the base's")
    _expect(not set(first[shared:]) & set(earlier), "two activations in one block share it")
    _expect(not set(first[shared:]) & set(other_weights), "two sets of weights share a block")
    _expect(not set(plain) & set(base), "plain LoRA shares a block with the base")
    _expect(not set(salted) & set(first), "cache_salt does not separate tenants")


def _test_v1_mask() -> None:
    lora = _carried("first", 7, "a")
    ids, rows = stand_ins.v1_example(lora)
    runner = SimpleNamespace(requests={"row": SimpleNamespace(lora_request=lora)}, _set_active_loras=None)
    seen: list[Any] = []
    runner._set_active_loras = lambda prompts, tokens, *rest: seen.append(tokens)
    compat.current(compat.V1_ACTIVE_LORAS)(runner, ids, rows)
    _expect(seen == [(0,) * _ACTIVATION + (7,) * 6], "the V1 model runner does not mask the prefix")


def _test_v2_mask() -> None:
    state, arguments = stand_ins.v2_example(_carried("first", 7, "a"), computed=4)
    tokens = compat.current(compat.V2_LORA_INPUTS)(state, *arguments)[1]
    # 4 tokens came in an earlier step.
    wanted = (0,) * (_ACTIVATION - 4) + (7,) * (16 - _ACTIVATION + 4)
    _expect(tuple(int(token) for token in tokens) == wanted, "the V2 model runner does not mask the prefix")


def run_self_test() -> None:
    """Raise :class:`SelfTestFailed` unless hash and mask agree about one activation."""
    _test_hashes()
    _test_v1_mask()
    _test_v2_mask()
