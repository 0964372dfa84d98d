"""What a verb needs, and settings that do not go together. A setting's own values stand on its line of the schema."""

from collections.abc import Sequence
from dataclasses import is_dataclass
from functools import reduce

from alora.config.schema import Recipe
from alora.config.setting import is_server, settings_of
from alora.errors import ConfigError


def check_recipe(recipe: Recipe, verb: str) -> None:
    """Check every value, and that ``verb`` has the settings that it cannot do without.

    Raises:
        ConfigError: with one line per problem.
    """
    require_possible(recipe, _needs(recipe, verb))


def require_possible(recipe: Recipe, more: Sequence[str] = ()) -> None:
    """Check every value, whatever the verb; ``more`` are problems that are known already.

    Raises:
        ConfigError: with one line per problem.
    """
    problems = [*_limit_problems(recipe), *_policy(recipe), *_training(recipe), *_compare(recipe), *more]
    if problems:
        raise ConfigError("\n".join(problems))


def _limit_problems(recipe: Recipe) -> list[str]:
    """One line for each value beyond what its own line of the schema allows."""
    found = [
        limits.problem(key, reduce(getattr, key.split("."), recipe))
        for key, kind, limits in settings_of(Recipe)
        if not is_dataclass(kind)
    ]
    return [problem for problem in found if problem is not None]


def _policy(recipe: Recipe) -> list[str]:
    problems = [
        f"policy.labels.{label} is {word!r}: YAML reads a bare Yes or No as a boolean; put the word in quotes"
        for label, word in recipe.policy.labels.items()
        if word in ("True", "False")
    ]
    if recipe.policy.file is not None and recipe.policy.rule is not None:
        problems.append("policy.file and an inline policy are both given; set policy.file=null, or drop the inline one")
    return problems


def _training(recipe: Recipe) -> list[str]:
    problems = []
    if recipe.training.engine == "trl" and recipe.adapter.kind != "lora":
        problems.append(
            f"training.engine=trl with adapter.kind={recipe.adapter.kind}: SFTTrainer passes no activation index on, "
            "so an aLoRA would be searched for in every row, and one that is not found trains nothing without a word; "
            "train it with training.engine=alora, or choose adapter=lora"
        )
    if recipe.training.engine == "trl" and recipe.training.class_weights != "none":
        problems.append("training.class_weights has no effect on training.engine=trl, whose loss is SFTTrainer's own")
    return problems


def _compare(recipe: Recipe) -> list[str]:
    settings, judge, problems = recipe.compare, recipe.judge, []
    if judge.url is None and "judge" in settings.arms:
        problems.append("compare.arms holds judge, but no endpoint is given; add judge.url=https://HOST/v1")
    if judge.url is not None and not judge.model:
        problems.append("judge.url is given, but no judge.model=NAME for it to run")
    return problems


def _needs(recipe: Recipe, verb: str) -> list[str]:
    problems = []
    if verb != "score" and is_server(recipe.engine):
        problems.append(f"engine is {recipe.engine!r}, but only alora score asks a server; choose transformers or vllm")
    scorer = recipe.serving.scorer
    if verb == "serve" and (scorer is None or (isinstance(scorer, list) and ("vllm" in scorer or "packed" in scorer))):
        problems.append("serving.scorer is vllm, packed, a server, or several: [http://HOST:PORT,http://OTHER:PORT]")
    if verb == "bench" and recipe.bench.workload == "compare" and len(recipe.bench.runs) != 2:
        problems.append("alora bench compare needs two runs: alora bench compare one/bench.json other/bench.json")
    if verb == "train" and recipe.output is not None:
        problems.append("output= has no effect on train; a run lies in run_dir=")
    if verb == "compare" and recipe.training.engine == "trl":
        problems.append(
            "training.engine=trl has no effect on compare, whose arms see the same batches by the same loss; train "
            "TRL's own LoRA by alora train adapter=lora training.engine=trl"
        )
    if verb in ("report", "label") and recipe.logs.verdicts is None:
        problems.append(f"alora {verb} needs verdicts=DIR: a folder or FILE.parquet that alora score wrote")
    if verb == "label" and (recipe.conversation is None or recipe.output is None):
        problems.append("alora label needs data=LOG, which was scored, and output=FILE.jsonl for the rows to label")
    if verb in ("train", "check", "compare"):
        if recipe.policy.file is None and recipe.policy.title is None:
            problems.append(
                "no policy is chosen; give policy.file=FILE.yaml, or policy.id, policy.title and policy.rule"
            )
        if recipe.data.train is None:
            problems.append("no training rows are given; give data.train=FILE.jsonl, or start from recipe=quickstart")
    if verb in ("validate", "evaluate", "export", "recalibrate", "fleet") and recipe.artifact is None:
        problems.append(f"alora {verb} needs artifact=DIR: a run folder, an adapter folder or a bundle")
    return problems
