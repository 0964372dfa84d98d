"""Files and chats as people export them: each is read as what was said, or refused with the setting that reads it."""

import json

import pytest

from alora.config.schema import ColumnSettings, DataSettings
from alora.data.findings import Findings, take_warnings
from alora.data.labelled import read_labelled
from alora.data.messages import text_digest
from alora.data.splits import read_splits
from alora.errors import DataError
from tests.unit.data.rows import POLICY, codes, jsonl, read, read_one, said

ORDER = [("user", "Where is order 7?"), ("assistant", "On Monday."), ("user", "Where is order 7?")]
TRANSCRIPTS = {
    "tags": "<User>{q}</User>\n<Agent>{a}</Agent>\n<User>{q}</User>",
    "markers": "<|user|>\n{q}<|end|>\n<|assistant|>\n{a}<|end|>\n<|user|>\n{q}<|end|>",
    "ChatML": "<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n{a}<|im_end|>\n"
    "<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n",
    "Llama": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{q}<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{a}<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n{q}<|eot_id|>",
    "Gemma": "<start_of_turn>user\n{q}<end_of_turn>\n<start_of_turn>model\n{a}<end_of_turn>\n"
    "<start_of_turn>user\n{q}<end_of_turn>",
    "Mistral": "<s>[INST] {q} [/INST] {a}</s><s>[INST] {q} [/INST]",
    "brackets": "[Customer] {q}\n[Agent] {a}\n[Customer] {q}",
    "headings": "### User\n{q}\n\n### Agent\n{a}\n\n### User\n{q}",
    "lines": "Customer: {q}\nAgent: {a}\nCustomer: {q}",
    "times": "[10:00] Customer: {q}\n[10:01] Agent: {a}\n[10:02] Customer: {q}",
    "bold": "**User:** {q}\n**Bot:** {a}\n**User:** {q}",
    "numbers": "Customer #17: {q}\nAgent (Ann): {a}\nCustomer #17: {q}",
    "attributes": '<turn speaker="user">{q}</turn>\n<turn speaker="agent">{a}</turn>\n'
    "<turn speaker='user'>{q}</turn>",
    "OASST": "<|prompter|>{q}<|endoftext|><|assistant|>{a}<|endoftext|><|prompter|>{q}<|endoftext|>",
    "Cohere": "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{q}<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{a}<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{q}<|END_OF_TURN_TOKEN|>",
    "DeepSeek": "<｜begin▁of▁sentence｜><｜User｜>{q}<｜Assistant｜>{a}<｜end▁of▁sentence｜><｜User｜>{q}",
    "brackets within a line": "[USER] {q} [AGENT] {a} [USER] {q}",
    "Vicuna": "USER: {q} ASSISTANT: {a}</s>USER: {q}",
    "Guanaco": "### Human: {q}### Assistant: {a}### Human: {q}",
    "arrows": "User> {q}\nBot> {a}\nUser> {q}",
    "dashes": "User - {q}\nAgent - {a}\nUser - {q}",
    "bullets": "- User: {q}\n- Bot: {a}\n- User: {q}",
    "counted": "1. User: {q}\n2. Bot: {a}\n3. User: {q}",
    "line ends in letters": "User: {q}\\nAgent: {a}\\nUser: {q}",
    "bars": "User: {q} | Agent: {a} | User: {q}",
    "HTML": "<p><b>User:</b> {q}</p>\n<p><b>Agent:</b> {a}</p><p><b>User:</b> {q}</p>",
    "breaks": "User: {q}<br>Agent: {a}<br/>User: {q}",
    "alone": "**User**\n{q}\n\n**Assistant**\n{a}\n\n**User**\n{q}",
    "times behind": "User (10:00 AM): {q}\nBot (10:01 AM): {a}\nUser (10:02 AM): {q}",
    "long dashes": "— Customer: {q}\n— Agent: {a}\n— Customer: {q}",
    "Harmony with reasoning": "<|start|>user<|message|>{q}<|end|><|start|>assistant<|channel|>analysis<|message|>hm"
    "<|end|><|start|>assistant<|channel|>final<|message|>{a}<|return|><|start|>user<|message|>{q}<|end|>",
}  # fmt: skip
MARKED = {  # what opens a turn of a role, and what closes it
    "Llama 4": "<|header_start|>{0}<|header_end|>\n\n{1}<|eot|>",
    "Kimi": "<|im_{0}|>{0}<|im_middle|>{1}<|im_end|>",
    "Harmony": "<|start|>{0}<|message|>{1}<|end|>",
    "Granite": "<|start_of_role|>{0}<|end_of_role|>{1}<|end_of_text|>\n",
    "Apertus": "<|{0}_start|>{1}<|{0}_end|>",
}
ROLES = (("user", "{q}"), ("assistant", "{a}"), ("user", "{q}"))
TRANSCRIPTS |= {name: "".join(turn.format(*one) for one in ROLES) for name, turn in MARKED.items()}


