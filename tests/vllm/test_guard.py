"""The guard inside stock vLLM's server: one request, every policy, one prefill; deadlines; a dead engine."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import httpx
import openai
import pytest
import yaml
from vllm.exceptions import MaxQueuedTokensError
from vllm.lora.request import LoRARequest

from alora.adapter.folder import save_adapter
from alora.bundle.read import load_battery
from alora.client.engine import block_size
from alora.data.conversation import parse_conversation
from alora.guard.core import GuardCore
from alora.guard.engine import EngineReader
from alora.guard.reader import Overloaded, Served
from alora.prefix.scorer import Scorer
from alora.verdict import make_verdict
from alora.wire.native import GuardRequest
from tests import clients
from tests.peft_reference import random_adapter
from tests.vllm import bundles as store
from tests.vllm.http_server import free_port, serving

TOLERANCE = 1e-4  # of a probability: two engines in float32
SMALL = "--enforce-eager,--num-gpu-blocks-override,256,--enable-prompt-tokens-details"
UNFLAGGED = "oodcchdengocnmbfhpheilkndjgjo oi"  # by the toy policy on refunds
TALK = [
    {"role": "user", "content": "My parcel is late. " * 10},
    {"role": "assistant", "content": "I am sorry. You will get your money back. " * 3},
]


@pytest.fixture(scope="module")
def bundles():
    return load_battery(store.battery())


def start(folder, battery=None, arguments=SMALL, **environment):
    port = free_port()
    command = [
        *("-m", "alora", "serve", f"battery={battery or store.battery()}"),
        f"base.source={store.base_folder()}",
        *(f"serving.port={port}", "serving.max_model_len=512", f"serving.arguments=[{arguments}]"),
    ]
    return serving(command, port, folder / "log", **environment)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with start(tmp_path_factory.mktemp("guard")) as running:
        yield running


def ask(server, seconds=60, **fields):
    return httpx.post(f"{server.url}/v1/guard", json={"messages": TALK} | fields, timeout=seconds)


def metric(server, name):
    lines = [line for line in httpx.get(f"{server.url}/metrics").text.splitlines() if line.startswith(name)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_verdicts_are_the_packed_scorers(served, bundles):
    answer = ask(served).json()
    renderer = bundles[0].renderer(store.base())
    prefix = renderer.prefix(parse_conversation(TALK, "test"))
    with Scorer(store.base(), [bundle.weights for bundle in bundles]) as scorer:
        rows = scorer.label_logits(prefix, [bundle.suffix for bundle in bundles])
    for bundle, logits_L, verdict in zip(bundles, rows, answer["verdicts"], strict=True):
        wanted = make_verdict(bundle.policy, logits_L.tolist(), bundle.calibration, bundle.weights.digest)
        assert (verdict["policy"], verdict["label"]) == (bundle.policy.id, wanted.label)
        assert verdict["probability"] == pytest.approx(wanted.probability, abs=TOLERANCE)
        assert verdict["adapter"] == Served.of(bundle).name


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


def test_openai_sdk(served, bundles):
    result = served.client.moderations.create(input=openai.omit, model="alora", extra_body={"messages": TALK}).results[
        0
    ]
    answer = ask(served).json()
    assert result.flagged == (answer["action"] == "block")
    scores = result.category_scores.model_dump()
    for verdict in answer["verdicts"]:
        assert scores[verdict["policy"]] == pytest.approx(verdict["probability"], abs=TOLERANCE)


def test_vllms_own_questions_are_for_its_base(served, bundles):
    """``/v1/systemone`` of 0.32 would put its question to an adapter that was trained on another."""
    body = {"state": "Hi", "questions": {"q": {"type": "predicate", "instructions": "Is it rude?"}}}
    adapter = httpx.post(f"{served.url}/v1/systemone", json=body | {"model": bundles[0].served_name}, timeout=60)
    assert (adapter.status_code, "/v1/guard" in adapter.json()["error"]["message"]) == (400, True)
    (base, *_) = (model.id for model in served.client.models.list() if "@" not in model.id)
    theirs = httpx.post(f"{served.url}/v1/systemone", json=body | {"model": base}, timeout=60)
    assert "/v1/guard" not in theirs.text
    assert theirs.status_code != 404


def test_decisions_by_the_openai_sdk(served):
    questions = [
        {"type": "predicate", "name": name, "instructions": f"policy:{name}"} for name in ("refunds", "advice")
    ]
    answers = served.client.decisions.create(model="alora", input=TALK, questions=questions).answers
    wanted = {verdict["policy"]: verdict["probability"] for verdict in ask(served).json()["verdicts"]}
    assert {answer.name: answer.probability for answer in answers} == pytest.approx(wanted, abs=1e-6)
    with pytest.raises(openai.NotFoundError):  # vLLM 0.32 answers no decisions of its own
        served.client.decisions.create(model="base", input="hi", questions=questions)


def test_litellm_and_langchain_pass_on_the_verdicts(served, tmp_path):
    """As docs/guard.md sets them up; LiteLLM asks one policy, so that the toys flag one text and pass the other."""

    def flagged(text, **fields):
        verdicts = ask(served, messages=[{"role": "user", "content": text}], **fields).json()["verdicts"]
        return ", ".join(verdict["policy"] for verdict in verdicts if verdict["flagged"])

    texts, policies = ["My parcel is late.", UNFLAGGED], {"policies": ["refunds"]}
    assert [flagged(text, **policies) for text in texts] == ["refunds", ""]
    config = yaml.safe_load(clients.from_page("litellm.yaml", served.url))
    config["guardrails"][0]["litellm_params"]["additional_provider_specific_params"] = policies
    with clients.listening(clients.Model(dict.fromkeys(texts, UNFLAGGED)).app) as model:
        with clients.litellm(config, model, tmp_path) as proxy:
            asked = [[{"role": "user", "content": text}] for text in texts]
            with pytest.raises(openai.BadRequestError, match="policy: refunds"):
                proxy.chat.completions.create(model="chat", messages=asked[0])
            answer = proxy.chat.completions.create(model="chat", messages=asked[1])
            assert answer.choices[0].message.content == UNFLAGGED
        answers = clients.langchain(served.url, model, tmp_path, texts)
    assert [answer.partition("It was flagged for ")[2] for answer in answers] == [f"{flagged(text)}." for text in texts]


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


def test_at_the_deadline_the_engines_requests_are_aborted(bundles):
    class Engine:
        """As vLLM's: a request is aborted when its ``generate`` is cancelled or closed."""

        asked, running = 0, set()

        async def generate(self, prompt, _params, request_id, *, lora_request, priority):
            assert (prompt["cache_salt"], lora_request, priority) == ("tenant-7", "weights", 3)
            self.asked += 1
            self.running.add(request_id)
            try:
                await asyncio.sleep(3600)
                yield
            finally:
                self.running.remove(request_id)

    async def answered():
        response = await guard.answer(request)
        return response, set(engine.running)

    engine, served = Engine(), [Served.of(bundle) for bundle in bundles]
    reader = EngineReader(engine, {item.name: "weights" for item in served}, bundles)
    guard = GuardCore(served, bundles[0].renderer(store.base()), reader)
    request = GuardRequest(messages=TALK, deadline_ms=500, cache_salt="tenant-7", priority=3)
    response, running = asyncio.run(answered())
    assert [verdict.status for verdict in response.verdicts] == ["missed", "missed"]
    assert (engine.asked, running) == (2, set())


