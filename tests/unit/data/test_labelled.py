"""Labelled rows: what is accepted, and one clear line with a place for each thing that is not."""

from dataclasses import replace

import pytest

from alora.config.schema import ColumnSettings, DataSettings
from alora.data.conversation import Conversation, Message
from alora.data.findings import Findings
from alora.data.labelled import read_labelled, read_multilabelled
from alora.errors import DataError
from alora.policy import Policy
from tests.unit.data.rows import OTHER, POLICY, codes, jsonl, read, row


def test_rows_in_order_with_ids_and_places(tmp_path):
    rows = read(jsonl(tmp_path, row("a", id="x"), "", row("b", "violation", id=0), row("c")))
    assert [item.conversation.id for item in rows] == ["x", "0", "train.jsonl:4"]
    assert [item.where for item in rows] == ["train.jsonl:1", "train.jsonl:3", "train.jsonl:4"]
    assert [item.labels["p"] for item in rows] == ["ok", "violation", "ok"]
    assert rows[0].conversation == Conversation("x", (Message("user", "a"),))


BAD_ROWS = {
    "truncated": ('{"messages": [{"role": "user", "cont', "NOT_JSON"),
    "an array": ("[1, 2]", "ROW_KIND"),
    "not UTF-8": (b'{"messages": "caf\xe9"}', "NOT_UTF8"),
    "unknown label": (row(label="maybe"), "LABEL_UNKNOWN"),
    "null label": (row(label=None), "LABEL_MISSING"),
    "label of a wrong type": (row(label=[1]), "LABEL_UNKNOWN"),
    "no label": ({"messages": row()["messages"], "gold": "ok"}, "COLUMN_MISSING"),
    "no messages": ({"label": "ok", "body": "x"}, "COLUMN_MISSING"),
    "empty conversation": ({"messages": [], "label": "ok"}, "EMPTY"),
    "messages as a text": ({"messages": "Hi", "label": "ok"}, "MESSAGES_KIND"),
    "messages as Python writes them": ({"messages": "[{'role': 'user'", "label": "ok"}, "MESSAGES_KIND"),
    "a message as a text": ({"messages": ["Hi"], "label": "ok"}, "MESSAGE_KIND"),
    "bad role": ({"messages": [{"role": "robot", "content": "x"}], "label": "ok"}, "ROLE_UNKNOWN"),
    "content of a wrong type": ({"messages": [{"role": "user", "content": 3}], "label": "ok"}, "CONTENT_KIND"),
    "a tool call without a name": (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}], "label": "ok"}, "TOOL_CALL"),
    "no content": ({"messages": [{"role": "user"}], "label": "ok"}, "CONTENT_KIND"),
    "a text by another key": ({"messages": [{"role": "user", "msg": "x"}], "label": "ok"}, "CONTENT_KIND"),
    "a role by another key": ({"messages": [{"name": "user", "content": "x"}], "label": "ok"}, "ROLE_UNKNOWN"),
    "lone surrogate": (row("a\ud800"), "NOT_UNICODE"),
    "lone surrogate in an id": (row(id="a\ud800"), "NOT_UNICODE"),
    "id of a wrong type": (row(id=[1]), "ID_KIND"),
    "labels of a wrong type": ({"messages": row()["messages"], "labels": "ok"}, "LABELS_KIND"),
    "unknown label of many": ({"messages": row()["messages"], "labels": {"p": "x"}}, "LABEL_UNKNOWN"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_is_told_with_its_line(tmp_path, case):
    bad, code = BAD_ROWS[case]
    with pytest.raises(DataError) as caught:
        read(jsonl(tmp_path, row(), bad, row("b")))
    (finding,) = caught.value.findings
    assert (finding.code, finding.where.partition(": ")[0], finding.count) == (code, "train.jsonl:2", 1)


@pytest.mark.parametrize(
    "more",
    [
        {"labels": {"p": "ok", "q": "violation"}, "label": None},
        {"labels": {"p": "ok", "q": "violation"}, "label": "violation", "policy": "q"},
        {"labels": {"p": False}, "label": "good"},  # the same after the map
    ],
)
def test_label_beside_labels_that_does_not_contradict(tmp_path, more):
    (found,) = read(jsonl(tmp_path, row() | more), label_map={"good": "ok", "false": "ok"})
    assert found.labels == {"p": "ok"}


def test_all_findings_come_at_once_and_the_rest_is_counted(tmp_path):
    rows = [row(label="maybe") for _ in range(50)]
    with pytest.raises(DataError, match="50 problems") as caught:
        read(jsonl(tmp_path, row(), "{", *rows[:49]))
    found = [(item.code, item.where, item.count) for item in caught.value.findings]
    assert found == [("NOT_JSON", "train.jsonl:2", 1), ("LABEL_UNKNOWN", "train.jsonl:3", 49)]
    for pairs in ('[["a", "ok"], ["b", "violation"]]', '["a", "ok"]\n["b", "violation"]\n'):
        assert codes(jsonl(tmp_path, pairs)) == {"ROW_KIND": 2}
    with pytest.raises(DataError, match="holds no rows"):
        read(jsonl(tmp_path, '{"data": []}'))
    assert str(caught.value.findings[1]).startswith("49 rows: label 'maybe' is not one of")
    with pytest.raises(DataError, match="50 problems") as caught:
        read(jsonl(tmp_path, *[row(label=f"maybe {number}") for number in range(50)]))
    assert str(caught.value.findings[-1]) == "... and 30 more"


def test_many_labels_for_one_policy_skip_what_is_not_annotated(tmp_path):
    messages = row()["messages"]
    path = jsonl(
        tmp_path,
        {"messages": messages, "labels": {"p": "ok", "z": "whatever"}},
        {"messages": messages, "labels": {"p": None}},
        {"messages": messages, "labels": {}},
    )
    assert [item.where for item in read(path)] == ["train.jsonl:1"]
    with pytest.raises(DataError, match="none of its 3 rows is labelled for policy 'q'"):
        read_labelled(path, DataSettings(), OTHER)


def test_many_policies_share_a_file(tmp_path):
    messages = row()["messages"]
    path = jsonl(tmp_path, {"messages": messages, "labels": {"p": "ok", "q": "violation"}}, row(label="ok", policy="q"))
    rows = read_multilabelled(path, DataSettings(), [POLICY, OTHER])
    assert [dict(item.labels) for item in rows] == [{"p": "ok", "q": "violation"}, {"q": "ok"}]
    with pytest.raises(DataError, match="a row with one label names one of p, q") as caught:
        read_multilabelled(jsonl(tmp_path, row()), DataSettings(), [POLICY, OTHER])
    (finding,) = caught.value.findings
    assert "policies=[ID] reads the file for one policy, and a file for each is FILE.%policy%.csv" in finding.problem
    assert "data.train" not in finding.problem  # nor any key: it may be of data.test
    (found,) = read_multilabelled(jsonl(tmp_path, row()), DataSettings(), [OTHER])
    assert found.labels == {"q": "ok"}


def test_a_row_that_names_another_policy_is_no_row_of_the_only_one(tmp_path):
    """One policy of a file of several is trained, by a sweep say."""
    path, findings = jsonl(tmp_path, row("mine", policy="p"), row("theirs", policy="q")), Findings()
    found = read_labelled(path, DataSettings(), POLICY, findings)
    assert [item.where.partition(":")[2] for item in found] == ["1"]
    assert findings.notes == {"a row whose 'policy' is another than p is left out": 1}
    with pytest.raises(
        DataError, match=r"none of its 1 rows is labelled for policy 'p' .*rename a column of these names"
    ):
        read(jsonl(tmp_path, row(policy="q")))


NOBODYS = (row(), row(policy=None), row(policy=""), row(policy=" "), row(policy=float("nan")))


def test_rows_that_name_no_policy_are_nobody_s_where_others_name_another(tmp_path):
    path, findings = jsonl(tmp_path, *NOBODYS, row("theirs", policy="q"), row("mine", policy="p")), Findings()
    with pytest.raises(DataError) as caught:
        read(path)
    (finding,) = caught.value.findings
    assert (finding.code, finding.count, finding.where) == ("POLICY_UNKNOWN", 5, "train.jsonl:1")
    assert finding.problem.startswith("the row names no policy, and others of the file do ('p', 'q'); fill in 'policy'")
    with pytest.raises(DataError, match=r"where no row names one, policies=\[ID\] reads the file") as caught:
        read_multilabelled(path, DataSettings(), [POLICY, OTHER])
    assert [finding.count for finding in caught.value.findings] == [5]
    mine = jsonl(tmp_path, *NOBODYS, row("mine", policy="p"), name="mine.jsonl")
    assert len(read_labelled([mine, jsonl(tmp_path, *NOBODYS)], DataSettings(), POLICY, findings)) == 11
    assert findings.notes == {"a row that names no policy is read as one of p, which others name": 5}


def test_a_table_with_a_column_for_each_policy(tmp_path):
    path = tmp_path / "wide.csv"
    path.write_text("chat,is_p,is_q,label\nHi,yes,,a\nHo,no,YES,b\n")
    columns = ColumnSettings(messages="chat", label="is_%policy%")
    settings = DataSettings(columns=columns, label_map={"yes": "violation", "no": "ok"})
    rows = read_multilabelled(str(path), settings, [POLICY, OTHER])
    assert [row.labels for row in rows] == [{"p": "violation"}, {"p": "ok", "q": "violation"}]
    own = {"r": Findings()}
    read_multilabelled(str(path), settings, [POLICY, Policy("r", "T", "R")], own)
    (finding,) = own["r"].all()
    assert (finding.code, finding.count) == ("COLUMN_MISSING", 2)
    assert "no column 'is_r'" in finding.problem
    with pytest.raises(DataError, match=r"no column 'label'.* or to %policy% where each policy has a column"):
        read_multilabelled(jsonl(tmp_path, {"messages": "Hi"}), DataSettings(), [POLICY, OTHER])


@pytest.mark.parametrize("labels", [{"topic": "billing"}, {"p": "ok"}, ["x"], "billing"])
def test_a_label_column_that_is_named_alone_is_the_only_one_read(tmp_path, labels):
    path = jsonl(tmp_path, row(human="violation", labels=labels))
    (found,) = read(path, columns=ColumnSettings(label="human"))
    assert found.labels == {"p": "violation"}


@pytest.mark.parametrize("number", ["1", "1.0"])
def test_whole_numbers_that_a_table_with_gaps_has_as_floats_are_labels(tmp_path, number):
    (tmp_path / "gaps.csv").write_text("prompt,p\na,1.0\nb,0.0\nc,\n")
    settings = DataSettings(
        columns=ColumnSettings(label="%policy%"), label_map={number: "violation", number.replace("1", "0", 1): "ok"}
    )
    rows = read_multilabelled(str(tmp_path / "gaps.csv"), settings, [POLICY])
    assert [row.labels for row in rows] == [{"p": "violation"}, {"p": "ok"}, {}]
    with pytest.raises(DataError, match=r"'data.label_map=\{\"1\": LABEL\}'"):
        read_multilabelled(str(tmp_path / "gaps.csv"), replace(settings, label_map={}), [POLICY])


def test_ids_that_come_twice_are_one_finding(tmp_path):
    paths = [jsonl(tmp_path, *(row(f"{name} {n}", id=n) for n in range(30)), name=f"{name}.jsonl") for name in "ab"]
    with pytest.raises(DataError) as caught:
        read_labelled(paths, DataSettings(), POLICY)
    (finding,) = caught.value.findings
    place = "b.jsonl:1: id '0' is also at a.jsonl:1"
    assert (finding.code, finding.count, finding.where) == ("ID_TWICE", 30, place)


@pytest.mark.parametrize(
    ("written", "label_map"),
    [("refuse\u0301", {}), ("REFUSÉ ", {}), ("ｒｅｆｕｓé", {}), (" Yes", {"yes": "refusé"}),
     ("YES", {"yes": "refusé", "Yes ": "refusé"})],
)  # fmt: skip
def test_a_label_in_other_capitals_blanks_accents_or_widths_is_read_with_a_note(tmp_path, written, label_map):
    policy, findings = Policy("p", "T", "R", labels=("refusé", "ok")), Findings()
    settings = DataSettings(label_map=label_map)
    found = read_labelled(jsonl(tmp_path, row(label=written), row()), settings, policy, findings)
    assert found[0].labels == {"p": "refusé"}
    assert findings.notes == {f"label {written!r} is read as refusé": 1}


@pytest.mark.parametrize("label_map", [{"yes": "refusé", "Yes": "ok"}, {"yes": "Refused"}, {}])
def test_a_label_that_could_be_two_or_none_is_refused_with_its_exact_key(tmp_path, label_map):
    policy = Policy("p", "T", "R", labels=("refusé", "ok"))
    with pytest.raises(DataError, match=r"label 'YES ' is not one of .*'data.label_map=\{\"YES \": LABEL\}'"):
        read_labelled(jsonl(tmp_path, row(label="YES "), row()), DataSettings(label_map=label_map), policy)


@pytest.mark.parametrize(
    "of", [{"labels": {"p": "ok"}, "verdicts": {}}, {"label": "ok", "policy": "p", "generated": {}}]
)
def test_the_labels_of_rows_that_alora_wrote_are_the_policys_own_words(tmp_path, of):
    written = {"messages": [{"role": "user", "content": "a"}], **of}
    path = jsonl(tmp_path, written, written | {"id": 2})
    found = read(path, label_map={"ok": "violation", "violation": "ok", "bad": "violation"})
    assert [item.labels["p"] for item in found] == ["ok", "ok"]
