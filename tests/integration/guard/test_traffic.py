"""What apps, proxies and models of other makers send: each is judged as what was said, or the answer says why not."""

import sys
from dataclasses import replace

import openai
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

import alora
from alora.bundle.artifact import find_artifact
from alora.bundle.battery import require_one_prefix
from alora.bundle.read import load_bundle
from alora.bundle.run_rows import settings_as_trained
from alora.bundle.write import write_bundle
from alora.config.schema import BaseSettings, DataSettings, Recipe
from alora.data.conversation import parse_conversation
from alora.errors import BundleError
from alora.guard.core import GuardCore
from alora.guard.reader import Served
from alora.guard.reading_in_process import PackedReader
from alora.guard.routes import mount
from alora.guard.standalone import make_app
from tests.integration.bundle.conftest import make_contents
from tests.integration.guard.conftest import Faulty, Says

LITELLM = "/v1/guard/beta/litellm_basic_guardrail_api"
HI, HELLO, REFUND = {"role": "user", "content": "Hi"}, "Hello", {"role": "user", "content": "Refund?"}
SAID = {"role": "assistant", "content": HELLO}
THINKING = {"type": "thinking", "thinking": "They greet.", "signature": "s"}
REASONING = {  # T1, and T2's blocks: a reasoning model's turn, in the forms in which it comes back
    "reasoning_content": {**SAID, "reasoning_content": "They greet."},
    "reasoning": {**SAID, "reasoning": "They greet."},
    "thinking_blocks": {**SAID, "thinking_blocks": [THINKING]},
    "reasoning_details": {**SAID, "reasoning_details": [{"type": "reasoning.text", "text": "They greet."}]},
    "tags": {**SAID, "content": f"<think>They greet.</think>\n{HELLO}"},
    "blocks": {**SAID, "content": [THINKING, {"type": "text", "text": HELLO}]},
}
SAME = {  # what comes in: the same in OpenAI's plainest form
    **{f"T1 {form}": ([HI, turn, REFUND], [HI, SAID, REFUND]) for form, turn in REASONING.items()},
    "T1 reasoning alone": ([HI, {"role": "assistant", "content": "", "reasoning": "Hm"}, REFUND], [HI, REFUND]),
    "T1 a null turn": ([HI, {"role": "assistant", "content": None}, REFUND], [HI, REFUND]),
}
ASK = {
    "/v1/guard": lambda messages: {"messages": messages},
    "/v1/moderations": lambda messages: {"messages": messages},
    LITELLM: lambda messages: {"structured_messages": messages},
    "/v1/decisions": lambda messages: decision(messages),
}


def decision(messages, *questions, **fields):
    asked = questions or ({"type": "predicate", "instructions": "policy:advice"},)
    return {"model": "alora", "input": messages, "questions": asked, **fields}


@pytest.fixture
def seeing(guard_with, base):
    """Post to a guard that flags what is promised; what it read, in order."""
    seen = []

    def promised(item, prefix):
        text = base.tokenizer.decode(prefix.token_ids)
        if item.policy.id == "advice":  # which every request asks for
            seen.append(text)
        return (9.0, -9.0) if item.policy.id == "refunds" and "promise" in text else (-9.0, 9.0)

    with TestClient(make_app(guard_with(Says(promised)))) as client:
        yield client, seen


@pytest.mark.parametrize("path", ASK)
@pytest.mark.parametrize("name", SAME)
def test_what_was_said_is_read_whatever_its_form(seeing, path, name):
    client, seen = seeing
    for messages in SAME[name]:
        answer = client.post(path, json=ASK[path](messages))
        assert answer.status_code == 200, answer.text
    assert seen[0] == seen[1]
    assert "greet" not in seen[0]


