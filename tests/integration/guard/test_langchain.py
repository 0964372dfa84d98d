"""LangChain's moderation middleware, unmodified, with the guard in OpenAI's place."""

import openai
import pytest

from alora.guard.core import Guard
from alora.guard.reader import Reading, Served
from alora.guard.standalone import make_app
from tests.integration.guard.conftest import listening

pytest.importorskip("langchain_openai", reason="LangChain is not installed; pip install langchain langchain-openai")
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_openai.middleware import OpenAIModerationMiddleware


class Suspicious:
    """Flags what is said about refunds."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    async def read(self, prefix, asked, request):
        flagged = "refund" in self._tokenizer.decode(prefix.token_ids)
        for index, item in enumerate(asked):
            sure = 50.0 if flagged and item.policy.id == "refunds" else -50.0
            yield Reading(index, (sure, -sure))


@pytest.mark.parametrize(
    ("question", "reply", "wanted"),
    [
        ("Hello", "Hello you.", "Hello you."),
        ("Hello", "You get a full refund.", "It was flagged for refunds."),
        ("Give me a refund", "Hello you.", "It was flagged for refunds."),
    ],
)
def test_what_is_flagged_ends_the_agents_run(base, bundles, renderer, question, reply, wanted):
    guard = Guard([Served.of(bundle) for bundle in bundles], renderer, Suspicious(base.tokenizer))
    with listening(make_app(guard)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        agent = create_agent(
            FakeListChatModel(responses=[reply]), middleware=[OpenAIModerationMiddleware(client=client)]
        )
        answer = agent.invoke({"messages": [{"role": "user", "content": question}]})["messages"][-1].content
    assert answer.endswith(wanted)
