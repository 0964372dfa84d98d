"""What is typed, sorted into Hydra's flags and overrides."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from alora.config.arguments import quoted, read_arguments
from alora.errors import ConfigError


@pytest.mark.parametrize(
    ("verb", "argv", "options", "overrides"),
    [
        ("train", ["a=1", "--cfg", "job", "b=2"], {"--cfg": "job"}, ("a=1", "b=2")),
        ("train", ["-m", "a=1,2"], {"--multirun": ""}, ("a=1,2",)),
        ("train", ["-cd", ".", "~base"], {"--config-dir": "."}, ("~base",)),
        ("train", ["--info", "a=1"], {"--info": "all"}, ("a=1",)),
        ("train", ["--help", "all", "a=1"], {"--help": "all"}, ("a=1",)),
        ("new", ["guard"], {}, ('name="guard"',)),
        ("score", ["artifact=x", "talk.json"], {}, ("artifact=x", 'conversation="talk.json"')),
        ("score", ["-", "bundle=x"], {}, ("artifact=x", 'conversation="-"')),
        ("score", ["battery=x", 'we "talk", \\o/.json'], {}, ("artifact=x", 'conversation="we \\"talk\\", \\o/.json"')),
        ("score", ["runs/x", "talk.json"], {}, ('artifact="runs/x"', 'conversation="talk.json"')),
        ("score", ["runs/x", "conversation=talk.json"], {}, ('artifact="runs/x"', "conversation=talk.json")),
        ("score", ["runs/x", "data=a", "engine=vllm"], {}, ('artifact="runs/x"', 'conversation="a"', "scorer=vllm")),
        ("score", ["bundles=[a,b]", "+bundle=c"], {}, ("bundles=[a,b]", "+artifact=c")),
    ],
)
def test_sorts_what_is_typed(verb, argv, options, overrides, tmp_path):
    found = read_arguments(verb, argv, tmp_path)
    assert set(found.overrides) == set(overrides)
    assert found.options == options


@pytest.mark.parametrize(
    ("verb", "argv", "words"),
    [
        ("train", ["quickstart"], "did you mean recipe=quickstart"),
        ("train", ["chats.csv"], "did you mean data.train=chats.csv"),
        ("validate", ["folder"], "did you mean artifact=folder"),
        ("score", ["a", "talk.json", "bundle=b"], "takes one conversation, not 2: a talk.json"),
        ("new", ["a", "b"], "takes one name, not 2"),
        ("train", ["--exp", "config.pickle"], "there is no such flag"),
    ],
)
def test_refuses_what_the_verb_does_not_take(verb, argv, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        read_arguments(verb, argv, tmp_path)


def test_recipe_files_are_found_from_here(tmp_path):
    for name in ("one.yaml", "two words.yaml"):
        (tmp_path / name).write_text("name: x\n")
    for value in ("one.yaml,quickstart,two words.yaml", "'one.yaml',quickstart,\"two words.yaml\""):
        found = read_arguments("train", [f"recipe={value}"], tmp_path)
        assert found.recipe_files == (tmp_path / "one.yaml", tmp_path / "two words.yaml")
        assert found.overrides == (f'recipe="{tmp_path}/one.yaml",quickstart,"{tmp_path}/two words.yaml"',)


@pytest.mark.parametrize(
    "text", ["", "a b", "a\\b", "ends\\", "two\\\\", 'say "no"', '\\"', "it's", "[a, b]", "{a: b}"]
)
def test_a_quoted_text_is_read_back_by_hydra(text):
    assert OverridesParser.create().parse_override(f"name={quoted(text)}").value() == text


@pytest.mark.parametrize(
    ("verb", "argument", "override"),
    [
        ("score", "data=rows.jsonl", 'conversation="rows.jsonl"'),
        ("score", "data='my rows.jsonl'", 'conversation="my rows.jsonl"'),
        ("label", 'data="my rows.jsonl"', 'conversation="my rows.jsonl"'),
        ("score", "data.columns.id=name", "data.columns.id=name"),
        ("evaluate", "data=rows.jsonl", "data=rows.jsonl"),
    ],
)
def test_the_rows_of_score_are_its_data(verb, argument, override, tmp_path):
    assert read_arguments(verb, [argument], tmp_path).overrides == (override,)


def test_a_policy_that_is_a_file_is_taken_as_one(tmp_path):
    given = ["policy=mine/policy.yaml", "policy=jailbreak"]
    assert read_arguments("generate", given, tmp_path).overrides == ("policy.file=mine/policy.yaml", given[1])
    assert read_arguments("generate", ["policy='a b.yaml'"], tmp_path).overrides == ("policy.file='a b.yaml'",)
