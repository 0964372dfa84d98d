"""Whatever does not fit keeps aLoRA out, whole: an aLoRA adapter is never served as plain LoRA."""

import functools
import pickle
import sys
from types import ModuleType, SimpleNamespace

import pytest

from alora.errors import AdapterError
from alora.vllm_plugin import (
    compat,
    engine_check,
    install,
    prefix_hash,
    register,
    self_test,
    stand_ins,
    status,
    token_mapping,
)
from alora.vllm_plugin.carried_request import CarriedLoRARequest
from tests.vllm.toy_engine import lora_request
from tests.vllm.toy_models import ToyAdapter
from tests.vllm.toys import INVOCATION, prompt

SYMBOLS = [symbol for symbol in vars(compat).values() if isinstance(symbol, compat.Symbol)]


@pytest.fixture
def reinstalled():
    """Take the plugin out for a test, and put it back in after it."""
    install.unregister()
    yield
    install.unregister()
    register()
    assert status().active, status().reason


def stock_functions() -> dict[str, object]:
    return {
        symbol.path: vars(compat.holder(symbol))[symbol.name] for symbol in SYMBOLS if symbol != compat.PEFT_FROM_DIR
    }


def load(path: str):
    """What every vLLM worker calls to read an adapter's configuration."""
    return compat.holder(compat.PEFT_FROM_DIR).from_local_dir(path, max_position_embeddings=None)


def assert_out(stock: dict[str, object], path: str, reason: str) -> None:
    found = status()
    assert not found.active
    assert reason in found.reason
    assert stock_functions() == stock, "something of the plugin was left behind"
    with pytest.raises(AdapterError, match="would apply it as plain LoRA"):
        load(path)


def test_registering_twice_changes_nothing(toys):
    register()
    once = stock_functions()
    register()
    assert stock_functions() == once
    assert status().active
    assert status().entry_point, "vLLM finds the plugin by itself"


@pytest.mark.parametrize("version", ["0.25.1", "0.34.0", "1.0.0", "dev", None])
def test_an_unknown_version_keeps_it_out(reinstalled, toys, monkeypatch, version):
    stock = stock_functions()
    with monkeypatch.context() as patch:
        patch.setattr(compat, "vllm_version", lambda: version)
        register()
        assert not status().active
        assert status().reason
        assert stock_functions() == stock


@pytest.mark.parametrize("version", ["0.26.0", "0.27.1+cpu", "0.33.0", "0.32.0.post2"])
def test_known_versions_are_taken(version):
    compat.check_version(version)


@pytest.mark.parametrize("symbol", [one for one in SYMBOLS if one != compat.PEFT_FROM_DIR], ids=lambda one: one.name)
def test_a_symbol_that_changed_its_parameters_keeps_everything_out(reinstalled, toys, monkeypatch, symbol):
    place = compat.holder(symbol)
    with monkeypatch.context() as patch:
        patch.setattr(place, symbol.name, lambda quite, other: None)
        stock = stock_functions()
        register()
        assert_out(stock, toys["linear"].path, symbol.name)


@pytest.mark.parametrize("broken", ["mask", "hash"])
def test_hash_and_mask_go_in_together_or_not_at_all(reinstalled, toys, monkeypatch, broken):
    stock = stock_functions()
    with monkeypatch.context() as patch:
        if broken == "mask":
            patch.setattr(token_mapping, "mask_tokens", lambda tokens, rows, scheduled: tokens)
        else:
            patch.setattr(prefix_hash, "extra_keys_patch", lambda original: original)
        register()
        assert_out(stock, toys["linear"].path, "SelfTestFailed")


def test_a_crash_between_patches_leaves_aloras_refused(reinstalled, toys, monkeypatch):
    def crash():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(self_test, "run_self_test", crash)
        with pytest.raises(KeyboardInterrupt):
            register()
    with pytest.raises(AdapterError, match="its patches are not all in"):
        load(toys["linear"].path)


