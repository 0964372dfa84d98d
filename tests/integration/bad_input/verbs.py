"""Command lines, recipes and settings that no verb can take, and servers' addresses that lead nowhere."""

from tests.integration.bad_input.conftest import Case

SCORE = "score artifact={place}/run {place}/talk.json"


def recipe(content: str | bytes) -> Case:
    return Case("train recipe={here}/mine.yaml", files={"mine.yaml": content})


COMMAND_LINES = {
    "a word that is no setting": Case("train nonsense"),
    "a value for a section": Case("train training=null"),
    "a word for a flag": Case("train strict=maybe"),
    "a sweep without -m": Case("train training.seed=1,2"),
    "a removal of what is not there": Case("train ~nonsense"),
    "a config folder that is not there": Case("train --config-dir={here}/none"),
    "a flag that is not there": Case("train --nonsense"),
    "a launcher that is not there": Case("train -m training.seed=1,2 hydra/launcher=none"),
    "a name with a folder in it": Case("train name=a/b"),
    "a battery that is none": Case("fleet battery={place}/base data.test={place}/test.jsonl"),
    "a battery that is not there": Case("fleet battery={here}/none data.test={place}/test.jsonl"),
    "a battery for a server that is not there": Case("serve battery={here}/none"),
    "no battery for a server": Case("serve"),
    "an export of nothing": Case("export"),
    "an export of a bundle to nowhere": Case("export artifact={place}/run/bundle"),
    "a validation of nothing": Case("validate"),
    "an evaluation of nothing": Case("evaluate"),
    "an evaluation of an adapter without rows": Case(
        "evaluate artifact={here}/adapter base.source={place}/base policy.file={place}/policy.yaml",
        copied="run/adapter",
    ),
    "an adapter of no policy": Case(
        "evaluate artifact={here}/adapter base.source={place}/base data.test={place}/test.jsonl",
        copied="run/adapter",
    ),
    "a recalibration of nothing": Case("recalibrate data.validation={place}/test.jsonl"),
    "a recalibration without rows": Case(
        "recalibrate artifact={here}/bundle base.source={place}/base", copied="run/bundle"
    ),
    "a benchmark that is not there": Case("bench nonsense"),
    "a comparison without rows": Case("compare base.source={place}/base policy.file={place}/policy.yaml"),
    "a scaffold without a name": Case("new"),
    "a scaffold named as nothing can be": Case("new ../up"),
}

RECIPES = {
    "not there": Case("train recipe={here}/none.yaml"),
    "a folder": Case("train recipe={here}/dir.yaml", files={"dir.yaml/inside": ""}),
    "not YAML": recipe("name: ["),
    "a list": recipe("- name: x\n"),
    "an unknown key": recipe("nonsense: 3\n"),
    "a default that is not there": recipe("defaults: [{training: none}]\n"),
}

SERVERS = {
    "a port above all": Case(f"{SCORE} scorer=http://127.0.0.1:99999"),
    "another protocol": Case(f"{SCORE} scorer=ftp://127.0.0.1"),
    "nobody listening": Case(f"{SCORE} scorer=http://127.0.0.1:9"),
    "a judge's port above all": Case("compare recipe=quickstart judge.model=m judge.url=http://127.0.0.1:99999/v1"),
}

OTHERS = {
    "a section removed": Case("train ~training"),
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
