"""Messages of every dialect become the same ones, and what was read otherwise is noted."""

import json

import pytest

from alora.data.messages import Message, ToolCall
from tests.unit.data.rows import TURNS, read_one


def messages(*items, **settings):
    conversation, findings = read_one({"messages": list(items)}, **settings)
    assert findings.count == 0, findings.all()
    return conversation.messages, findings


def test_an_agent_s_conversation_as_openai_logs_it():
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}
    found, findings = messages(
        {"role": "developer", "content": "Be kind."},
        {
            "role": "user",
            "name": "ann",
            "content": [{"type": "text", "text": "Find x,"}, {"type": "text", "text": "please"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "assistant", "content": None, "function_call": {"name": "pay", "arguments": {"sum": 3}}},
        {"role": "function", "name": "pay", "content": {"ok": True}},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "tool_calls": None},
    )
    assert found == (
        Message("system", "Be kind."),
        Message("user", "Find x,\nplease", "ann"),
        Message("assistant", "", calls=(ToolCall("search", '{"q": "x"}'),)),
        Message("tool", "found", "search"),
        Message("assistant", "", calls=(ToolCall("pay", '{"sum": 3}'),)),
        Message("tool", '{"ok": true}', "pay"),
        Message("assistant", "No."),
    )
    assert found[2].text == '[calls search {"q": "x"}]'
    assert findings.notes == {"role 'developer' is read as system": 1, "role 'function' is read as tool": 1}


def test_an_image_is_left_out_by_choice_and_noted():
    image = {"type": "image_url", "image_url": {"url": "x"}}
    found, findings = messages({"role": "user", "content": [{"type": "text", "text": "See"}, image]}, skip_media=True)
    assert found == (Message("user", "See"),)
    assert findings.notes == {"a part of type 'image_url' is left out (data.skip_media)": 1}


@pytest.mark.parametrize(
    "row", [{"messages": TURNS}, {"messages": json.dumps(TURNS)}, {"conversations": [{"from": "human", "value": "Hi"}]}]
)
def test_a_system_text_next_to_a_list_of_messages_is_the_first_of_them(row):
    conversation, findings = read_one(row | {"system": "Be kind."})
    assert conversation.messages == (Message("system", "Be kind."), Message("user", "Hi"))
    (name,) = row
    assert findings.notes[f"'system' is read as the first message, before {name!r}"] == 1
    first, user = read_one(row | {"system": [{"type": "text", "text": "Be"}, "kind."]})[0].messages
    assert (first.role, first.content.split(), user.content) == ("system", ["Be", "kind."], "Hi")
    assert read_one(row | {"SYSTEM": "SAP", "system": "Be kind."})[0].messages[0] == Message("system", "Be kind.")
    for nothing in ("", None, 3, {"text": "Be kind."}, [{"text": ""}]):
        conversation, findings = read_one(row | {"system": nothing})
        assert conversation.messages == (Message("user", "Hi"),)
        assert findings.notes["'system' is not read: it is no text"] == (nothing == 3 or isinstance(nothing, dict))


@pytest.mark.parametrize("role", ["system", "developer", "System"])
def test_two_system_messages_that_differ_are_refused(role):
    row = {"messages": [{"role": role, "content": "Be kind."}, *TURNS]}
    conversation, findings = read_one(row | {"system": "Be kind.\n"})
    assert findings.count == 0
    assert [message.role for message in conversation.messages] == ["system", "user"]
    _, findings = read_one(row | {"system": "Be rude."})
    assert [finding.code for finding in findings.all()] == ["SYSTEM_DIFFERS"]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"role": "user", "content": [{"type": "image_url", "text": "harmless", "image_url": {"url": "x"}}]}, None),
        ({"role": "user", "content": [{"type": "text", "text": "harmless", "image_url": {"url": "x"}}]}, None),
        ({"role": "user", "content": [{"type": "text", "text": "harmless", "image_url": None}]}, "harmless"),
        ({"role": "assistant", "content": None, "refusal": "I will not."}, "I will not."),
        ({"role": "assistant", "content": "a", "refusal": "I will not."}, "a\nI will not."),
        ({"role": "assistant", "content": "a", "refusal": None, "audio": None, "images": []}, "a"),
        ({"role": "assistant", "content": "a", "audio": {"id": "1", "transcript": "b"}}, None),
        ({"role": "user", "content": "a", "images": ["data:"]}, None),
        ({"role": "user", "content": "a", "input_audio": {"data": "x"}}, None),
        ({"role": "user", "content": [{"type": "text", "text": "a", "refusal": "b"}]}, "a\nb"),
        (
            {"role": "assistant", "content": "a", "function_call": {"name": "f"}, "tool_calls": [{"name": "g"}]},
            "a\n[calls g {}]\n[calls f {}]",
        ),
    ],
)
def test_nothing_is_left_out_because_something_else_is_there(item, text):
    conversation, findings = read_one({"messages": [item]})
    assert (text if conversation is None else conversation.messages[0].text) == text
    assert [finding.code for finding in findings.all()] == (["CONTENT_PART"] if text is None else [])


CALLED = '[calls f {"a": 1}]'


