"""Values that no command can run with, all reported at once. Types are the schema's business already."""

import math
import re
from collections.abc import Callable
from functools import reduce
from typing import Any
from urllib.parse import urlsplit

from alora.config.elsewhere import REFUSED_VALUES
from alora.config.extremes import extremes
from alora.config.schema import Recipe
from alora.config.secrets import redacted
from alora.errors import ConfigError

CHOICES: dict[str, tuple[str, ...]] = {
    "training.prefix_cache": ("off", "memory", "disk"),
    "training.engine": ("alora", "trl"),
    "tracking.kind": ("none", "wandb", "tensorboard"),
    "base.dtype": ("auto", "float32", "bfloat16", "float64"),
    "base.weights": ("pretrained", "random"),
    "base.quantization": ("none", "nf4"),
    "adapter.kind": ("alora", "lora"),
    "prompt.layout": ("transcript", "turns"),
    "prompt.instruction": ("none", "title", "rule"),
    "prompt.truncation": ("middle", "start"),
    "serving.scorer": ("vllm", "packed"),
    "evaluation.target": ("f1", "fpr", "recall", "cost"),
    "bench.workload": ("serving", "training", "compare"),
    "bench.serving.engine": ("auto", "vllm", "scorer"),
    "bench.shape": ("toy", "mini", "27m", "smollm2", "qwen3_0_6b", "qwen3_4b"),
}
ARMS = ("alora", "lora", "prompt", "judge", "probe", "bag_of_words")
FIGURES = ("accuracy", "balanced_accuracy", "f1", "precision", "recall", "auroc", "auprc", "recall_at_1_fpr",
           "recall_at_5_fpr")  # fmt: skip
SCHEDULERS = (
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
)

_Rule = tuple[Callable[[Any], bool], str]
_positive: _Rule = (lambda value: value > 0, "more than 0")
_finite: _Rule = (lambda value: 0 < value < math.inf, "more than 0, and finite")
_not_negative: _Rule = (lambda value: value >= 0, "0 or more")
_share: _Rule = (lambda value: 0 < value < 1, "between 0 and 1, both excluded")
_at_least_one: _Rule = (lambda value: value >= 1, "1 or more")
_threads: _Rule = (lambda value: 1 <= value <= 1024, "between 1 and 1024")
_room_for_invocation: _Rule = (lambda value: value >= 4, "4 or more, to hold the invocation tokens and one more")

RANGES: dict[str, _Rule] = {
    "adapter.rank": _at_least_one,
    "adapter.alpha": _positive,
    "data.validation_share": _share,
    "prompt.max_prefix_tokens": _at_least_one,
    "training.epochs": _positive,
    "training.max_steps": (lambda value: value == -1 or value >= 1, "-1 (no limit) or 1 and more"),
    "training.batch_size": _at_least_one,
    "training.gradient_accumulation_steps": _at_least_one,
    "training.learning_rate": _positive,
    "training.weight_decay": _not_negative,
    "training.warmup_ratio": (lambda value: 0 <= value <= 1, "between 0 and 1"),
    "training.max_grad_norm": _not_negative,
    "training.seed": (lambda value: 0 <= value < 2**32, "between 0 and 4294967295"),
    "training.evaluations_per_epoch": _at_least_one,
    "training.early_stopping_patience": _not_negative,
    "training.max_suffix_tokens": _at_least_one,
    "training.prefix_cache_bytes": _not_negative,
    "training.threads": _threads,
    "tracking.every": _at_least_one,
    "evaluation.target_value": _share,
    "evaluation.bootstrap": _not_negative,
    "evaluation.false_positive_cost": _positive,
    "evaluation.false_negative_cost": _positive,
    "compare.rows": _at_least_one,
    "compare.alora_learning_rate": _positive,
    "compare.lora_learning_rate": _positive,
    "judge.timeout": _positive,
    "judge.retries": _not_negative,
    "judge.concurrency": _at_least_one,
    "judge.max_tokens": _at_least_one,
    "judge.max_characters": _at_least_one,
    "judge.input_price": _not_negative,
    "judge.output_price": _not_negative,
    "fleet.tolerance": (lambda value: 0 <= value < 1, "from 0 to below 1"),
    "identity.conversations": _at_least_one,
    "serving.port": (lambda value: 1 <= value <= 65535, "between 1 and 65535"),
    "serving.max_loras": _at_least_one,
    "serving.max_model_len": _at_least_one,
    "serving.room": _not_negative,
    "export.golden_rows": _not_negative,
    "bench.rank": _at_least_one,
    "bench.suffix": _room_for_invocation,
    "bench.rounds": _at_least_one,
    "bench.limit_s": _finite,
    "bench.seed": (lambda value: 0 <= value < 2**32, "between 0 and 4294967295"),
    "bench.threads": _threads,
    "bench.serving.lora_tokens": _at_least_one,
    "bench.serving.step_tokens": _at_least_one,
    "bench.serving.turns": _at_least_one,
    "bench.serving.load_tokens": _at_least_one,
    "bench.serving.target_ms": _finite,
    "bench.serving.conversations": _at_least_one,
}
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_NAME = re.compile(r"[^/\\\0]+")