@pytest.mark.parametrize("style", TRANSCRIPTS)
def test_c1_a_transcript_in_one_cell_is_turns(tmp_path, style):
    text = TRANSCRIPTS[style].format(q=ORDER[0][1], a=ORDER[1][1])
    cells = [{"transcript": text, "label": "violation"}] * 3
    for found in read(jsonl(tmp_path, *cells)):
        assert said(found.conversation) == ORDER


@pytest.mark.parametrize(
    "text",
    ["Kundin: Wo?\nBerater: Hier.", "<Kundin>Wo?</Kundin>\n<Berater>Hi.</Berater>", "<|kundin|>Wo?<|berater|>Hi.",
     "[Kundin] Wo?\n[Berater] Hi.", "### Kundin\nWo?\n### Berater\nHi.", "— Kundin: Wo?\n— Berater: Hi."],
)  # fmt: skip
def test_c1_speakers_that_are_seen_and_not_known_are_an_error_with_the_setting(tmp_path, text):
    path = jsonl(tmp_path, *[{"transcript": text, "label": "ok"}] * 4)
    with pytest.raises(DataError) as caught:
        read(path)
    (finding,) = caught.value.findings
    assert finding.code == "TRANSCRIPT"
    assert "undin" in finding.problem
    assert "data.role_map={" in finding.problem
    names = {"Kundin": "user", "Berater": "assistant", "kundin": "user", "berater": "assistant"}
    for role_map in (names, {"Kundin": "user", "kundin": "user", "*": "assistant"}):
        found = read(path, role_map=role_map)[0]
        assert [message.role for message in found.conversation.messages] == ["user", "assistant"]
    assert said(read(path, format="text")[0].conversation) == [("user", text)]


def test_c1_headings_behind_an_introduction_are_an_error(tmp_path):
    with pytest.raises(DataError) as caught:
        read(jsonl(tmp_path, *[{"text": "A chat of May.\n\n## User\nHi\n\n## Agent\nYes", "label": "ok"}] * 4))
    assert [finding.code for finding in caught.value.findings] == ["TRANSCRIPT"]


@pytest.mark.parametrize("past", [{"history": [["Hi", "Hello"]]}, {"chat_history": [["user", "Hi"], ["ai", "Hello"]]}])
@pytest.mark.parametrize("columns", [("instruction", "output"), ("question", "answer"), ("query",)])
def test_c12_a_history_comes_before_the_other_columns(tmp_path, past, columns):
    turns = [("user", "Hi"), ("assistant", "Hello"), ("user", "Where?"), ("assistant", "Here.")]
    row = past | dict(zip(columns, ("Where?", "Here."), strict=False))
    (found,) = read(jsonl(tmp_path, row | {"label": "ok"}))
    assert said(found.conversation) == turns[: 2 + len(columns)]


@pytest.mark.parametrize(
    "text", ["I told the Agent: no. User: Bob", "User - friendly", "Bot\nUser", "Ask support > help"]
)
def test_c1_a_sentence_with_a_speakers_name_is_a_text(tmp_path, text):
    assert [said(found.conversation) for found in read(jsonl(tmp_path, {"text": text, "label": "ok"}))] == [
        [("user", text)]
    ]


