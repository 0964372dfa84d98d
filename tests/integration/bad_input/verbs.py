"""Command lines, recipes and settings that no verb can take, and servers' addresses that lead nowhere."""

from tests.integration.bad_input.conftest import Case

SCORE = "score artifact={place}/run {place}/talk.json"


def recipe(content: str | bytes, *words: str, verb: str = "train", name: str = "mine.yaml") -> Case:
    return Case(f"{verb} recipe={{here}}/{name}", [*words], files={name: content})


COMMAND_LINES = {
    "a word that is no setting": Case("train nonsense", ["nonsense"]),
    "a value for a section": Case("train training=null", ["training=null"]),
    "a word for a flag": Case("train strict=maybe", ["strict"]),
    "a sweep without -m": Case("train training.seed=1,2", ["training.seed"]),
    "a removal of what is not there": Case("train ~nonsense", ["nonsense"]),
    "a config folder that is not there": Case("train --config-dir={here}/none", ["none"]),
    "a flag that is not there": Case("train --nonsense", ["--nonsense"]),
    "a launcher that is not there": Case("train -m training.seed=1,2 hydra/launcher=none", ["hydra/launcher=none"]),
    "a name with a folder in it": Case("train name=a/b", ["name"]),
    "a battery that is none": Case("fleet battery={place}/base data.test={place}/test.jsonl", ["base"]),
    "a battery that is not there": Case("fleet battery={here}/none data.test={place}/test.jsonl", ["none"]),
    "a battery for a server that is not there": Case("serve battery={here}/none", ["none"]),
    "no battery for a server": Case("serve", ["no bundle is given"]),
    "an export of nothing": Case("export", ["artifact"]),
    "an export of a bundle to nowhere": Case("export artifact={place}/run/bundle", ["output=DIR"]),
    "a validation of nothing": Case("validate", ["artifact"]),
    "an evaluation of nothing": Case("evaluate", ["artifact"]),
    "an evaluation of an adapter without rows": Case(
        "evaluate artifact={here}/adapter base.source={place}/base policy.file={place}/policy.yaml",
        ["data.test"],
        copied="run/adapter",
    ),
    "an adapter of no policy": Case(
        "evaluate artifact={here}/adapter base.source={place}/base data.test={place}/test.jsonl",
        ["policy.file"],
        copied="run/adapter",
    ),
    "a recalibration of nothing": Case("recalibrate data.validation={place}/test.jsonl", ["artifact"]),
    "a recalibration without rows": Case(
        "recalibrate artifact={here}/bundle base.source={place}/base", ["data.validation"], copied="run/bundle"
    ),
    "a benchmark that is not there": Case("bench nonsense", ["nonsense"]),
    "a comparison without rows": Case(
        "compare base.source={place}/base policy.file={place}/policy.yaml", ["data.train"]
    ),
    "a scaffold without a name": Case("new", ["needs a name"]),
    "a scaffold named as nothing can be": Case("new ../up", ["../up"]),
}

RECIPES = {
    "not there": Case("train recipe={here}/none.yaml", ["none.yaml"]),
    "a folder": Case("train recipe={here}/dir.yaml", ["dir.yaml"], files={"dir.yaml/inside": ""}),
    "not YAML": recipe("name: [", "mine.yaml"),
    "a list": recipe("- name: x\n", "mine.yaml: a recipe is a YAML mapping"),
    "an unknown key": recipe("nonsense: 3\n", "nonsense"),
    "a default that is not there": recipe("defaults: [{training: none}]\n", "training"),
}

SERVERS = {
    name: Case(f"{SCORE} scorer={engine}", words)
    for name, (engine, words) in {
        "a port above all": ("http://127.0.0.1:99999", ["scorer is 'http://127.0.0.1:99999'", "http://HOST:PORT"]),
        "another protocol": ("ftp://127.0.0.1", ["scorer is 'ftp://127.0.0.1'"]),
        "nobody listening": (
            "http://127.0.0.1:9",
            ["http://127.0.0.1:9/v1/guard/policies does not answer", "alora serve starts one"],
        ),
    }.items()
}
SERVERS["a judge's port above all"] = Case(
    "compare recipe=quickstart judge.model=m judge.url=http://127.0.0.1:99999/v1",
    ["judge.url is 'http://127.0.0.1:99999"],
)

OTHERS = {
    "a section removed": Case("train ~training", ["training"]),
    "findings, strictly": Case(
        "check strict=true data.validation={place}/train.jsonl", exit_code=1, result=["warning: ", "not ready to train"]
    ),
}


CASES = {
    **OTHERS,
    **{f"command lines: {name}": case for name, case in COMMAND_LINES.items()},
    **{f"recipes: {name}": case for name, case in RECIPES.items()},
    **{f"servers: {name}": case for name, case in SERVERS.items()},
}
