"""What a verb needs, and settings that do not go together. A setting's own values stand on its line of the schema."""

from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import reduce

from alora.config.paths import POLICY_PLACE
from alora.config.schema import ROLES, ColumnSettings, EvaluationSettings, Recipe
from alora.config.setting import is_server, settings_of
from alora.errors import ConfigError


def check_recipe(recipe: Recipe, verb: str | None = None) -> None:
    """Refuse values beyond their line of the schema, settings that do not go together, and, where there is a ``verb``,
    the lack of what it cannot do without: one line per problem."""
    values = ((limits, key) for key, kind, limits in settings_of(Recipe) if not is_dataclass(kind))
    beyond = (limits.problem(key, reduce(getattr, key.split("."), recipe)) for limits, key in values)
    needed = () if verb is None else _needs(recipe, verb)
    if problems := [*filter(None, beyond), *_conflicts(recipe), *needed]:
        raise ConfigError("\n".join(problems))


def _conflicts(recipe: Recipe) -> Iterator[str]:
    """One line for each pair of settings of which one has no effect, or a wrong one."""
    for label, word in recipe.policy.labels.items():
        if word in ("True", "False"):
            yield f"policy.labels.{label} is {word!r}: YAML reads a bare Yes or No as a boolean; put the word in quotes"
    if recipe.policy.file is not None and recipe.policy.rule is not None:
        yield "policy.file and an inline policy are both given; set policy.file=null, or drop the inline one"
    if recipe.training.engine == "trl" and recipe.adapter.kind != "lora":
        yield (
            f"training.engine=trl with adapter.kind={recipe.adapter.kind}: SFTTrainer passes no activation index on, "
            "so an aLoRA would be searched for in every row, and one that is not found trains nothing without a word; "
            "train it with training.engine=alora, or choose adapter=lora"
        )
    if recipe.evaluation.target is not None:
        yield from of_another_target(recipe.evaluation, recipe.evaluation.target)
    columns = recipe.data.columns
    if POLICY_PLACE in columns.label and columns.labels != ColumnSettings.labels:
        yield (
            f"data.columns.label={columns.label} names a column for each policy, so data.columns.labels="
            f"{columns.labels} would not be read; give one of them"
        )
    for name, role in recipe.data.role_map.items():
        if role not in ROLES:
            yield f"data.role_map: {name!r} is {role!r}, which is no role; choose one of {', '.join(ROLES)}"
        elif name in ROLES and name != role:
            yield f"data.role_map: {name!r} is a role and stays one, not {role!r}; rename it in the rows"
    weights, train = recipe.data.weights, recipe.data.train
    for key, value in (("training.engine", recipe.training.engine), ("prompt.truncation", recipe.prompt.truncation)):
        if value in ("trl", "windows") and (recipe.data.folds or 1) > 1:
            yield f"data.folds={recipe.data.folds} has no effect with {key}={value}; leave it out"
    for key, given in (("training.class_weights", recipe.training.class_weights != "none"), ("data.weights", weights)):
        if recipe.training.engine == "trl" and given:
            yield f"{key} has no effect on training.engine=trl, whose loss is SFTTrainer's own"
    sources = [train] if isinstance(train, str) else train or []
    if weights and len(weights) != len(sources):
        yield f"data.weights has {len(weights)} numbers, and data.train {len(sources)} sources; give one for each"
    if recipe.judge.url is None and "judge" in recipe.compare.arms:
        yield "compare.arms holds judge, but no endpoint is given; add judge.url=https://HOST/v1"
    if recipe.judge.url is not None and not recipe.judge.model:
        yield "judge.url is given, but no judge.model=NAME for it to run"


def _needs(recipe: Recipe, verb: str) -> Iterator[str]:
    """One line for each setting that ``verb`` lacks, or can do nothing with."""
    if verb != "score" and is_server(recipe.scorer):
        yield f"scorer is {recipe.scorer!r}, but only alora score asks a server; choose packed or vllm"
    if verb == "compare" and recipe.training.engine == "trl":
        yield (
            "training.engine=trl has no effect on compare, whose arms see the same batches by the same loss; train "
            "TRL's own LoRA by alora train adapter=lora training.engine=trl"
        )
    if verb in ("report", "label") and recipe.logs.verdicts is None:
        yield f"alora {verb} needs verdicts=DIR: a folder or FILE.parquet that alora score wrote"
    if verb == "label" and (recipe.conversation is None or recipe.output is None):
        yield "alora label needs data=LOG, which was scored, and output=FILE.jsonl for the rows to label"
    if verb in ("train", "compare", "check") and recipe.evaluation.target is None:
        yield from of_another_target(recipe.evaluation, "f1")
    if verb in ("train", "check", "compare"):
        one = [name for name in ("id", "title", "rule", "labels") if getattr(recipe.policy, name)]
        if recipe.policies and recipe.policy.file is not None and one:
            yield (
                f"policy.{', policy.'.join(one)} is of one policy, and policies=[{','.join(recipe.policies)}] takes "
                "those of policy.file as they are; leave one of the two out (policies=[]: one policy)"
            )
        if recipe.policy.file is None and recipe.policy.title is None:
            yield "no policy is chosen; run it where your recipe.yaml lies, or give recipe=FILE or policy.file=FILE"
        if recipe.data.train is None:
            yield "no training rows are given; give data.train=FILE.jsonl, or start from recipe=quickstart"
    if verb in ("validate", "evaluate", "export", "recalibrate", "fleet") and recipe.artifact is None:
        yield f"alora {verb} needs artifact=DIR: a run folder, an adapter folder, a bundle or a battery"


def of_another_target(settings: EvaluationSettings, target: str) -> Iterator[str]:
    """One line for each setting that the target of the operating point does not use."""
    uses = {"target_value": ("fpr", "recall"), "false_positive_cost": ("cost",), "false_negative_cost": ("cost",)}
    for name, targets in uses.items():
        value = getattr(settings, name)
        if value is not None and target not in targets:
            wanted = " or ".join(f"evaluation.target={one}" for one in targets)
            yield f"evaluation.{name}={value:g} has no effect on target={target}; add {wanted}, or make it null"