SENT = {  # by the SDKs' types and dumps: OpenAI's 3.51, Anthropic's 2.10, LangChain's 1.4, LiteLLM's 1.106
    "OpenAI: an assistant's message, dumped": (
        {"role": "assistant", "content": "a", "refusal": None, "annotations": [{"url_citation": {"title": "t"}}],
         "audio": None, "function_call": None, "tool_calls": None, "parsed": {"a": "a"}}, "a"),
    "OpenAI: a part": (
        {"role": "user", "content": [{"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "x"}}]}, "a"),
    "OpenAI: a tool call": (
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "index": 0,
         "function": {"name": "f", "arguments": '{"a": 1}', "parsed_arguments": {"a": 1}}}]}, CALLED),
    "Gemini behind OpenAI's API: a tool call": (
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "extra_content": {"google": {"s": "o"}},
         "provider_specific_fields": {"thought_signature": "o"}, "function": {"name": "f", "arguments": '{"a": 1}'}}]},
        CALLED),
    "a log: ids and dates of a message": (
        {"role": "user", "content": "a", "message_id": "m", "thread_id": "t", "object": "thread.message", "uuid": "u",
         "createdAt": "2026-01-02", "finish_reason": "stop", "lang": "en", "metadata": {"a": "b"}}, "a"),
    "OpenAI: a custom tool's call": (
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x y"}}]},
        "[calls f x y]"),
    "OpenAI: an item of Responses": (
        {"id": "m", "type": "message", "role": "assistant", "status": "completed", "phase": "final_answer",
         "content": [{"type": "output_text", "text": "a", "annotations": [{"t": "u"}], "logprobs": [{"t": "a"}]}]},
        "a"),
    "Anthropic: an answer, dumped": (
        {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn", "container": None,
         "stop_sequence": "x", "usage": {"input_tokens": 1}, "content": [{"type": "text", "text": "a",
         "citations": [{"cited_text": "t"}], "cache_control": {"type": "ephemeral"}}]}, "a"),
    "Anthropic: a block as a tool call": (
        {"role": "assistant", "tool_calls": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1},
         "caller": {"type": "direct"}, "toolset_name": "t", "cache_control": None}]}, CALLED),
    "LangChain: a message, dumped, with a role": (
        {"role": "assistant", "content": "a", "additional_kwargs": {"refusal": None}, "name": None, "id": "run-1",
         "response_metadata": {"model_name": "m"}, "type": "ai", "invalid_tool_calls": [], "usage_metadata": {"n": 1},
         "tool_calls": [{"name": "f", "args": {"a": 1}, "id": "c", "type": "tool_call"}]}, f"a\n{CALLED}"),
    "LiteLLM: a message, dumped": (
        {"role": "assistant", "content": "a", "tool_calls": None, "function_call": None,
         "provider_specific_fields": {"refusal": None}}, "a"),
    "Llama: parameters": (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "parameters": {"a": 1}}}]}, CALLED),
    "ShareGPT: a weight, and a table's empty columns": (
        {"from": "gpt", "value": "a", "weight": 0, "content": None, "tool_calls": [], "thoughts": " "}, "a"),
    "a log: a time and a flag": ({"role": "user", "content": "a", "timestamp": "2026-01-01", "toxic": False}, "a"),
}  # fmt: skip


@pytest.mark.parametrize("name", SENT)
def test_what_sdks_and_logs_put_next_to_a_text_is_no_obstacle(name):
    item, text = SENT[name]
    (found,), _ = messages(item)
    assert found.text == text


@pytest.mark.parametrize(
    ("item", "key"),
    [
        ({"value": "b"}, "value"),
        ({"text": "b"}, "text"),
        ({"parts": [{"text": "b"}]}, "parts"),
        ({"reasoning_content": "b"}, "reasoning_content"),
        ({"additional_kwargs": {"reasoning_content": "b"}}, "additional_kwargs"),
        ({"from": "b"}, "from"),
        ({"content": [{"type": "text", "text": "a", "input": "b"}]}, "input"),
    ],
)
def test_a_text_that_would_be_lost_stops_the_row_or_is_left_out_and_noted(item, key):
    item = {"role": "user", "content": "a", **item}
    conversation, findings = read_one({"messages": [item], "text_of_the_row": "metadata"})
    assert conversation is None
    (finding,) = findings.all()
    assert (finding.code, finding.where) == ("CONTENT_PART", "f:1: message 1")
    assert finding.problem.startswith(f"content holds {key!r} next to its text")
    found, findings = messages(item, skip_media=True)
    assert found == (Message("user", "a"),)
    assert findings.notes == {f"{key!r} next to its text is left out (data.skip_media)": 1}


@pytest.mark.parametrize(
    ("call", "keys"),
    [
        ({"name": "f", "arguments": {"a": 1}, "args": {"b": 2}}, "'args'"),
        ({"name": "f", "arguments": "{}", "params": {"b": 2}, "note": "c"}, "'params', 'note'"),
        ({"function": {"name": "f", "arguments": "{}"}, "input": "b"}, "'input'"),
        ({"function": {"name": "f"}, "custom": {"name": "g", "input": "b"}}, "'custom'"),
    ],
)
def test_a_tool_call_of_which_a_part_would_be_lost_is_refused(call, keys):
    for settings in ({}, {"skip_media": True}):
        item = {"role": "assistant", "tool_calls": [call, {"name": "g", "args": {}, "arguments": None}]}
        conversation, findings = read_one({"messages": [item]}, **settings)
        assert conversation is None
        (finding,) = findings.all()
        assert finding.code == "TOOL_CALL"
        assert finding.problem == f"a tool call has {keys} next to its arguments; make it one of them"
