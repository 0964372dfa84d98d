"""Policies from YAML and from a recipe; every mistake told with its place."""

from pathlib import Path

import pytest

from alora.config.schema import PolicySettings
from alora.errors import ConfigError, PolicyError
from alora.policy import Policy, load_policies, policy_from_mapping, read_policies

ADVICE = "id: advice\ntitle: No advice\nrule: Give none.\n"


def write(folder: Path, text: str, name: str = "policy.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_one_policy_with_ordered_labels(tmp_path):
    path = write(tmp_path, ADVICE + 'labels: {bad: "Yes", odd: Maybe, good: "No"}\n')
    assert read_policies(path) == [
        Policy("advice", "No advice", "Give none.", ("bad", "odd", "good"), ("Yes", "Maybe", "No"))
    ]
    assert read_policies(path)[0].positive == "bad"


def test_a_list_and_both_named_lists(tmp_path):
    assert [p.id for p in read_policies(write(tmp_path, "- {id: a, title: A}\n- {id: b, title: B}\n"))] == ["a", "b"]
    text = (
        "policies:\n- {id: a, title: A, rule: R, counts: {train: {ok: 3}}, sources: [x]}\n"
        "multilabel_policies:\n- {id: self_harm, rule: R}\n- {id: a, rule: S}\nmultilabel_sources: [x]\n"
    )
    found = read_policies(write(tmp_path, text))
    assert [(policy.title, policy.rule) for policy in found] == [("A", "R"), ("Self harm", "R")]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "a policy is a mapping"),
        ("- {id: 1}\n- {id: fine}\n- {id: a, rule: 1}\n", r"policy\[0\].*\n.*policy\[2\]"),
        ("id: [1", r"policy\.yaml:\d+: not YAML"),
        ("id: 7\ntitle: T", "'id' is int '7'"),
        ("id: a b\n", "policy 'a b': its id names files"),
        ("id: a\ntitel: T", "unknown key 'titel'; did you mean 'title'"),
        ("id: a\nrule: 3", "'rule' is 3"),
        ("id: a\nlabels: {violation: Yes, ok: No}", "reads a bare Yes or No as a boolean"),
        ("id: a\nlabels: {violation: 1, ok: 2}", "'labels'|'answer words' is 1; give it a text"),
        ("id: a\nlabels: [x, y, z]", "map each label to its answer word"),
        ("id: a\nlabels: {x: 'A'}", "at least two"),
        ("policies: []", "policies holds no policy"),
        ("- {id: a}\n- {id: a}", "policy id 'a' is there twice"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(tmp_path, text, complaint):
    with pytest.raises(PolicyError, match=complaint) as caught:
        read_policies(write(tmp_path, text))
    assert "policy.yaml" in str(caught.value)


def test_a_recipe_picks_one_policy(tmp_path):
    path = str(write(tmp_path, "- {id: a, title: A}\n- {id: b, title: B}\n"))
    assert load_policies(PolicySettings(file=path, id="b"))[0].title == "B"
    with pytest.raises(PolicyError, match=r"holds 2 policies; pick one with policy.id"):
        load_policies(PolicySettings(file=path))
    with pytest.raises(PolicyError, match="has no policy 'c'"):
        load_policies(PolicySettings(file=path, id="c"))


@pytest.mark.parametrize("ids", [["a", "b", "a"], ["*", "*"], ["*", "a"]])
def test_a_battery_names_each_policy_once(tmp_path, ids):
    settings = PolicySettings(file=str(write(tmp_path, "- {id: a, title: A}\n- {id: b, title: B}\n")))
    with pytest.raises(ConfigError, match="name each policy once"):
        load_policies(settings, ids)
    assert [policy.id for policy in load_policies(settings, ["b", "a"])] == ["b", "a"]
    assert [policy.id for policy in load_policies(settings, ["*"])] == ["a", "b"]


def test_a_recipe_changes_a_policy_from_a_file(tmp_path):
    path = str(write(tmp_path, ADVICE))
    changed = load_policies(PolicySettings(file=path, rule="Other.", labels={"no": "B", "yes": "A"}))[0]
    assert changed == Policy("advice", "No advice", "Other.", ("no", "yes"), ("B", "A"))


def test_an_inline_policy():
    assert load_policies(PolicySettings(title="No advice!", rule="R"))[0] == Policy("no_advice", "No advice!", "R")
    with pytest.raises(PolicyError, match="no policy is given"):
        load_policies(PolicySettings(id="a"))


def test_control_characters_that_would_reach_a_terminal_are_refused():
    """Titles and labels also go where nothing escapes them: progress bars, plots, trackers."""
    for title, label in (("\x1b[2Jgone", "x"), ("T", "a\u202eb")):
        with pytest.raises(PolicyError, match="holds a control character"):
            Policy("a", title, "R", (label, "y"), ("A", "B"))


def test_what_a_policy_judges_is_part_of_it_and_is_not_written_by_default():
    given = {"id": "a", "title": "A", "rule": "", "labels": {"violation": "Yes", "ok": "No"}}
    assert policy_from_mapping(given, "here").as_dict() == given
    last = given | {"judge": "last_turn"}
    assert policy_from_mapping(last, "here").as_dict() == last
    assert policy_from_mapping(last, "here") != policy_from_mapping(given, "here")
    with pytest.raises(PolicyError, match=r"here: .*'judge' is 'turn'; write conversation or last_turn"):
        policy_from_mapping(given | {"judge": "turn"}, "here")