def check_recipe(recipe: Recipe, verb: str) -> None:
    """Check every value, and that ``verb`` has the settings that it cannot do without.

    Raises:
        ConfigError: with one line per problem.
    """
    problems = [
        *extremes(recipe),
        *_choices(recipe),
        *_ranges(recipe),
        *_texts(recipe),
        *_training(recipe),
        *_bench(recipe),
    ]
    problems += [*_compare(recipe), *_engine(recipe, verb), *_needs(recipe, verb)]
    if problems:
        raise ConfigError("\n".join(problems))


def _choices(recipe: Recipe) -> list[str]:
    problems = [
        f"{key} is {value!r}; {REFUSED_VALUES.get((key, value)) or 'choose one of ' + ', '.join(allowed)}"
        for key, allowed in CHOICES.items()
        if (value := _get(recipe, key)) is not None and value not in allowed
    ]
    if recipe.training.scheduler not in SCHEDULERS:
        problems.append(f"training.scheduler is {recipe.training.scheduler!r}; choose one of {', '.join(SCHEDULERS)}")
    if [item for item in recipe.identity.dtypes if item not in ("float32", "bfloat16", "float64")]:
        problems.append(f"identity.dtypes is {recipe.identity.dtypes}; list float32, bfloat16 or float64")
    return problems


def _ranges(recipe: Recipe) -> list[str]:
    problems = []
    for key, (holds, wanted) in RANGES.items():
        value = _get(recipe, key)
        if value is not None and not holds(value):
            problems.append(f"{key} is {value}; it must be {wanted}")
    return problems


def _texts(recipe: Recipe) -> list[str]:
    problems = []
    if recipe.name in (".", "..") or not recipe.name.strip() or not _NAME.fullmatch(recipe.name):
        problems.append(f"name is {recipe.name!r}; it names a folder, so give it letters and no slash")
    if len(recipe.name.encode("utf-8", "surrogatepass")) > 200:
        problems.append(f"name is {recipe.name[:40]!r}...; it names a folder, so give it 200 letters at most")
    if not _DEVICE.fullmatch(recipe.base.device):
        problems.append(f"base.device is {recipe.base.device!r}; give auto, cpu, cuda or cuda:N")
    if not recipe.adapter.targets or len(set(recipe.adapter.targets)) != len(recipe.adapter.targets):
        problems.append(f"adapter.targets is {recipe.adapter.targets}; list each module to adapt once, at least one")
    if recipe.policy.file is not None and recipe.policy.rule is not None:
        problems.append("policy.file and an inline policy are both given; set policy.file=null, or drop the inline one")
    for key in ("base.source", "policy.file", "data.train", "artifact", "run_dir"):
        if _get(recipe, key) == "":
            problems.append(f"{key} is empty; give a value, or {key}=null for none")
    for label, word in recipe.policy.labels.items():
        if word in ("True", "False"):
            problems.append(
                f"policy.labels.{label} is {word!r}: YAML reads a bare Yes or No as a boolean; put the word in quotes"
            )
    return problems