def trained_with(base, folder, **reading):
    """A bundle that reads conversations so, which its settings say too, and its guard."""
    made = replace(make_contents(base, folder / "adapter"), **reading)
    bundle = load_bundle(write_bundle(made, folder / "advice", golden_rows=1).folder)
    recipe = Recipe(artifact=str(bundle.folder))
    told = settings_as_trained(recipe, find_artifact(recipe.artifact))
    assert {name: getattr(told, name) for name in reading} == reading
    return bundle, GuardCore([Served.of(bundle)], bundle.renderer(base), PackedReader(base, [bundle]))


@pytest.mark.parametrize(("reasoning", "words"), [("leave_out", None), ("read", "They greet."), ("refuse", None)])
def test_t1_the_bundle_says_what_becomes_of_reasoning(base, tmp_path, reasoning, words):
    bundle, guard = trained_with(base, tmp_path, reasoning=reasoning)
    chat = [HI, REASONING["reasoning_content"], REFUND]
    with TestClient(make_app(guard)) as client:
        answer = client.post("/v1/guard", json={"messages": chat})
        assert answer.status_code == (400 if reasoning == "refuse" else 200)
    if reasoning != "refuse":
        whole = parse_conversation(chat, "chat", DataSettings(reasoning=reasoning))
        assert [words in message.content for message in whole.messages] == [False, True, False] if words else True
        usage = answer.json()["usage"]
        assert usage["prefix_tokens"] == len(bundle.renderer(base).prefix(whole).token_ids)


@pytest.mark.parametrize(("setting", "other"), [("reasoning", "read"), ("system", "leave_out")])
def test_policies_that_read_conversations_otherwise_share_no_prefix(bundles, setting, other):
    changed = replace(bundles[1], manifest=replace(bundles[1].manifest, **{setting: other}))
    with pytest.raises(BundleError, match=rf"data\.{setting}"):
        require_one_prefix(bundles[0], changed)


@pytest.mark.parametrize("system", ["read", "leave_out"])
def test_t6_the_bundle_says_whether_a_system_turn_is_judged(base, tmp_path, monkeypatch, system):
    bundle, guard = trained_with(base, tmp_path, system=system)
    turns = [{"role": "developer", "content": "Be brief."}, HI]
    with TestClient(make_app(guard)) as app:
        whole, alone = (app.post("/v1/guard", json={"messages": each}).json() for each in (turns, turns[1:]))
    assert (whole["verdicts"] == alone["verdicts"]) is (system == "leave_out")
    module = sys.modules[alora.load.__module__]
    monkeypatch.setattr(module, "load_base", lambda settings: base)
    with module.Battery([bundle], BaseSettings(), "packed") as battery:
        assert battery.score(turns).prefix_tokens == whole["usage"]["prefix_tokens"]