def test_an_answer_that_is_no_number_is_named(bundles):
    """vLLM then gives no label's probability, or that of another token."""

    class Engine:
        errored = False

        async def generate(self, *_, **__):
            yield SimpleNamespace(finished=True, outputs=[SimpleNamespace(logprobs=[{0: None}])], num_cached_tokens=0)

    async def read():
        prefix = bundles[0].renderer(store.base()).prefix(parse_conversation(TALK, "test"))
        return [one async for one in reader.read(prefix, [served], GuardRequest(messages=TALK))]

    served = Served.of(bundles[0])
    reader = EngineReader(Engine(), {served.name: "weights"}, bundles[:1])
    (reading,) = asyncio.run(read())
    assert f"label tokens {list(served.suffix.label_token_ids)} have no probability" in reading.error


def test_a_queue_that_fills_between_two_policies_of_a_request_is_no_verdict(bundles):
    """vLLM counts each request again as it comes; a limit of tokens shows only there."""

    class Engine:
        errored, held = False, 0

        def check_admission(self, count=1):
            if self.held:
                raise MaxQueuedTokensError()

        async def generate(self, *_, **__):
            self.check_admission()
            self.held += 1
            await asyncio.sleep(3600)
            yield

    async def answered():
        return await guard.answer(GuardRequest(messages=TALK))

    served = [Served.of(bundle) for bundle in bundles]
    reader = EngineReader(Engine(), {item.name: "weights" for item in served}, bundles)
    guard = GuardCore(served, bundles[0].renderer(store.base()), reader)
    with pytest.raises(Overloaded, match="backlog limit"):
        asyncio.run(answered())


