"""What is held out, what is one conversation, and which policies' rows are enough."""

from dataclasses import replace

import pytest

from alora.config.schema import DataSettings
from alora.data.conversation import Conversation, LabelledConversation, Message
from alora.data.findings import Findings
from alora.data.splits import (
    Splits,
    hold_out,
    known_rows,
    merge_rows,
    read_policy_rows,
    read_splits,
    rows_digest,
    text_digest,
)
from alora.errors import AllFailed, DataError
from tests.unit.data.rows import OTHER, POLICY


def row(text, where="train.jsonl:1", role="user", **labels):
    return LabelledConversation(Conversation(where, (Message(role, text),)), labels or {"p": "ok"}, where)


def write(file, *rows):
    lines = [f'{{"messages": [{{"role": "user", "content": "{text}"}}], "label": "{label}"}}' for text, label in rows]
    file.write_text("\n".join(lines))
    return str(file)


def both(count, word=""):
    return [(f"{word} {label} {number}", label) for label in POLICY.labels for number in range(count)]


def test_what_reads_the_same_is_held_out_together():
    rows = [row(f"Message {number}") for number in range(400)]
    twins = [row(f"  message\n{number} ") for number in range(400)]
    train, validation = hold_out([*rows, *twins], 0.2)
    held_out = [rows.index(item) for item in validation if item in rows]
    assert held_out == [twins.index(item) for item in validation if item in twins]
    assert len(held_out) == 80
    assert len(train) + len(validation) == 800
    fewer = {rows.index(item) for item in hold_out(rows[:399], 0.2)[1]}
    assert len(fewer ^ set(held_out)) <= 1


def test_a_row_is_known_by_each_policy_that_any_row_of_its_text_is_labelled_for():
    known = [row("A b", p="ok", q="ok"), row("a  B", p="violation"), row("c", q="ok")]
    rows = [row("a b", p="ok", q="ok"), row("a b", q="violation"), row("c", p="ok"), row("d", p="ok")]
    assert known_rows(rows, known) == {"p": 1, "q": 2}
    assert known_rows(rows, known[::-1]) == {"p": 1, "q": 2}


def test_rows_of_a_source_have_its_weight(tmp_path):
    own, bought = (write(tmp_path / f"{name}.jsonl", *both(20, name)) for name in ("own", "bought"))
    plain, _ = read_splits(DataSettings(train=[own, bought]), [POLICY])
    found, _ = read_splits(DataSettings(train=[own, bought], weights=[1, 0.25]), [POLICY])
    assert {(row.where.partition(":")[0], row.weight) for row in found.train} == {
        ("own.jsonl", 1), ("bought.jsonl", 0.25)
    }  # fmt: skip
    assert {row.conversation for row in found.validation} == {row.conversation for row in plain.validation}
    assert rows_digest(found.train) != rows_digest(plain.train)  # a run does not resume with other weights


def test_groups_that_share_a_text_stay_on_one_side():
    """Else a row that was trained on is held out under another group's name."""
    rows = [replace(row(f"text {n}", p="ok" if n % 2 else "violation"), group=f"g{n}") for n in range(40)]
    rows += [replace(row(f"text {n}", p="ok" if n % 2 else "violation"), group=f"g{n + 1}") for n in range(0, 36, 3)]
    rows += [row(f"text {n}", p="ok" if n % 2 else "violation") for n in range(40)]  # without a group
    rows += [replace(row(f"text {n}", q="ok"), group="one") for n in range(40)]  # another policy's, all in one
    train, held = hold_out(rows, 0.3)
    for kind in (lambda one: one.conversation.messages[0].content, lambda one: one.group):
        sides = [{kind(one) for one in side if "p" in one.labels} - {""} for side in (train, held)]
        assert sides[0], "some are trained on"
        assert sides[1], "some are held out"
        assert not sides[0] & sides[1]


def test_every_label_has_its_share_held_out_however_rare():
    rows = [row(f"message {number}", p="violation" if number % 50 == 0 else "ok") for number in range(1000)]
    train, validation = hold_out(rows, 0.15)
    assert [item.labels["p"] for item in validation].count("violation") == 3
    assert len(validation) == 150
    assert len(train) == 850
    train, validation = hold_out([row("a", p="violation"), row("b", p="violation"), row("c", p="violation")], 0.15)
    assert (len(train), len(validation)) == (2, 1)
    assert hold_out(rows[::-1], 0.15)[1] == hold_out(rows, 0.15)[1][::-1]  # the order of rows decides nothing


def test_a_label_of_few_groups_is_on_both_sides():
    """Holding out enough of the other label must not take the last group that has this one."""
    for seed in range(20):
        rows = [
            replace(row(f"{seed} {number}", p=("ok", "violation")[number % 8 < 2 and number % 3 == 0]),
                    group=f"customer {seed} {number % 8}")
            for number in range(160)
        ]  # fmt: skip
        for side in hold_out(rows, 0.15):
            assert {item.labels["p"] for item in side} == {"ok", "violation"}


