"""The guard inside stock vLLM's server: one request, every policy, one prefill; deadlines; a dead engine.

They share two servers, in their order: one that is started as a user starts it, whose policy is replaced and which is
stopped at last, and one that is started again on the same battery, whose engine is killed.
"""

import contextlib
import json
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import openai
import pytest

from alora.adapter.folder import save_adapter
from alora.bundle.read import load_battery, load_bundle
from alora.client.engine import block_size
from alora.data.conversation import parse_conversation
from alora.guard.reader import Served
from alora.prefix.scorer import Scorer
from alora.prompt.render import INVOCATION
from alora.verdict import make_verdict
from alora.wire.weights import ASKED_WEIGHTS
from tests.forked import run_forked
from tests.peft_reference import random_adapter
from tests.vllm import bundles as store
from tests.vllm.guard_server import SMALL, TALK, TOLERANCE, ask, cores, metric, start


@pytest.fixture(scope="module")
def bundles():
    return load_battery(store.battery())


@pytest.fixture(scope="module")
def battery(tmp_path_factory):
    """One that may be changed, with two more bundles for the first policy: new weights, and damaged ones."""
    battery = shutil.copytree(store.battery(), tmp_path_factory.mktemp("guard") / "battery")
    new = store.write(store.POLICIES[0], battery / "next", seed=3)
    weights = shutil.copytree(new.folder, battery / "damaged") / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    return battery


@pytest.fixture(scope="module")
def served(battery, tmp_path_factory):
    with start(tmp_path_factory.mktemp("served"), battery, ALORA_ADMIN_KEY="admin") as running:
        yield running


def packed(bundles, talk=TALK):
    """The packed scorer's logits over the labels, bundle by bundle, and the prompts' prefix."""
    prefix = bundles[0].renderer(store.base()).prefix(parse_conversation(talk, "test"))
    with Scorer(store.base(), [bundle.weights for bundle in bundles]) as scorer:
        return scorer.label_logits(prefix, [bundle.suffix for bundle in bundles]), prefix.token_ids


def verdict_of(bundle, logits_L):
    return make_verdict(bundle.policy, logits_L.tolist(), bundle.calibration, bundle.weights.digest)


def test_verdicts_are_the_packed_scorers(served, bundles, tmp_path):
    file = tmp_path / "conversation.json"
    file.write_text(json.dumps({"messages": TALK}))
    arguments = (f"battery={store.battery()}", f"base.source={store.base_folder()}", str(file), "json=true")
    code, output, errors = run_forked("score", *arguments, f"scorer={served.url}", cache=tmp_path)
    assert code == 0, errors
    answers = zip(ask(served).json()["verdicts"], json.loads(output)["verdicts"], strict=True)
    for bundle, logits_L, (verdict, scored) in zip(bundles, packed(bundles)[0], answers, strict=True):
        wanted = verdict_of(bundle, logits_L)
        assert (verdict["policy"], verdict["label"]) == (bundle.policy.id, wanted.label)
        assert verdict["probability"] == pytest.approx(wanted.probability, abs=TOLERANCE)
        assert verdict["adapter"] == Served.of(bundle).name
        assert (scored["policy"], scored["adapter_digest"]) == (bundle.policy.id, bundle.weights.digest)
        assert scored["probability"] == pytest.approx(wanted.probability, abs=TOLERANCE)


