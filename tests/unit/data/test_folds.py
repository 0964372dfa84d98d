"""Which fold holds a row out: groups and texts whole, labels evenly, each policy by its own rows."""

from collections import Counter

import pytest

from alora.config.schema import DataSettings
from alora.data.conversation import Conversation, LabelledConversation, Message
from alora.data.held_out import fold_rows, hold_out
from alora.data.splits import Splits, read_splits
from tests.unit.data.rows import OTHER, POLICY, jsonl


def row(text, group="", **labels):
    return LabelledConversation(Conversation(text, (Message("user", text),)), labels or {"p": "ok"}, text, group)


def rows(count, **more):
    return [row(f"{label} {n}", p=label, **more) for label in POLICY.labels for n in range(count)]


@pytest.mark.parametrize("folds", [2, 3, 5])
def test_every_fold_has_its_share_of_every_label(folds):
    uneven = rows(40)[20:]  # half as many violations
    found = fold_rows(uneven, folds)
    counts = Counter((item.folds["p"], item.labels["p"]) for item in found)
    for label, total in (("violation", 20), ("ok", 40)):
        shares = [counts[fold, label] for fold in range(folds)]
        assert sum(shares) == total
        assert max(shares) - min(shares) <= 1
    assert [item.conversation for item in found] == [item.conversation for item in uneven]
    assert fold_rows(uneven[::-1], folds) == found[::-1], "by the rows, not by their order"


def test_a_group_and_a_text_are_held_out_whole_at_however_many_removes():
    chained = [row("a", "g1"), row("A ", "g2"), row("b", "g2", p="violation"), row("b", "g3"), row("c", "g3")]
    found = fold_rows([*chained, *rows(10)], 3)
    assert len({item.folds["p"] for item in found[: len(chained)]}) == 1
    apart = fold_rows([row(str(n)) for n in range(5)] + rows(10), 3)
    assert len({item.folds["p"] for item in apart[:5]}) > 1  # negative control


def test_a_policys_folds_are_its_own():
    both = [row(f"{n}", p=POLICY.labels[n % 2], q=POLICY.labels[n // 2 % 2]) for n in range(60)]
    alone = [row(f"{n}", p=POLICY.labels[n % 2]) for n in range(60)]
    together = fold_rows([*both, *[row(f"more {n}", q="ok") for n in range(20)]], 3)
    assert [item.folds["p"] for item in together[:60]] == [item.folds["p"] for item in fold_rows(alone, 3)]
    assert any(item.folds["p"] != item.folds["q"] for item in together[:60])


def test_a_label_that_no_other_fold_would_know_leaves_the_policy_without_folds():
    """An adapter is not asked about a label that it has never seen; the split that follows says what is missing."""
    one = [row("rare", "g", p="violation"), row("rare too", "g", p="violation"), *rows(9)[9:]]
    assert {len(item.folds) for item in fold_rows(one, 3)} == {0}
    two = [row("rare", "g", p="violation"), row("rare too", "h", p="violation"), *rows(9)[9:]]
    assert {len(item.folds) for item in fold_rows(two, 3)} == {1}


def test_by_default_few_rows_are_in_folds_and_many_are_split():
    few, many = rows(74), rows(300)
    for count, folds in ((74, 5), (75, 3), (299, 3)):
        assert {item.folds["p"] for item in fold_rows(rows(count), None)} == set(range(folds))
    assert {len(item.folds) for item in fold_rows(many, None)} == {0}
    train, validation = hold_out(fold_rows(many, None), 0.2)
    assert (len(train), len(validation)) == (480, 120)
    assert hold_out(fold_rows(few, None), 0.2)[1] == []
    assert {len(item.folds) for item in fold_rows(few, 1)} == {0}


def test_splits_say_who_is_calibrated_by_what(tmp_path):
    folded = fold_rows([*rows(10), *[row(f"q {n}", q=OTHER.labels[n % 2]) for n in range(8)]], 2)
    folded = [item if "p" in item.labels else row(item.where, **item.labels) for item in folded]  # q has no folds
    train, validation = hold_out(folded, 0.25)
    splits = Splits(tuple(train), tuple(validation))
    assert splits.folded == {"p"}
    assert splits.measured("p") == ("out_of_fold", splits.calibration("p"))
    assert splits.measured("q") == ("validation", splits.calibration("q"))
    assert len(splits.calibration("p")) == 20
    assert len(splits.calibration("q")) == 2
    assert {item.labels.keys() & {"p"} and item.folds["p"] for item in splits.sample if "p" in item.labels} == {0}
    assert len([item for item in splits.sample if "q" in item.labels]) == 2


def test_validation_rows_of_the_users_own_leave_no_folds(tmp_path):
    def write(name, count):
        said = [{"prompt": f"{name} {label} {n}", "label": label} for label in POLICY.labels for n in range(count)]
        return jsonl(tmp_path, *said, name=name)

    train, validation = write("train.jsonl", 20), write("validation.jsonl", 5)
    assert read_splits(DataSettings(train=train), [POLICY])[0].folded == {"p"}
    given, _ = read_splits(DataSettings(train=train, validation=validation), [POLICY])
    assert (given.folded, len(given.train), len(given.validation)) == (frozenset(), 40, 10)