def test_rows_of_one_group_stay_on_one_side():
    rows = [
        replace(row(f"message {number}", p=("violation", "ok")[number % 3 > 0]), group=f"customer {number // 4}")
        for number in range(400)
    ]
    train, validation = hold_out(rows, 0.2)
    assert not {item.group for item in train} & {item.group for item in validation}
    assert 70 <= len(validation) <= 90
    assert 20 <= sum(item.labels["p"] == "violation" for item in validation) <= 35
    lonely = [replace(item, group="one") for item in rows]
    with pytest.raises(DataError, match=r"all \d+ rows are of one group, 'one'.*another column in data.columns.group"):
        hold_out(lonely, 0.2)
    greetings = [replace(row("Hello", p="ok"), group=f"customer {number}") for number in range(100)]
    with pytest.raises(DataError, match=r"all 500 rows are of groups that share texts.*give data.validation"):
        hold_out([*rows, *greetings], 0.2)


def test_a_policy_s_split_is_the_same_whichever_policies_are_read_with_it():
    def labels(number):
        return {"p": ("violation", "ok")[number % 20 > 0], "q": ("violation", "ok")[number % 3 > 0]}

    rows = [row(f"message {number}", **labels(number)) for number in range(400)]
    alone = [replace(item, labels={"p": item.labels["p"]}) for item in rows]
    train, validation = hold_out(rows, 0.15)
    held = [item.conversation for item in validation if "p" in item.labels]
    assert held == [item.conversation for item in hold_out(alone, 0.15)[1]]
    for name in ("p", "q"):
        sides = [[item for item in side if name in item.labels] for side in (train, validation)]
        assert not {item.conversation for item in sides[0]} & {item.conversation for item in sides[1]}
        assert len(sides[0]) + len(sides[1]) == 400
    assert len(train) + len(validation) < 440  # the same rows for both, but for a few


@pytest.mark.parametrize(("one", "other"), [("Große Straße", "GROSSE STRASSE"), ("ﬁle", "FILE")])
def test_a_text_in_capitals_that_are_spelled_otherwise_reads_the_same(one, other):
    assert text_digest(row(one).conversation) == text_digest(row(other).conversation)


def test_of_two_labels_the_first_stays_and_labels_of_other_policies_are_joined():
    first, second = row("a", "p.jsonl:1", p="ok"), row("a", "q.jsonl:7", p="violation", q="ok")
    (merged,) = merge_rows([first, second])
    assert merged == replace(first, labels={"p": "ok", "q": "ok"})
    assert merge_rows([first, row("A")]) == [first, row("A")]
    mine, theirs = replace(row("hello", p="ok"), group="a"), replace(row("hello", q="ok"), group="b")
    assert merge_rows([mine, theirs]) == [mine, theirs], "each stays with its group"


def test_rows_are_known_by_their_words_and_labels():
    known = rows_digest([row("a", p="ok", q="ok"), row("b")])
    assert rows_digest([row("a", "elsewhere:3", q="ok", p="ok"), row("b")]) == known
    assert rows_digest([row("b"), row("a", p="ok", q="ok")]) != known
    assert rows_digest([row("a", p="ok", q="violation"), row("b")]) != known
    assert rows_digest([row("a", p="ok", q="ok"), row("c")]) != known


def test_what_is_wrong_in_one_policy_s_file_is_no_fault_of_another_s(tmp_path):
    write(tmp_path / "p.jsonl", *both(1), ("odd", "perhaps"))
    (tmp_path / "q.jsonl").write_text('{"messages": [{"role": "human", "content": "a"}], "label": "ok"}')
    findings = Findings()
    rows, unusable = read_policy_rows(str(tmp_path / "%policy%.jsonl"), DataSettings(), [POLICY, OTHER], findings)
    assert [row.labels for row in rows] == [{"q": "ok"}]
    assert list(unusable) == ["p"]
    assert list(findings.notes) == ["role 'human' is read as user"]


def test_a_policy_without_rows_is_left_out_until_none_is_left(tmp_path):
    names = {split: write(tmp_path / f"p.{split}.jsonl", *both(3, split)) for split in ("train", "validation", "test")}
    each = DataSettings(**{split: str(tmp_path / f"%policy%.{split}.jsonl") for split in names})
    splits, left_out = read_splits(each, [POLICY, OTHER])
    assert list(left_out) == ["q"]
    assert len(splits.train) == 6
    assert all(list(item.labels) == ["p"] for item in splits.train)
    assert splits.counts(POLICY) == {split: {"violation": 3, "ok": 3} for split in names}
    with pytest.raises(DataError, match=r"q\.train\.jsonl"):
        read_splits(each, [OTHER])
    with pytest.raises(AllFailed, match=r"none of 2 policies is left:\n  q: .*\n(  .*\n)*  r: "):
        read_splits(each, [OTHER, replace(OTHER, id="r")])


def test_the_share_of_training_rows_with_a_system_turn_is_the_policys_own():
    rows = [row("a"), row("b", role="system"), row("c", q="ok"), row("d", role="system", q="ok")]
    splits = Splits((*rows, row("e"), row("f")), (row("v", role="system"),))
    assert [splits.system_share(policy) for policy in (POLICY, OTHER)] == [0.25, 0.5]
    assert Splits((), ()).system_share(POLICY) is None