def test_c2_what_was_chosen_and_what_was_rejected_are_two_rows(tmp_path):
    asked = [{"role": "user", "content": "Hi"}]
    chosen, rejected = ([{"role": "assistant", "content": text}] for text in ("Good.", "Bad."))
    both = {"id": 7, "prompt": asked, "chosen": chosen, "rejected": rejected}
    label_map = {"chosen": "ok", "rejected": "violation"}
    wanted = [([("user", "Hi"), ("assistant", "Good.")], "ok"), ([("user", "Hi"), ("assistant", "Bad.")], "violation")]
    implicit = {"chosen": asked + chosen, "rejected": asked + rejected}
    texts = {"prompt": "Hi", "chosen": "Good.", "rejected": "Bad."}
    again = implicit | {"prompt": "Hi"}
    spoken = {name: f"\n\nHuman: Hi\n\nAssistant: {text}" for name, text in (("chosen", "Good."), ("rejected", "Bad."))}
    for row in (both, implicit, again, texts, spoken):
        found = read(jsonl(tmp_path, row), label_map=label_map)
        assert [(said(one.conversation), one.labels["p"]) for one in found] == wanted
    assert codes(jsonl(tmp_path, both)) == {"LABEL_UNKNOWN": 1} | {"LABEL_UNKNOWN": 1}
    (found,) = read(jsonl(tmp_path, both | {"label": "ok"}))
    assert said(found.conversation) == wanted[0][0]


def call(arguments):
    return {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "get", "arguments": arguments}}]}


def test_c3_one_call_has_one_spelling_in_tokens_and_digests():
    oslo = [{"city": "Oslo"}, '{ "city" : "Oslo" }', json.dumps('{"city":"Oslo"}'), "{'city': 'Oslo'}"]
    cafe = [{"q": "café"}, '{"q":"caf\\u00e9"}']
    ends = [{"t": "a\r\nb\rc"}, '{"t":"a\\r\\nb\\nc"}', {"t": "a\nb\nc"}]
    paths = [{"p": "C:\\r\\n"}, '{"p": "C:\\\\r\\\\n"}']
    for forms, wanted in (
        (oslo, '"city": "Oslo"'),
        (cafe, '"q": "café"'),
        (ends, r'"t": "a\nb\nc"'),
        (paths, r'"p": "C:\\r\\n"'),
    ):
        found = [read_one({"messages": [call(form)]})[0] for form in forms]
        assert {conversation.messages[0].text for conversation in found} == {f"[calls get {{{wanted}}}]"}
        assert len({text_digest(conversation) for conversation in found}) == 1
    answers = [{"a": 1}, '{"a":1}', [{"type": "text", "text": '{"a": 1}'}]]
    found = [read_one({"messages": [call("{}"), {"role": "tool", "content": it}]})[0].messages[1] for it in answers]
    assert {(message.name, message.content) for message in found} == {("get", '{"a": 1}')}


PLAIN = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]


def test_c5_messages_inside_cells(tmp_path):
    table = tmp_path / "cells.csv"
    asked, told = (json.dumps([turn]).replace('"', '""') for turn in PLAIN)
    printed = str([PLAIN[0]])
    table.write_text(f'input,output,label\n"{asked}","{told}",ok\n"{printed}","{told}",ok\n"{asked}",null,ok\nHm,,ok\n')
    findings = Findings()
    found = read_labelled(str(table), DataSettings(), POLICY, findings)
    both = [("user", "Hi"), ("assistant", "Yes")]
    assert [said(one.conversation) for one in found] == [both, both, both[:1], [("user", "Hm")]]
    assert findings.notes["nothing is in column 'output', so the row has a message less"] == 2
    assert findings.notes["cells of column 'input' are messages or texts; a text is one message"] == 1
    row = {"input": {"messages": PLAIN[:1]}, "output": {"choices": [{"message": PLAIN[1]}]}, "label": "ok"}
    (found,) = read(jsonl(tmp_path, row))
    assert said(found.conversation) == both
    (found,) = read(jsonl(tmp_path, row), columns=ColumnSettings(messages="input.messages"))
    assert said(found.conversation) == both[:1]


BANK = "text,category\nMy card is gone,lost_or_stolen_card\nExchange rate?,exchange_rate\nTop up failed,top_up_failed\n"


def test_c6_one_of_many_labels(tmp_path):
    (tmp_path / "bank.csv").write_text(BANK + "Again?,exchange_rate\n")
    settings = DataSettings(label_map={"lost_or_stolen_card": "violation", "*": "ok"})
    for columns in (ColumnSettings(), ColumnSettings(label="category")):
        settings.columns, findings = columns, Findings()
        found = read_labelled(str(tmp_path / "bank.csv"), settings, POLICY, findings)
        assert [one.labels["p"] for one in found] == ["violation", "ok", "ok", "ok"]
        assert findings.notes["'*' of data.label_map reads as ok: 'exchange_rate' (2), 'top_up_failed' (1)"] == 1
    assert set(codes(str(tmp_path / "bank.csv"))) == {"LABEL_UNKNOWN"}