def test_bundles_answer_a_plain_openai_client(served, bundles):
    """Completions with token ids, and chat with a bundle's own instruction as the last message: the same prompt."""
    assert {model.id for model in served.client.models.list()} >= {Served.of(bundle).name for bundle in bundles}
    rows, prefix = packed(bundles, [{"role": "user", "content": "Is it dangerous?"}])
    for bundle, logits_L in zip(bundles, rows, strict=True):
        name, labels = Served.of(bundle).name, list(bundle.suffix.label_token_ids)
        wanted = dict(zip([f"token_id:{label}" for label in labels], logits_L.log_softmax(0).tolist(), strict=True))
        prompt = [*prefix, *bundle.suffix.token_ids]
        asked = {"allowed_token_ids": labels, "return_tokens_as_token_ids": True}
        top, _ = served.complete(name, prompt, **asked)
        assert {token: top[token] for token in wanted} == pytest.approx(wanted, abs=TOLERANCE)
        messages = [
            {"role": "system", "content": "You review conversations between users and an assistant."},
            {"role": "user", "content": "Conversation:\nUser: Is it dangerous?"},
            {"role": "user", "content": INVOCATION},
        ]
        answer = served.client.chat.completions.create(
            model=name, messages=messages, max_tokens=1, temperature=0, logprobs=True, top_logprobs=2, extra_body=asked
        )
        assert answer.usage.prompt_tokens == len(prompt)
        entries = answer.choices[0].logprobs.content[0].top_logprobs
        assert {entry.token: entry.logprob for entry in entries} == pytest.approx(wanted, abs=TOLERANCE)


def test_a_prompt_without_an_invocation_is_http_400_in_a_stream_too_and_the_server_lives(served, bundles):
    name, ids = bundles[0].served_name, list(range(40, 80))
    with pytest.raises(openai.BadRequestError, match="are not in the prompt"):
        served.complete(name, ids)
    with pytest.raises(openai.APIError, match="are not in the prompt"):
        list(served.client.completions.create(model=name, prompt=ids, max_tokens=1, stream=True))
    served.complete(name, [*ids, *bundles[0].suffix.token_ids])


def test_weights_that_no_adapter_has_are_refused(served, bundles):
    """By this a client sees that the plugin is there, where a prompt without invocation shows nothing."""
    with pytest.raises(openai.BadRequestError, match="not the digest of weights"):
        served.complete(bundles[0].served_name, bundles[0].suffix.token_ids, vllm_xargs={ASKED_WEIGHTS: "none"})


def test_one_prefill_for_all_and_the_next_turn_pays_for_its_own_tokens(served, bundles):
    block, policies = block_size(), len(bundles)
    suffix = max(len(bundle.suffix.token_ids) for bundle in bundles)
    talk = [{"role": "user", "content": f"Order {number} is late. " * 3} for number in range(3)]

    def usage(turns, **fields):
        body = {"messages": [message for turn in turns for message in (turn, TALK[1])], **fields}
        return httpx.post(f"{served.url}/v1/guard", json=body, timeout=60).json()["usage"]

    first = usage(talk[:1])
    assert first["computed_tokens"] <= first["prefix_tokens"] + policies * (suffix + block)
    second = usage(talk[:2])
    new = second["prefix_tokens"] - first["prefix_tokens"]
    assert second["computed_tokens"] <= new + policies * (suffix + block) + block
    # Another tenant shares nothing: the whole prefix is computed again, once.
    tenant = usage(talk[:2], cache_salt="tenant-7")
    assert tenant["computed_tokens"] >= second["prefix_tokens"] - block
    again = usage(talk[:2], cache_salt="tenant-7")
    assert again["computed_tokens"] <= policies * (suffix + block) + block


def test_vllms_own_questions_are_for_its_base(served, bundles):
    """``/v1/systemone`` of 0.32 would put its question to an adapter that was trained on another."""
    body = {"state": "Hi", "questions": {"q": {"type": "predicate", "instructions": "Is it rude?"}}}
    adapter = httpx.post(f"{served.url}/v1/systemone", json=body | {"model": bundles[0].served_name}, timeout=60)
    assert (adapter.status_code, "/v1/guard" in adapter.json()["error"]["message"]) == (400, True)
    (base, *_) = (model.id for model in served.client.models.list() if "@" not in model.id)
    theirs = httpx.post(f"{served.url}/v1/systemone", json=body | {"model": base}, timeout=60)
    assert "/v1/guard" not in theirs.text
    assert theirs.status_code != 404