def unpatched(original):
    return functools.wraps(original)(lambda *args, **more: original(*args, **more))


def keyed(digest=None, start=None, none_at=-1):
    """``adapted_key`` with a part of the key held fixed, or without a key for adapters that start at ``none_at``."""

    def adapted_key(carried, start_token_idx, end_token_idx):
        if end_token_idx <= carried.activation_index or carried.activation_index == none_at:
            return None
        at = max(carried.activation_index - start_token_idx, 0)
        return prefix_hash.AdaptedKey(digest or carried.weights_digest, at if start is None else start)

    return adapted_key


class WithoutSalt(prefix_hash._BaseView):
    cache_salt = None


@pytest.mark.parametrize(
    ("module", "name", "broken", "reason"),
    [
        (token_mapping, "v1_patch", unpatched, "the V1 model runner does not mask"),
        (token_mapping, "v2_patch", unpatched, "the V2 model runner does not mask"),
        (prefix_hash, "adapted_key", keyed(digest="d"), "two sets of weights share a block"),
        (prefix_hash, "adapted_key", keyed(start=0), "two activations in one block share it"),
        (prefix_hash, "adapted_key", keyed(none_at=0), "plain LoRA shares a block with the base"),
        (prefix_hash, "_BaseView", WithoutSalt, "cache_salt does not separate tenants"),
    ],
    ids=["v1", "v2", "weights", "activation", "plain", "salt"],
)
def test_the_self_test_sees_each_of_its_promises_broken(reinstalled, toys, monkeypatch, module, name, broken, reason):
    functions = stock_functions()
    with monkeypatch.context() as patch:
        patch.setattr(module, name, broken)
        register()
        assert_out(functions, toys["linear"].path, reason)


def test_a_function_that_a_module_of_vllm_imported_by_name_is_replaced_and_restored(reinstalled, monkeypatch):
    """As the engine core and the LoRA wrappers have them, when the plugin comes after them."""
    home, name = compat.holder(compat.BGMV_SHRINK), compat.BGMV_SHRINK.name
    function, importer = vars(home)[name], ModuleType("vllm.importer")
    setattr(importer, name, function)
    monkeypatch.setitem(sys.modules, "vllm.importer", importer)
    register()
    assert vars(importer)[name] is vars(home)[name] is not function
    install.unregister()
    assert vars(importer)[name] is vars(home)[name] is function