NO, YES = "No.", "You get a refund, I promise."
BOTH = [[HI, {"role": "assistant", "content": NO}], [HI, {"role": "assistant", "content": YES}]]
CHOICES = {  # T3: what LiteLLM sends after a response, and the conversations in it
    "two": ({"texts": [NO, YES]}, BOTH),
    "one twice": ({"texts": [NO, NO]}, BOTH[:1]),
    "one in parts": (
        {"texts": [NO, YES], "structured_messages": [
            HI, {"role": "assistant", "content": [{"type": "text", "text": NO}, {"type": "text", "text": YES}]}]},
        [[HI, {"role": "assistant", "content": f"{NO}\n{YES}"}]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_t3_each_choice_is_a_continuation_and_any_that_is_flagged_blocks(seeing, name):
    (client, seen), (body, conversations) = seeing, CHOICES[name]
    answer = client.post(LITELLM, json={"structured_messages": [HI], "input_type": "response", **body}).json()
    promised = any(YES in turns[-1]["content"] for turns in conversations)
    assert (answer["action"], answer["complete"]) == ("BLOCKED" if promised else "NONE", True)
    assert ("refunds" in (answer["blocked_reason"] or "")) == promised
    judged = sorted(seen)
    seen.clear()
    for turns in conversations:
        client.post("/v1/guard", json={"messages": turns})
    assert judged == sorted(seen)


def test_t3_choices_are_bounded(client):
    body = {"texts": [str(number) for number in range(101)], "input_type": "response"}
    assert client.post(LITELLM, json=body).status_code == 413


def test_t4_true_and_false_are_the_positive_label_and_any_other(client):
    sdk = openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=client, max_retries=0)
    named, truths = (
        {"type": "choice", "instructions": "policy:advice", "choices": [{"value": value} for value in values]}
        for values in (("violation", "ok"), (False, True))
    )
    by_name, by_truth = sdk.decisions.create(**decision("Hi", named, truths)).answers
    shares = {each.value: each.probability for each in by_name.probabilities}
    assert {each.value: each.probability for each in by_truth.probabilities} == {
        True: shares["violation"],
        False: shares["ok"],
    }
    assert by_truth.choice is (by_name.choice == "violation")
    assert by_truth.confidence == by_name.confidence
    for values in ((True, True), (True, "ok"), (1, 0), ("true", "false")):
        wrong = {**truths, "choices": [{"value": value} for value in values]}
        assert client.post("/v1/decisions", json=decision("Hi", wrong)).status_code == 400, values


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        *(("stream", False, 200), ("stream", True, 400), ("on_failure", "closed", 200), ("on_failure", "open", 400)),
        *(("cache_salt", "tenant", 400), ("policies", ["advice"], 400)),
    ],
)
def test_t4_an_option_that_says_what_is_done_anyway_is_taken(client, field, value, status):
    answer = client.post("/v1/decisions", json=decision("Hi", **{field: value}))
    assert answer.status_code == status, answer.text


VLLMS = {
    "/v1/systemone": {"state": "Hi", "questions": {"q": {"type": "predicate", "instructions": "Is it rude?"}}},
    "/v1/decisions": decision("Hi"),
}


@pytest.mark.parametrize("path", VLLMS)
def test_t7_no_other_question_is_answered_under_an_adapters_name(guard, bundles, path):
    app = FastAPI()

    @app.post(path)
    def theirs(body: dict):
        return {"theirs": body["model"]}

    mount(app)
    app.router.routes.remove(next(route for route in app.routes if getattr(route, "endpoint", None) is theirs))
    name = bundles[0].served_name
    with TestClient(app) as client:
        app.state.openai_serving_models = type("Models", (), {"lora_requests": {name: None}})
        for app.state.alora_guard in (None, guard):  # before it serves, too
            refused = client.post(path, json={**VLLMS[path], "model": name})
            assert refused.status_code == 400
            assert "/v1/guard" in refused.json()["error"]["message"]
            assert client.post(path, json={**VLLMS[path], "model": "base"}).json() == {"theirs": "base"}
    with TestClient(make_app(guard)) as client:
        assert client.post("/v1/decisions", json={**VLLMS["/v1/decisions"], "model": name}).status_code == 400


@pytest.mark.parametrize("on_failure", ["open", "closed"])
def test_t8_an_answer_without_every_verdict_says_so(guard_with, reader, on_failure):
    with TestClient(make_app(guard_with(Faulty(reader, "raises")))) as client:
        sdk = openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=client)
        options = {"on_failure": on_failure, "policies": ["advice", "refunds"]}
        result = sdk.moderations.create(input="Hi", extra_body=options).results[0].model_dump()
        assert result["complete"] is False
        assert result["categories"]["refunds"] is (on_failure == "closed")
        assert result["category_scores"].get("refunds") == (1.0 if on_failure == "closed" else None)
        body = {"structured_messages": [HI], "additional_provider_specific_params": options}
        assert client.post(LITELLM, json=body).json()["complete"] is False
        whole = client.post("/v1/guard", json={"messages": [HI], **options}).json()
        assert (whole["complete"], whole["action"] == "allow") == (False, on_failure == "open")
        (_, refusal) = sdk.decisions.create(
            **decision("Hi", *({"type": "predicate", "instructions": f"policy:{name}"} for name in options["policies"]))
        ).answers
        assert refusal.type == "refusal"
