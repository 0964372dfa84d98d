"""LiteLLM's proxy and LangChain's middleware, unmodified, with the guard in their moderators' place."""

import openai
import pytest
import yaml

import alora
from alora.guard.standalone import make_app
from tests import clients
from tests.integration.guard.conftest import Says

REFUND, PAY = "Give me a refund.", "Shall I pay?"
REPLIES = {"Hello.": "Hello you.", "Promise me.": "You get a full refund.", REFUND: "No.", PAY: "Yes."}


@pytest.fixture(scope="module")
def url(base, guard_with):
    """A guard that flags what is said about refunds."""

    def suspicious(item, prefix):
        flagged = item.policy.id == "refunds" and "refund" in base.tokenizer.decode(prefix.token_ids)
        return (3.0, -3.0) if flagged else (-3.0, 3.0)

    with clients.listening(make_app(guard_with(Says(suspicious)))) as url:
        yield url


@pytest.fixture(scope="module")
def model():
    model = clients.Model(REPLIES)
    with clients.listening(model.app) as model.url:
        yield model


@pytest.fixture(scope="module")
def proxy(url, model, tmp_path_factory):
    """Both guardrails of the page, and the same where no guard is, each for the requests that name it."""
    config = yaml.safe_load(clients.from_page("litellm.yaml", url)) | {"guardrails": []}
    for at, suffix in ((url, ""), (clients.NOWHERE, "-down")):
        for title in ("litellm.yaml", "litellm_moderations.yaml"):
            (guardrail,) = yaml.safe_load(clients.from_page(title, at))["guardrails"]
            guardrail["guardrail_name"] += suffix
            guardrail["litellm_params"]["default_on"] = False
            config["guardrails"].append(guardrail)
    with clients.litellm(config, model.url, tmp_path_factory.mktemp("litellm")) as client:
        yield client


def ask(proxy, guardrail, messages):
    completion = proxy.chat.completions.create(model="chat", messages=messages, extra_body={"guardrails": [guardrail]})
    return completion.choices[0].message.content


@pytest.mark.parametrize("guardrail", ["alora", "alora-moderations"])
@pytest.mark.parametrize(
    ("texts", "stages"),
    [
        (["Hello."], (None, None)),
        (["Promise me."], ("after", "after")),
        ([REFUND], ("before", "before")),
        (["Hello.", "You get a refund.", PAY], ("before", None)),  # moderations see what was said last
    ],
)
def test_litellm_blocks_what_the_guard_flags(proxy, model, url, guardrail, texts, stages):
    messages = [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(texts)]
    reply = REPLIES[texts[-1]]
    whole = guardrail == "alora"
    before = messages if whole else messages[-1:]
    after = [{"role": "assistant" if whole else "user", "content": reply}]
    model.asked.clear()
    stage = stages[not whole]
    if stage is None:
        assert ask(proxy, guardrail, messages) == reply
    else:
        with pytest.raises(openai.BadRequestError) as raised:
            ask(proxy, guardrail, messages)
        with alora.Guard(url) as guard:
            answer = guard.check(before if stage == "before" else after)
        assert answer.flagged == ["refunds"]
        if whole:
            assert raised.value.body["message"] == f"policy: {', '.join(answer.flagged)}"
        else:
            assert raised.value.body["provider_specific_fields"]["moderation_result"] == {
                "violated_categories": answer.flagged,
                "category_scores": {verdict.policy: verdict.probability for verdict in answer.verdicts},
            }
    assert len(model.asked) == (stage != "before")


@pytest.mark.parametrize("guardrail", ["alora-down", "alora-moderations-down"])
def test_litellm_blocks_all_when_no_guard_answers(proxy, model, guardrail):
    model.asked.clear()
    with pytest.raises(openai.InternalServerError):
        ask(proxy, guardrail, [{"role": "user", "content": "Hello."}])
    assert model.asked == []


@pytest.mark.parametrize("guardrail", ["alora", "alora-moderations"])
def test_litellm_ends_a_streamed_answer_at_what_is_flagged(proxy, guardrail):
    messages, body = [{"role": "user", "content": "Promise me."}], {"guardrails": [guardrail]}
    stream, shown = proxy.chat.completions.create(model="chat", messages=messages, stream=True, extra_body=body), []
    with pytest.raises(openai.APIError, match="policy"):
        shown.extend(chunk.choices[0].delta.content for chunk in stream)
    assert "".join(shown) == "You get a full "


def test_langchain_ends_a_run_that_the_guard_flags_and_raises_without_a_guard(url, model, tmp_path):
    flagged = "I'm sorry, but I can't comply with that request. It was flagged for refunds."
    wanted = {"Hello.": "Hello you.", "Promise me.": flagged, REFUND: flagged, PAY: "Yes."}
    assert clients.langchain(url, model.url, tmp_path, list(wanted)) == list(wanted.values())
    assert clients.langchain(clients.NOWHERE, model.url, tmp_path, ["Hello."]) == ["APIConnectionError"]


def test_litellm_moderates_without_its_proxy(url, tmp_path):
    assert clients.run_script("moderate.py", url, tmp_path).split() == ["True"]