NOTHING = ("", "N/A", "nan", "None", "<NA>", "  ", "null", "NA", "#N/A", "-", "unlabeled")


def test_c7_rows_without_a_label_are_one_finding_or_left_out(tmp_path):
    path = tmp_path / "partly.csv"
    path.write_text(
        "text,label\na,ok\n" + "".join(f"x{n},{cell}\n" for n, cell in enumerate(NOTHING)) + "c,violation\n"
    )
    assert codes(str(path)) == {"LABEL_MISSING": len(NOTHING)}
    findings = Findings()
    found = read_labelled(str(path), DataSettings(unlabelled="leave_out"), POLICY, findings)
    assert [one.labels["p"] for one in found] == ["ok", "violation"]
    assert findings.notes["a row without a label is left out (data.unlabelled)"] == len(NOTHING)
    rows = [{"text": "a", "label": it} for it in (["ok"], float("nan"), [])] + [{"text": "c"}]
    assert len(read(jsonl(tmp_path, *rows), unlabelled="leave_out")) == 1
    named = read(jsonl(tmp_path, *rows), label_map={"nan": "violation"}, unlabelled="leave_out")
    assert len(named) == 1  # a number that is none is no text


JUDGED = {"messages": [{"role": "system", "content": "Say violation or ok."},
                       {"role": "user", "content": "User: refund? Bot: promised."},
                       {"role": "assistant", "content": "violation"}]}  # fmt: skip


def test_c8_the_label_as_the_last_turn_is_taken_out_and_never_left(tmp_path):
    path = jsonl(tmp_path, JUDGED)
    (found,) = read(path, label_turn="last")
    assert said(found.conversation)[-1] == ("user", "User: refund? Bot: promised.")
    assert found.labels == {"p": "violation"}
    with pytest.raises(DataError, match=r"data\.label_turn=last") as caught:
        read(path)
    assert caught.value.findings[0].code == "COLUMN_MISSING"
    assert codes(jsonl(tmp_path, JUDGED | {"label": "violation"})) == {"LABEL_LEAK": 1}
    said_in_words = ("**violation**", "Label: violation", '{"label": "violation"}', "The answer is violation.")
    for word, label in (("Yes.", "violation"), ("No", "ok"), *((text, "violation") for text in said_in_words)):
        told = {"messages": [*JUDGED["messages"][:2], {"role": "assistant", "content": word}]}
        assert read(jsonl(tmp_path, told), label_turn="last")[0].labels == {"p": label}
        assert codes(jsonl(tmp_path, told | {"label": label})) == {"LABEL_LEAK": 1}
        other = {"label": "ok" if label == "violation" else "violation"}
        assert codes(jsonl(tmp_path, told | other)) == ({"LABEL_LEAK": 1} if word in said_in_words else {})
        users = {"messages": [*told["messages"][1:], {"role": "user", "content": word}]}
        assert codes(jsonl(tmp_path, users | {"label": label})) == {"LABEL_LEAK": 1}
    assert codes(jsonl(tmp_path, {"messages": JUDGED["messages"][-1:]}), label_turn="last") == {"EMPTY": 1}
    sound = {"messages": PLAIN, "label": "violation"}
    others = [{"messages": [PLAIN[0], {"role": "assistant", "content": f"So {n}"}], "label": "ok"} for n in range(8)]
    assert codes(jsonl(tmp_path, sound, *others)) == {}  # one reply in many is no exception


SPLIT = "text,label,split\na,ok,train\nb,violation,train\nc,ok,train\nd,violation,train\ne,violation,test\nf,ok,dev\n"


