"""Command lines, recipes and settings that no verb can take, and servers' addresses that lead nowhere."""

from tests.integration.bad_input.conftest import Case
from tests.integration.bad_input.test_data import lines

SCORE = "score artifact={place}/run {place}/talk.json"


def recipe(content: str | bytes, *words: str, verb: str = "train", name: str = "mine.yaml") -> Case:
    return Case(f"{verb} recipe={{here}}/{name}", [*words], files={name: content})


COMMAND_LINES = {
    "a word that is no setting": Case("train nonsense", ["nonsense"]),
    "no key": Case("train =3", ["=3"]),
    "a list without end": Case("train adapter.targets=[q_proj", ["adapter.targets"]),
    "a text without end": Case("train name='x", ["name"]),
    "a section for a value": Case("train training.epochs={{a:1}}", ["training.epochs"]),
    "a value for a section": Case("train training=null", ["training=null"]),
    "a list for a number": Case("train training.seed=[1,2]", ["training.seed"]),
    "a text for a list": Case("train adapter.targets=3", ["adapter.targets"]),
    "a word for a flag": Case("train strict=maybe", ["strict"]),
    "a sweep without -m": Case("train training.seed=1,2", ["training.seed"]),
    "a removal of what is not there": Case("train ~nonsense", ["nonsense"]),
    "a config folder that is not there": Case("train --config-dir={here}/none", ["none"]),
    "a flag that is not there": Case("train --nonsense", ["--nonsense"]),
    "a launcher that is not there": Case("train -m training.seed=1,2 hydra/launcher=none", ["hydra/launcher=none"]),
    "a name with a folder in it": Case("train name=a/b", ["name"]),
    "a dtype that is not there": Case("train base.dtype=float8", ["base.dtype"]),
    "a layout that is not there": Case("train prompt.layout=chat", ["prompt.layout"]),
    "a target that is not there": Case("train evaluation.target=auc", ["evaluation.target"]),
    "a share above one": Case("train data.validation_share=2", ["data.validation_share is 2"]),
    "a learning rate below zero": Case("train training.learning_rate=-1", ["training.learning_rate is -1"]),
    "a bootstrap below zero": Case("train evaluation.bootstrap=-1", ["evaluation.bootstrap is -1"]),
    "no threads": Case("train training.threads=-1", ["training.threads is -1"]),
    "no number": Case("train training.learning_rate=nan", ["training.learning_rate is nan"]),
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
    "not UTF-8": recipe(b"name: \xff", "mine.yaml"),
    "a list": recipe("- name: x\n", "mine.yaml: a recipe is a YAML mapping"),
    "a text": recipe("hello\n", "mine.yaml: a recipe is a YAML mapping"),
    "an unknown key": recipe("nonsense: 3\n", "nonsense"),
    "an unknown key below": recipe("training: {epcohs: 3}\n", "epcohs"),
    "a wrong type": recipe("training: {epochs: many}\n", "training.epochs"),
    "a list for a section": recipe("training: [1]\n", "training"),
    "a default that is not there": recipe("defaults: [{training: none}]\n", "training"),
    "a tag of Python": recipe("name: !!python/object/apply:os.getcwd []\n", "mine.yaml"),
}

SERVERS = {
    name: Case(f"{SCORE} scorer={engine}", words)
    for name, (engine, words) in {
        "a port above all": ("http://127.0.0.1:99999", ["scorer is 'http://127.0.0.1:99999'", "http://HOST:PORT"]),
        "a port of letters": ("http://127.0.0.1:port", ["scorer is 'http://127.0.0.1:port'"]),
        "port zero": ("http://127.0.0.1:0", ["scorer is 'http://127.0.0.1:0'"]),
        "half an address": ("http://[::1", ["scorer", "http://[::1"]),
        "no host": ("http://", ["scorer is 'http://'"]),
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
    "a learning rate without end": Case("train training.learning_rate=inf", ["training.learning_rate is inf"]),
    "a learning rate beyond numbers": Case("train training.learning_rate=1e999", ["training.learning_rate is inf"]),
    "a batch of 10^20": Case("train training.batch_size=100000000000000000000", ["training.batch_size"]),
    "a section removed": Case("train ~training", ["training"]),
    "an interpolation of nothing": Case("train run_dir=${{nope}}", ["run_dir"]),
    "a run's name of 300 letters": Case("train name=" + "x" * 300, ["name"]),
    "a policy's id of 300 letters": Case(
        "train policy.file={here}/p.yaml", ["p.yaml"], files={"p.yaml": "id: " + "x" * 300}
    ),
    "rows that cannot be read": Case(
        "train data.train={here}/rows.jsonl",
        ["rows.jsonl"],
        damage=lambda here: (here / "rows.jsonl").symlink_to("/proc/self/mem"),
    ),
    "a lone surrogate in an id": Case(
        "train data.train={here}/rows.jsonl",
        ["rows.jsonl:9"],
        files={"rows.jsonl": lines('{"id": "\\ud800", "messages": [{"role": "user", "content": "a"}], "label": "ok"}')},
    ),
    "findings, strictly": Case(
        "check strict=true data.validation={place}/train.jsonl", exit_code=1, result=["warning: ", "not ready to train"]
    ),
    "a report over the bundle": Case(
        "evaluate artifact={here}/bundle base.source={place}/base data.test={place}/test.jsonl "
        "output={here}/bundle/alora.json",
        ["alora.json"],
        copied="run/bundle",
    ),
    "a report over the conversation": Case(
        "score artifact={place}/run {here}/talk.json output={here}/talk.json",
        ["talk.json"],
        files={"talk.json": '{"messages": [{"role": "user", "content": "red"}]}'},
    ),
    "a run in a user's folder": Case(
        "train run_dir={here}/mine", ["mine"], files={"mine/inputs.json": "{}", "mine/policies/thesis.txt": "years"}
    ),
    "a bundle's card that leads out": Case(
        f"{SCORE.replace('{place}/run', '{here}/bundle')} base.source={{place}}/base",
        ["README.md"],
        copied="run/bundle",
        damage=lambda bundle: ((bundle / "README.md").unlink(), (bundle / "README.md").symlink_to("/etc/hostname")),
    ),
    "a recipe that calls": recipe(
        "hydra: {callbacks: {mine: {_target_: pathlib.Path.touch, self: made}}}\n", "mine.yaml:1"
    ),
    "a recipe that reads the environment": recipe("name: ${oc.env:HOME}\n", "mine.yaml:1"),
    "a recipe in a package of Hydra's": recipe("# @package data\ntrain: x\n", "mine.yaml"),
    "a recipe that leads to itself": Case(
        "train recipe={here}/loop.yaml", ["loop.yaml"], damage=lambda here: (here / "loop.yaml").symlink_to("loop.yaml")
    ),
}


CASES = {
    **OTHERS,
    **{f"command lines: {name}": case for name, case in COMMAND_LINES.items()},
    **{f"recipes: {name}": case for name, case in RECIPES.items()},
    **{f"servers: {name}": case for name, case in SERVERS.items()},
}