def _engine(recipe: Recipe, verb: str) -> list[str]:
    remote = _is_server(recipe.engine)
    if remote and verb != "score":
        return [f"engine is {recipe.engine!r}, but only alora score asks a server; choose transformers or vllm"]
    if remote or recipe.engine in ("transformers", "vllm"):
        return []
    return [f"engine is {recipe.engine!r}; choose one of transformers, vllm, or for alora score http://HOST:PORT"]


def _training(recipe: Recipe) -> list[str]:
    problems = []
    if recipe.training.engine == "trl" and recipe.adapter.kind != "lora":
        problems.append(
            f"training.engine=trl with adapter.kind={recipe.adapter.kind}: SFTTrainer passes no activation index on, "
            "so an aLoRA would be searched for in every row, and one that is not found trains nothing without a word; "
            "train it with training.engine=alora, or choose adapter=lora"
        )
    if recipe.tracking.mode not in (None, "online", "offline"):
        problems.append(f"tracking.mode is {recipe.tracking.mode!r}; choose online or offline")
    return problems


def _bench(recipe: Recipe) -> list[str]:
    settings, serving, problems = recipe.bench, recipe.bench.serving, []
    for key, values in (
        ("prefixes", settings.prefixes),
        ("policies", settings.policies),
        ("serving.populations", serving.populations),
    ):
        if not values or min(values) < 1 or len(set(values)) != len(values):
            problems.append(f"bench.{key} is {list(values)}; list different numbers of 1 or more")
    for key, values, known in (
        ("baselines", settings.baselines, ("peft", "trainer", "trl")),
        ("serving.workloads", serving.workloads, ("grid", "warm", "conversation", "open_loop")),
        ("serving.systems", serving.systems, ("lora", "alora", "base", "reader", "packed")),
    ):
        if not values or any(name not in known for name in values) or len(set(values)) != len(values):
            problems.append(f"bench.{key} is {list(values)}; list some of {', '.join(known)}")
    if not settings.targets:
        problems.append("bench.targets is empty; list modules to adapt, such as q_proj")
    return problems


def _compare(recipe: Recipe) -> list[str]:
    settings, judge, problems = recipe.compare, recipe.judge, []
    if not settings.arms or any(arm not in ARMS for arm in settings.arms):
        problems.append(f"compare.arms is {list(settings.arms)}; list some of {', '.join(ARMS)}")
    for key, smallest in (("seeds", 0), ("ranks", 1)):
        values = getattr(settings, key)
        if len(set(values)) != len(values) or any(value < smallest for value in values):
            problems.append(f"compare.{key} is {list(values)}; list different numbers of {smallest} or more")
    if not settings.seeds:
        problems.append("compare.seeds is empty; list at least one")
    if judge.url is None and "judge" in settings.arms:
        problems.append("compare.arms holds judge, but no endpoint is given; add judge.url=https://HOST/v1")
    if judge.url is not None and not _is_server(judge.url):
        problems.append(f"judge.url is {redacted(judge.url)!r}; give it as https://HOST/v1")
    if judge.url is not None and not judge.model:
        problems.append("judge.url is given, but no judge.model=NAME for it to run")
    if not recipe.fleet.figures or any(name not in FIGURES for name in recipe.fleet.figures):
        problems.append(f"fleet.figures is {list(recipe.fleet.figures)}; list some of {', '.join(FIGURES)}")
    return problems


def _is_server(url: str) -> bool:
    """Whether ``url`` can be asked at all: HTTP, a host, and no port that cannot be."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number or above 65535, half an IPv6 address
        return False
    return usable and url.isprintable() and " " not in url


def _needs(recipe: Recipe, verb: str) -> list[str]:
    problems = []
    if verb == "bench" and recipe.bench.workload == "compare" and len(recipe.bench.runs) != 2:
        problems.append("alora bench compare needs two runs: alora bench compare one/bench.json other/bench.json")
    if verb == "train" and recipe.output is not None:
        problems.append("output= has no effect on train; a run lies in run_dir=")
    if verb == "compare" and recipe.training.engine == "trl":
        problems.append(
            "training.engine=trl has no effect on compare, whose arms see the same batches by the same loss; train "
            "TRL's own LoRA by alora train adapter=lora training.engine=trl"
        )
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


def _get(recipe: Recipe, key: str) -> Any:
    return reduce(getattr, key.split("."), recipe)