@pytest.mark.parametrize("column", ["split", "Split", "partition"])
def test_c10_rows_by_a_column_of_splits(tmp_path, column):
    path, rows = tmp_path / "all.csv", SPLIT.replace("label,split", f"label,{column}")
    path.write_text(rows + "g,violation,dev\n")
    settings = DataSettings(train=str(path), columns=ColumnSettings(split=column))
    for own in ({}, {"test": str(path), "validation": str(path)}):
        settings.test, settings.validation = own.get("test"), own.get("validation")
        splits, _ = read_splits(settings, [POLICY])
        texts = {name: [row.conversation.messages[0].content for row in rows] for name, rows in splits.parts.items()}
        assert texts == {"train": ["a", "b", "c", "d"], "validation": ["f", "g"], "test": ["e"]}
    findings = Findings()
    assert len(read_labelled(str(path), DataSettings(), POLICY, findings)) == 7
    (warning,) = take_warnings(findings.notes)
    assert (warning.code, warning.where, findings.notes.total()) == ("SPLIT_UNREAD", str(path), column == "partition")
    for cell, code in (("gold", "gold"), ("", "is blank")):
        path.write_text(rows + f"g,ok,{cell}\n")
        with pytest.raises(DataError, match=rf"{code}.*SPLIT_UNKNOWN"):
            read_splits(settings, [POLICY])
    settings.columns.split = "splt"
    with pytest.raises(DataError, match=f"7 rows: no column 'splt'.*'{column}'"):
        read_splits(settings, [POLICY])


WRAPPED = {
    "data": {"data": [{"text": "a", "label": "ok"}, {"text": "b", "label": "violation"}], "version": 1},
    "columns": {"text": ["a", "b"], "label": ["ok", "violation"]},
    "pandas": {"text": {"0": "a", "1": "b"}, "label": {"0": "ok", "1": "violation"}},
    "lists": {"train": [["a", "ok"], ["b", "violation"]]},
    "splits": {"train": [{"text": "a", "label": "ok"}], "test": [["b", "violation"]]},
    "Samples": {"Samples": [{"text": "a", "label": "ok"}, {"text": "b", "label": "violation"}]},
    "the hub's server": {"rows": [{"row_idx": 0, "row": {"text": "a", "label": "ok"}},
                                  {"row_idx": 1, "row": {"text": "b", "label": "violation"}}]},
    "by rows": {"0": {"text": "a", "label": "ok"}, "1": {"text": "b", "label": "violation"}},
    "names apart": {"columns": ["label", "text"], "index": [0, 1], "data": [["ok", "a"], ["violation", "b"]]},
    "columns of a split": {"train": {"text": ["a", "b"], "label": ["ok", "violation"]}},
    "conversations": {"conversations": [{"messages": [{"role": "user", "content": t}], "label": it}
                                        for t, it in (("a", "ok"), ("b", "violation"))]},
}  # fmt: skip


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", WRAPPED)
def test_c11_wrapped_tables(tmp_path, name, indent):
    (tmp_path / "a.json").write_text(json.dumps(WRAPPED[name], indent=indent))
    found = [(one.conversation.messages[0].content, one.labels["p"]) for one in read(str(tmp_path / "a.json"))]
    assert found == [("a", "ok"), ("b", "violation")]
    if name == "splits":
        named = read_labelled(
            str(tmp_path / "a.json"), DataSettings(columns=ColumnSettings(split="split")), POLICY, use="train"
        )
        assert len(named) == 1


@pytest.mark.parametrize(
    "row",
    [
        {"query": "Hi", "response": "Yes"},
        {"messages": [{"role": "user", "text": "Hi"}, {"role": "assistant", "text": "Yes"}]},
        {"messages": [{"type": "human", "content": "Hi"}, {"type": "ai", "content": "Yes"}]},
        {"messages": [{"type": "human", "data": {"content": "Hi"}}, {"type": "ai", "data": {"content": "Yes"}}]},
        {"messages": [{"speaker": "user", "text": "Hi"}, {"speaker": "Agent", "text": "Yes"}]},
        {"messages": [{"role": "user", "parts": [{"text": "Hi"}]}, {"role": "model", "parts": [{"text": "Yes"}]}]},
        {"input": "Hi", "output": "Yes"},
        {"input": PLAIN[:1], "output": PLAIN[1:]},
        {"inputs": {"messages": PLAIN[:1]}, "outputs": {"messages": PLAIN[1:]}},
        {"request": {"body": {"messages": PLAIN[:1]}}, "response": {"body": {"choices": [{"message": PLAIN[1]}]}}},
        {"input": PLAIN[:1], "output": {"object": "response", "output": [{"type": "message", **PLAIN[1]}]}},
        {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}, {"role": "model", "parts": [{"text": "Yes"}]}]},
        {"messages": [{"participant": "user", "utterance": "Hi"}, {"participant": "assistant", "message": "Yes"}]},
        {"messages": [{"user": "Hi"}, {"assistant": "Yes"}]},
        {"messages": [{"type": "constructor", "kwargs": {"type": who, "content": text}}
                      for who, text in (("human", "Hi"), ("ai", "Yes"))]},
        {"turns": PLAIN},
        {"user_message": "Hi", "botReply": "Yes"},
    ],
)  # fmt: skip
def test_c12_usual_names(row):
    conversation, findings = read_one(row, role_map={"Agent": "assistant"})
    assert findings.all() == []
    assert said(conversation) == [("user", "Hi"), ("assistant", "Yes")]