def test_a_name_that_is_taken_by_other_weights_gets_the_bundles(bundles):
    """Whoever may load adapters by vLLM's own routes may know a name before its policy is put."""

    class Engine:
        async def add_lora(self, lora):
            done.append(lora)

        async def remove_lora(self, number):
            done.append(number)

    served, done = Served.of(bundles[0]), []
    loras = {served.name: LoRARequest(served.name, 7, "/elsewhere")}
    reader = EngineReader(Engine(), loras)
    asyncio.run(reader.load(served, bundles[0]))
    assert [(lora.lora_int_id, lora.load_inplace) for lora in done] == [(7, True)], "one name, one id"
    assert loras[served.name].lora_path == str(bundles[0].folder.absolute())
    assert reader.trouble() is None
    loras[served.name] = other = LoRARequest(served.name, 7, "/elsewhere")
    assert served.name in str(reader.trouble())
    asyncio.run(reader.unload(served.name))
    assert (loras, done[1:]) == ({served.name: other}, [7])


def test_vllms_own_lora_routes_change_no_verdict(bundles, tmp_path):
    """Whoever holds the server's key alone can give a policy's name and id other weights; health says so."""
    name = bundles[0].served_name
    other = {"lora_name": name, "lora_path": str(tmp_path / "other")}
    invocation = bundles[0].suffix.invocation_ids
    save_adapter(random_adapter(store.base().model, seed=77, invocation=invocation), tmp_path / "other", "base")
    with start(tmp_path, VLLM_ALLOW_RUNTIME_LORA_UPDATING="1") as server:

        def post(what, **body):
            answer = httpx.post(f"{server.url}/v1/{what}", json=body, timeout=60)
            assert answer.status_code == 200, answer.text

        def verdicts():
            answer = ask(server).json()
            assert answer["complete"] is True, answer
            return {one["policy"]: one["probability"] for one in answer["verdicts"]}

        def trouble():
            return httpx.get(f"{server.url}/v1/guard/health").json().get("trouble") or ""

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


def test_two_policies_of_the_same_weights_have_two_ids(bundles):
    class Engine:
        async def add_lora(self, lora):
            return True

    loras, first = {}, Served.of(bundles[0])
    reader = EngineReader(Engine(), loras)
    manifest = replace(first.manifest, policy=replace(first.policy, id="second"))
    for served in (first, Served(manifest)):
        asyncio.run(reader.load(served, bundles[0]))
    assert len({lora.lora_int_id for lora in loras.values()}) == 2


def test_weights_that_are_loaded_stay_where_they_came_from(bundles):
    """A recalibrated bundle may come back while requests run with its weights: the engine refuses a second folder."""

    class Engine:
        loaded = None

        async def add_lora(self, lora):
            assert self.loaded in (None, lora.lora_path)
            self.loaded = lora.lora_path

    reader, served = EngineReader(Engine(), {}), Served.of(bundles[0])
    asyncio.run(reader.load(served, bundles[0]))
    asyncio.run(reader.load(served, replace(bundles[0], folder=bundles[1].folder)))