def test_plain_lora_loads_where_the_plugin_is_out(reinstalled, toys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(compat, "NEWEST", (0, 26))
        patch.setattr(compat, "OLDEST", (0, 26))
        register()
        assert not status().active
        assert load(toys["plain"].path).r == 8
        with pytest.raises(AdapterError):
            load(toys["linear"].path)


def test_an_engine_whose_runner_is_not_masked_refuses(engine, toys, monkeypatch):
    class OtherRunner:
        lora_state = None

    worker = SimpleNamespace(model_runner=OtherRunner())
    assert "OtherRunner" in engine_check.worker_refusal(worker, "/")
    assert engine_check.worker_refusal(SimpleNamespace(model_runner=engine.runner), "/") is None
    monkeypatch.setattr(engine.core, "_alora_refusal", engine_check.worker_refusal(worker, "/"))
    with pytest.raises(AdapterError, match="does not use vLLM's LoRA token mapping"):
        engine.ask_one(prompt(40), toys["linear"])
    engine.ask_one(prompt(40), toys["plain"])
    engine.ask_one(prompt(40))


def test_a_worker_that_cannot_see_the_copies_refuses(engine, tmp_path):
    worker = SimpleNamespace(model_runner=engine.runner)
    assert "TMPDIR" in engine_check.worker_refusal(worker, str(tmp_path / "elsewhere"))


def test_a_worker_without_the_plugin_refuses(engine, reinstalled):
    assert "not active in a worker" in engine_check.worker_refusal(SimpleNamespace(model_runner=engine.runner), "/")


def test_a_v2_runner_whose_positions_are_not_seen_refuses(toys):
    runner = type("Runner", (), {"lora_state": stand_ins.v2_example(lora_request(toys["linear"]), computed=0)[0]})
    assert "Runner" in engine_check.worker_refusal(SimpleNamespace(model_runner=runner()), "/")


def test_an_engine_that_was_never_checked_refuses(engine, toys, monkeypatch):
    monkeypatch.delattr(engine.core, "_alora_refusal")
    with pytest.raises(AdapterError, match="not checked"):
        engine.ask_one(prompt(40), toys["linear"])


def test_a_worker_that_cannot_be_asked_refuses(engine):
    def nobody(_, args):
        raise RuntimeError("no such worker")

    deaf = SimpleNamespace(vllm_config=engine.core.vllm_config, model_executor=SimpleNamespace(collective_rpc=nobody))
    assert "no such worker" in engine_check.check_engine(deaf)
    other = SimpleNamespace(collective_rpc=lambda *_, **__: [None, "the second worker"])
    two = SimpleNamespace(vllm_config=engine.core.vllm_config, model_executor=other)
    assert engine_check.check_engine(two) == "the second worker"
    assert engine_check.check_engine(engine.core) is None


@pytest.mark.parametrize(
    "setting",
    [
        ("lora_config", "specialize_active_lora", True),
        ("lora_config", "enable_tower_connector_lora", True),
        ("parallel_config", "prefill_context_parallel_size", 2),
        ("kv_transfer_config", "kv_connector", "LMCacheConnectorV1"),
    ],
    ids=lambda setting: setting[1],
)
def test_settings_that_would_answer_wrong_are_refused(engine, monkeypatch, setting):
    section, name, value = setting
    config = engine.core.vllm_config
    assert compat.engine_refusal(config) is None
    if getattr(config, section) is None:
        monkeypatch.setattr(config, section, SimpleNamespace())
    monkeypatch.setattr(getattr(config, section), name, value, raising=False)
    assert compat.engine_refusal(config)


@pytest.mark.parametrize(
    "setting", [{"model_config": SimpleNamespace(is_encoder_decoder=True)}, {"num_hash_lookahead_tokens": 1}], ids=str
)
def test_models_and_drafters_that_would_answer_wrong_are_refused(setting):
    plain = {"lora_config": None, "parallel_config": None, "model_config": None}
    assert compat.engine_refusal(SimpleNamespace(**plain)) is None
    assert compat.engine_refusal(SimpleNamespace(**{**plain, **setting}))


def test_an_alora_request_without_an_activation_never_reaches_the_model(toys):
    bare = lora_request(toys["linear"])
    with pytest.raises(AdapterError, match="without an activation"):
        token_mapping.mask_tokens((2, 2), [(bare, 0)], [2])
    assert token_mapping.mask_tokens((5, 5), [(lora_request(toys["plain"]), 0)], [2]) == (5, 5)


def test_a_carried_request_unpickles_only_where_the_plugin_is_active(reinstalled):
    carried = CarriedLoRARequest(lora_name="a", lora_int_id=1, lora_path="/a", activation_index=7, weights_digest="d")
    frozen = pickle.dumps(carried)
    with pytest.raises(RuntimeError, match="not active"):
        pickle.loads(frozen)  # noqa: S301 (bytes made two lines above)
    register()
    thawed = pickle.loads(frozen)  # noqa: S301
    assert (thawed.activation_index, thawed.weights_digest, thawed.lora_name) == (7, "d", "a")


def test_an_engine_that_refuses_does_not_even_load(engine, toys, monkeypatch):
    monkeypatch.setattr(engine.core, "_alora_refusal", "for this test")
    request = lora_request(ToyAdapter("refused", 195, toys["linear"].path, INVOCATION))
    with pytest.raises(AdapterError, match="for this test"):
        engine.core.add_lora(request)
    engine.core.add_lora(lora_request(ToyAdapter("plain after all", 196, toys["plain"].path, ())))