def test_a_seed_that_would_end_the_engine_is_refused(served):
    """Many prompts in one request are computed in chunks; vLLM's CPU build ends its engine at the first of a seed."""
    model = httpx.get(f"{served.url}/v1/models").json()["data"][0]["id"]
    body = {"model": model, "prompt": [[7] * 400] * 12, "max_tokens": 1, "seed": 1, "temperature": 1}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)
    assert (answer.status_code, "seed" in answer.json()["error"]["message"]) == (400, True)
    sure = httpx.post(f"{served.url}/v1/completions", json=body | {"temperature": 0}, timeout=60)
    assert (sure.status_code, len(sure.json()["choices"])) == (200, 12)
    assert ask(served).status_code == 200


def test_a_missed_deadline_blocks_and_leaves_nothing_running(served):
    answer = ask(served, deadline_ms=0.01).json()
    assert [verdict["status"] for verdict in answer["verdicts"]] == ["missed", "missed"]
    assert (answer["action"], answer["complete"]) == ("block", False)
    end = time.monotonic() + 30
    while metric(served, "vllm:num_requests_running") + metric(served, "vllm:num_requests_waiting"):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert ask(served).json()["complete"] is True


def test_vllms_own_lora_routes_change_no_verdict(served, bundles, tmp_path):
    """Whoever holds the server's key alone can give a policy's name and id other weights; health says so."""
    name = bundles[0].served_name
    other = {"lora_name": name, "lora_path": str(tmp_path / "other")}
    invocation = bundles[0].suffix.invocation_ids
    save_adapter(random_adapter(store.base().model, seed=77, invocation=invocation), tmp_path / "other", "base")

    def post(what, **body):
        answer = httpx.post(f"{served.url}/v1/{what}", json=body, timeout=60)
        assert answer.status_code == 200, answer.text

    def verdicts():
        answer = ask(served).json()
        assert answer["complete"] is True, answer
        return {one["policy"]: one["probability"] for one in answer["verdicts"]}

    def trouble():
        return httpx.get(f"{served.url}/v1/guard/health").json().get("trouble") or ""

    before = verdicts()
    assert trouble() == ""
    post("load_lora_adapter", **other, load_inplace=True)
    assert verdicts() == pytest.approx(before, abs=TOLERANCE)
    assert name in trouble()
    post("unload_lora_adapter", lora_name=name)
    assert verdicts() == pytest.approx(before, abs=TOLERANCE)
    post("load_lora_adapter", **other)  # under another id
    ids = [*range(40, 80), *bundles[0].suffix.token_ids]
    post("completions", model=name, prompt=ids, max_tokens=1)
    assert verdicts() == pytest.approx(before, abs=TOLERANCE)
    assert name in trouble()
    # Other files than were loaded, at that place: vLLM's own route says so.
    save_adapter(random_adapter(store.base().model, seed=78, invocation=invocation), tmp_path / "other", "base")
    body = {"model": name, "prompt": ids, "max_tokens": 1}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)
    assert (answer.status_code, "changed after" in answer.json()["error"]["message"]) == (409, True)
    assert verdicts() == pytest.approx(before, abs=TOLERANCE)


@pytest.fixture(scope="module")
def replaced(served, battery):
    """The first policy's new bundle and its verdict, after it was put in service on the running engine."""
    admin, url = {"X-Alora-Admin-Key": "admin"}, f"{served.url}/v1/guard/policies/advice"
    new, before = load_bundle(battery / "next" / "advice"), ask(served).json()["verdicts"][0]

    def put(bundle):
        status = httpx.put(url, json={"bundle": bundle}, headers=admin, timeout=60).status_code
        return status, ask(served).json()["verdicts"][0]

    assert put("damaged") == (409, before)
    status, after = put("next/advice")
    assert (status, after["adapter"]) == (200, Served.of(new).name)
    assert before["adapter"] != after["adapter"]
    point = replace(new.manifest.operating_point, threshold=0.0001)  # the same weights, recalibrated
    shutil.copytree(new.folder, battery / "recalibrated")
    (battery / "recalibrated" / "alora.json").write_text(replace(new.manifest, operating_point=point).to_json())
    status, after = put("recalibrated")
    assert (status, after["adapter"]) == (200, Served.of(new).name)
    return new, after