def test_a_policy_is_replaced_on_the_running_engine(tmp_path):
    """Certified there, then switched; a restart serves the same; a damaged bundle is refused and nothing changes."""
    battery = tmp_path / "battery"
    shutil.copytree(store.battery(), battery)
    new = store.write(store.POLICIES[0], battery / "next", seed=3)
    shutil.copytree(new.folder, battery / "damaged")
    weights = battery / "damaged" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    admin = {"X-Alora-Admin-Key": "admin"}
    prefix = new.renderer(store.base()).prefix(parse_conversation(TALK, "test"))
    with Scorer(store.base(), [new.weights]) as scorer:
        (logits_L,) = scorer.label_logits(prefix, [new.suffix])
    wanted = make_verdict(new.policy, logits_L.tolist(), new.calibration, "").probability
    with start(tmp_path, battery, ALORA_ADMIN_KEY="admin") as server:
        url = f"{server.url}/v1/guard/policies/advice"
        before = ask(server).json()["verdicts"][0]
        assert httpx.put(url, json={"bundle": "damaged"}, headers=admin, timeout=60).status_code == 409
        assert ask(server).json()["verdicts"][0] == before
        answer = httpx.put(url, json={"bundle": f"next/{new.folder.name}"}, headers=admin, timeout=60)
        assert answer.status_code == 200, answer.text
        after = ask(server).json()["verdicts"][0]
        assert after["adapter"] == Served.of(new).name != before["adapter"]
        assert after["probability"] == pytest.approx(wanted, abs=TOLERANCE)
        point = replace(new.manifest.operating_point, threshold=0.0001)  # the same weights, recalibrated
        shutil.copytree(new.folder, battery / "recalibrated")
        (battery / "recalibrated" / "alora.json").write_text(replace(new.manifest, operating_point=point).to_json())
        answer = httpx.put(url, json={"bundle": "recalibrated"}, headers=admin, timeout=60)
        assert answer.status_code == 200, answer.text
        after = ask(server).json()["verdicts"][0]
        assert (after["adapter"], after["threshold"], after["flagged"]) == (Served.of(new).name, 0.0001, True)
        assert "alora_guard_requests_total" in httpx.get(f"{server.url}/metrics").text
        assert "serving_set.json" not in server.log.read_text()
    with start(tmp_path, battery) as restarted:
        assert f"{battery / 'serving_set.json'} lists {Served.of(new).name}" in restarted.log.read_text()
        verdict = ask(restarted).json()["verdicts"][0]
        assert (verdict["adapter"], verdict["probability"]) == (
            after["adapter"],
            pytest.approx(after["probability"], abs=TOLERANCE),
        )
        assert verdict["threshold"] == 0.0001


def test_the_servers_key_guards_the_guard(tmp_path):
    with start(tmp_path, arguments=f"{SMALL},--max-num-queued-reqs,1", VLLM_API_KEY="secret") as server:
        for path in ("/v1/guard/policies", "/v1/guard/health"):
            assert httpx.get(server.url + path).status_code == 401
            allowed = httpx.get(server.url + path, headers={"Authorization": "Bearer secret"})
            assert allowed.status_code == 200
        assert ask(server).status_code == 401
        key = {"Authorization": "Bearer secret"}
        both = httpx.post(f"{server.url}/v1/guard", json={"messages": TALK}, headers=key, timeout=60)
        assert (both.status_code, "2 were asked" in both.json()["error"]["message"]) == (429, True)
        one = {"messages": TALK, "policies": ["advice"]}
        assert httpx.post(f"{server.url}/v1/guard", json=one, headers=key, timeout=60).json()["complete"] is True
        # The engine core is a child of the server. Stopped first, so that it is killed while it holds the request.
        engine = subprocess.run(["pgrep", "-P", str(server.process.pid)], capture_output=True, text=True, check=True)
        cores = [int(child) for child in engine.stdout.split()]
        with ThreadPoolExecutor(1) as pool:
            for core in cores:
                os.kill(core, signal.SIGSTOP)
            asked = pool.submit(httpx.post, f"{server.url}/v1/guard", json=one, headers=key, timeout=30)
            time.sleep(1)
            assert not asked.done()
            for core in cores:
                os.kill(core, signal.SIGKILL)
            killed = time.monotonic()
            answer = asked.result()
            print(f"answered {time.monotonic() - killed:.3f} s after the kill")
        with contextlib.suppress(httpx.TransportError):  # the server ends a moment later
            assert httpx.get(f"{server.url}/v1/guard/health", headers=key, timeout=30).status_code == 503
        assert (answer.status_code, "the engine is dead" in answer.json()["error"]["message"]) == (503, True)


def test_a_server_that_is_stopped_answers_what_it_holds(tmp_path):
    """vLLM's shutdown leaves requests without an answer and waits for their end; the guard ends its own."""
    with start(tmp_path) as server, ThreadPoolExecutor(1) as pool:
        engine = subprocess.run(["pgrep", "-P", str(server.process.pid)], capture_output=True, text=True, check=True)
        for core in map(int, engine.stdout.split()):
            os.kill(core, signal.SIGSTOP)
        asked = pool.submit(ask, server, 120)
        time.sleep(1)
        os.kill(server.process.pid, signal.SIGTERM)
        answer = asked.result()
        assert (answer.status_code, "the engine is dead" in answer.json()["error"]["message"]) == (503, True)
        end = time.monotonic() + 60
        while server.process.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        assert server.process.poll() is not None
