"""The rows of a new recipe folder: balanced, sound, and nothing shared between splits."""

from collections import Counter

from alora.config.schema import DataSettings, PolicySettings
from alora.data.labelled import read_labelled
from alora.data.row_checks import check_balance, check_duplicates
from alora.data.scaffold import scaffold
from alora.policy import load_policies


def test_the_rows_pass_their_own_check(tmp_path):
    for name, text in scaffold("mine").items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (policy,) = load_policies(PolicySettings(file=str(tmp_path / "policy.yaml")))
    names = ("train", "validation", "test")
    splits = {name: read_labelled(str(tmp_path / f"{name}.jsonl"), DataSettings(), policy) for name in names}
    assert [len(rows) for rows in splits.values()] == [192, 32, 64]
    for name, rows in splits.items():
        assert sum(row.labels[policy.id] == "ok" for row in rows) * 2 == len(rows)
        assert not check_balance(name, rows, policy, needed=True)
    assert not check_duplicates(splits, policy)
    for rows in splits.values():
        pairs = Counter((row.conversation.messages[0].content, row.labels[policy.id]) for row in rows)
        assert len(set(pairs.values())) == 1  # the message alone says nothing
    replies = [{row.conversation.messages[-1].content for row in rows} for rows in splits.values()]
    assert not replies[0] & replies[2]
    assert not replies[1] & replies[2]