@pytest.fixture(scope="module")
def restarted(replaced, battery, tmp_path_factory):
    """A second server on the battery, with a key, and with room for one request."""
    arguments = f"{SMALL},--max-num-queued-reqs,1"
    with start(tmp_path_factory.mktemp("restarted"), battery, arguments, VLLM_API_KEY="secret") as running:
        yield running


KEY = {"Authorization": "Bearer secret"}
ONE = {"messages": TALK, "policies": ["advice"]}


def ask_one(server, seconds=60):
    return httpx.post(f"{server.url}/v1/guard", json=ONE, headers=KEY, timeout=seconds)


def test_a_policy_is_replaced_on_the_running_engine_and_a_restart_serves_it(served, replaced, restarted):
    """Certified there, then switched; a damaged bundle is refused and nothing changes."""
    new, verdict = replaced
    (logits_L,), _ = packed([new])
    assert verdict["probability"] == pytest.approx(verdict_of(new, logits_L).probability, abs=TOLERANCE)
    assert (verdict["threshold"], verdict["flagged"]) == (0.0001, True)
    assert "alora_guard_requests_total" in httpx.get(f"{served.url}/metrics").text
    assert "serving_set.json" not in served.log.read_text()
    (again,) = ask_one(restarted).json()["verdicts"]
    assert (again["adapter"], again["threshold"]) == (verdict["adapter"], verdict["threshold"])
    assert again["probability"] == pytest.approx(verdict["probability"], abs=TOLERANCE)


def test_the_servers_key_guards_the_guard(restarted):
    for path in ("/v1/guard/policies", "/v1/guard/health"):
        assert httpx.get(restarted.url + path).status_code == 401
        assert httpx.get(restarted.url + path, headers=KEY).status_code == 200
    assert ask(restarted).status_code == 401


def test_more_policies_than_the_queue_takes_are_a_429(restarted):
    both = httpx.post(f"{restarted.url}/v1/guard", json={"messages": TALK}, headers=KEY, timeout=60)
    assert (both.status_code, int(both.headers["Retry-After"]) >= 1) == (429, True)


def test_an_engine_that_is_killed_is_a_503(restarted):
    """Stopped first, so that it is killed while it holds the request."""
    with ThreadPoolExecutor(1) as pool:
        for core in cores(restarted):
            os.kill(core, signal.SIGSTOP)
        asked = pool.submit(ask_one, restarted, 30)
        time.sleep(1)
        assert not asked.done()
        for core in cores(restarted):
            os.kill(core, signal.SIGKILL)
        answer = asked.result()
    with contextlib.suppress(httpx.TransportError):  # the server ends a moment later
        assert httpx.get(f"{restarted.url}/v1/guard/health", headers=KEY, timeout=30).status_code == 503
    assert (answer.status_code, "the engine is dead" in answer.json()["error"]["message"]) == (503, True)


def test_a_server_that_is_stopped_answers_what_it_holds(served):
    """vLLM's shutdown leaves requests without an answer and waits for their end; the guard ends its own."""
    with ThreadPoolExecutor(1) as pool:
        for core in cores(served):
            os.kill(core, signal.SIGSTOP)
        asked = pool.submit(ask, served, 120)
        time.sleep(1)
        os.kill(served.process.pid, signal.SIGTERM)
        answer = asked.result()
    assert (answer.status_code, "the engine is dead" in answer.json()["error"]["message"]) == (503, True)
    served.process.wait(60)