@pytest.mark.parametrize(
    "turn",
    [None, {"role": "assistant"}, {"from": "gpt", "value": None},
     *({"role": "assistant", "content": it} for it in (None, "", [], [{"type": "text", "text": None}], [None]))],
)  # fmt: skip
def test_c13_a_turn_without_content_is_left_out_with_a_count(turn):
    turns = [PLAIN[0], turn, {"role": "user", "content": "Well?"}]
    conversation, findings = read_one({"messages": turns})
    assert said(conversation) == [("user", "Hi"), ("user", "Well?")]
    assert findings.notes["a turn without content is left out"] == 1
    assert [finding.code for finding in read_one({"messages": turns[1:2]})[1].all()] == ["EMPTY"]
    assert [finding.code for finding in read_one({"messages": [{"role": "user"}]})[1].all()] == ["CONTENT_KIND"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\r\r\n", "_x000D_\n"])
def test_c14_line_ends_are_one(end):
    for row in ({"text": f"Hi{end}Yes"}, {"messages": [{"role": "user", "content": f"Hi{end}Yes"}]}):
        assert read_one(row)[0].messages[0].content == "Hi\nYes"


BLOCK = {"type": "thinking", "thinking": "hm"}
THOUGHT = {
    "tags": {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes"},
    "field": {"role": "assistant", "reasoning_content": "hm", "content": "Yes"},
    "another field": {"role": "assistant", "reasoning": "hm", "content": "Yes"},
    "blocks next to it": {"role": "assistant", "thinking_blocks": [BLOCK], "content": "Yes"},
    "blocks": {"role": "assistant", "content": [BLOCK, {"type": "text", "text": "Yes"}]},
    "another tag": {"role": "assistant", "content": "<Thought>hm</Thought>Yes"},
    "Magistral": {"role": "assistant", "content": "[THINK]hm[/THINK]Yes"},
    "gpt-oss": {"role": "assistant", "content": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
                                                "<|channel|>final<|message|>Yes"},
    "a tag that the template opens": {"role": "assistant", "content": "hm\n</think>\n\nYes"},
    "Gemini": {"role": "assistant", "parts": [{"text": "hm", "thought": True}, {"text": "Yes"}]},
    "Bedrock": {"role": "assistant", "content": [{"reasoningContent": {"reasoningText": {"text": "hm"}}},
                                                 {"text": "Yes"}]},
}  # fmt: skip


@pytest.mark.parametrize("form", THOUGHT)
def test_c15_reasoning_has_one_meaning_in_every_form(form):
    row = {"messages": [PLAIN[0], THOUGHT[form]]}
    conversation, findings = read_one(row)
    assert said(conversation) == [("user", "Hi"), ("assistant", "Yes")]
    assert findings.notes.total() == 1
    conversation, _ = read_one(row, reasoning="read")
    assert said(conversation)[1] == ("assistant", "<think>\nhm\n</think>\n\nYes")
    assert [finding.code for finding in read_one(row, reasoning="refuse")[1].all()] == ["REASONING"]


def test_c15_two_forms_in_a_file_are_a_warning(tmp_path):
    rows, findings = [{"messages": [PLAIN[0], THOUGHT[form]], "label": "ok"} for form in ("tags", "field")], Findings()
    read_labelled(jsonl(tmp_path, *rows), DataSettings(), POLICY, findings)
    assert [warning.code for warning in take_warnings(findings.notes)] == ["REASONING_MIXED"]


@pytest.mark.parametrize("text", ["The tag </think> ends it", "a <think>b</think>", "<think>never closed"])
def test_c15_a_text_that_names_the_tag_is_a_text(text):
    for role in ("assistant", "user"):
        assert said(read_one({"messages": [PLAIN[0], {"role": role, "content": text}]})[0])[1] == (role, text)
    users = {"messages": [{"role": "user", "content": "<think>a</think>b"}]}
    assert said(read_one(users)[0]) == [("user", "<think>a</think>b")]
