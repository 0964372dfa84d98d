"""The one typed schema: every key that a recipe, a config group or an override may set.

Plain dataclasses with no import of Hydra, so any layer may take its own section as an argument. They stay unfrozen
because Hydra turns frozen dataclasses into read-only configs. A value of None means "decided from the other settings",
and the meaning says how. :mod:`alora.config.setting` says what stands behind a default.
"""

import re
from dataclasses import dataclass
from typing import Any

from alora.config.setting import is_scorer, is_server, names_a_folder, section, setting

# The dictionaries whose keys are the user's own; every other key of a recipe is a field below.
OPEN_DICTIONARIES = ("data.label_map", "data.role_map", "policy.labels", "base.template_kwargs")

ROLES = ("system", "user", "assistant", "tool")  # of a turn
FORMATS = ("responses", "anthropic", "sharegpt", "prompt_completion", "openai", "columns", "transcript", "text")
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
MOST_RANK = 512  # the largest that vLLM serves
ALL_LINEAR = "all-linear"  # as PEFT has it: every linear layer but the output layer
DTYPES = ("float32", "bfloat16", "float64")
SCHEDULERS = ("linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup",
              "inverse_sqrt")  # fmt: skip
ARMS = ("alora", "alora_cleaned", "lora", "prompt", "judge", "encoder", "encoder_frozen", "probe", "bag_of_words")
FIGURES = ("accuracy", "balanced_accuracy", "f1", "precision", "recall", "auroc", "auprc", "recall_at_1_fpr",
           "recall_at_5_fpr")  # fmt: skip
WORKLOADS = ("grid", "warm", "conversation", "open_loop")
SYSTEMS = ("lora", "alora", "base", "reader", "packed")
BASELINES = ("peft", "peft_batch", "peft_lora", "peft_lora_batch", "trl")
SHAPES = ("toy", "mini", "27m", "smollm2", "qwen3_0_6b", "qwen3_4b")
DEVICES = ("cpu", "l4", "a100_80gb", "l40s", "h100", "h200", "b200")
TRACKERS = ("none", "tensorboard", "wandb", "mlflow", "trackio")
_CARD_WORD = (re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*").fullmatch, "letters, digits, '.' and '-'")
_SOURCES = (bool, "a file, hub:NAME, or a list such as [a.jsonl,b.csv]")
_QUANTIZED = {
    "gptq": "PEFT silently trains a plain LoRA on GPTQ layers; use the bf16 base",
    "hqq": "PEFT silently trains a plain LoRA on HQQ layers; use the bf16 base",
    "awq": "its kernels give no gradient that alora has checked; use the bf16 base",
}
# The verbs that read an input, which must be there when it is named.
_TRAINING = ("check", "train", "compare")
_FITTING = ("train", "compare", "recalibrate")
OF_ARTIFACT = ("validate", "evaluate", "export", "recalibrate", "fleet", "score", "serve")
_LABELLED = ("evaluate", "recalibrate", "fleet", "validate", "generate")
_WITH_LABELS = (*_TRAINING, *_LABELLED)
_WITH_POLICY = (*_TRAINING, "generate", "validate", "evaluate", "export")
_PRINTING = ("check", "generate", *(verb for verb in OF_ARTIFACT if verb != "serve"), "plan", "bench", "doctor")


@dataclass
class BaseSettings:
    """The frozen language model under every adapter."""

    source: str | None = setting(None, "hub id, folder, FILE.gguf; null: the artifact's own, else smollm2", some=True)
    revision: str | None = setting(None, "branch, tag or commit on the hub")
    dtype: str = setting("auto", "auto: float32 on CPU, bfloat16 on GPU", choices=("auto", *DTYPES))
    device: str = setting("auto", "", form=(re.compile(r"auto|cpu|cuda(:\d+)?").fullmatch, "auto, cpu, cuda or cuda:N"))
    weights: str = setting("pretrained", "random: the shape alone, for benchmarks", choices=("pretrained", "random"))
    quantization: str | None = setting(None, "nf4: 4 bits; null: the artifact's own", choices=("none", "nf4"),
                                       refused=_QUANTIZED)  # fmt: skip
    trust_remote_code: bool = setting(False, "run the base's own Python", in_files=(False,))
    chat_template: str | None = setting(
        None, "plain or a Jinja FILE, for a base without a template; null: its own, or the artifact's",
        read_by=(*_TRAINING, *OF_ARTIFACT), some=True,
    )  # fmt: skip
    template_kwargs: dict[str, bool] = setting({}, "passed to the chat template (enable_thinking)")


@dataclass
class AdapterSettings:
    """Shape of one LoRA adapter."""

    kind: str = setting("alora", "lora: from token 0, the baseline", choices=("alora", "lora"))
    rank: int = setting(16, "of the two factors A and B", least=1, most=MOST_RANK)
    alpha: float | None = setting(None, "null: twice the rank", above=0)
    targets: list[str] = setting(
        TARGETS, "all-linear: every linear layer but the output layer", some=True, distinct=True
    )


@dataclass
class PolicySettings:
    """One policy: inline, or read from ``file`` (``id`` then selects one of several)."""

    file: str | None = setting(None, "YAML with id, title, rule, labels",
                             read_by=(*_TRAINING, "evaluate", "generate"), some=True, of=_WITH_POLICY)  # fmt: skip
    id: str | None = setting(None, "which policy of the file, or the inline policy's own")
    title: str | None = setting(None, "a few words, for people and reports")
    rule: str | None = setting(None, "what is and is not allowed")
    labels: dict[str, str] = setting({}, "label → answer word, positive first; empty: violation/ok")
    judge: str | None = setting(
        None, "null: what the file says, or the conversation",
        choices=("conversation", "last_turn"),
    )  # fmt: skip


@dataclass
class ColumnSettings:
    """Names of columns."""

    messages: str = setting("messages", "messages, or texts such as prompt,response; usual names are detected")
    label: str = setting("label", "%policy% in it: a column for each policy")
    labels: str = setting("labels", "of several: {policy: label}")
    id: str = setting("id", "names a row in reports")
    group: str | None = setting(None, "rows with one value (customer, thread) stay on one side of a split")
    split: str | None = setting(None, "train, validation or test: each takes its own rows of a file",
                                of=(*_WITH_LABELS,))  # fmt: skip
    time: str | None = setting(None, "kept next to the verdicts, for rates over time", of=("score", "report", "label"))


@dataclass
class DataSettings:
    """Labelled conversations: files, ``hub:NAME[:SPLIT]`` data sets, or a list of them."""

    train: Any = setting(
        None, "`generate` (alora train): from the policy's text, by judge.model",
        read_by=_TRAINING, some=True, form=_SOURCES, of=(*_TRAINING, "evaluate", "recalibrate"),
    )  # fmt: skip
    validation: Any = setting(
        None, "null: a share of data.train", read_by=(*_TRAINING, "generate", "recalibrate"), form=_SOURCES
    )
    test: Any = setting(
        None, "measured on, never fitted to",
        read_by=(*_TRAINING, "evaluate", "fleet", "generate"), form=_SOURCES,
        of=(*_TRAINING, "evaluate", "fleet", "generate", "validate"),
    )  # fmt: skip
    weights: list[float] = setting([], "of the loss, one for each source in data.train",
                                   above=0, most=1e6, of=_TRAINING)  # fmt: skip
    folds: int | None = setting(
        None, "held out in turn to calibrate by; null: 5 below 150 rows, 3 below 600, else 1 (one split)",
        least=1, most=10, of=_TRAINING,
    )  # fmt: skip
    validation_share: float = setting(0.15, "of each label, where there are no folds", above=0,
                                      below=1, of=(*_TRAINING, "generate"))  # fmt: skip
    format: str | None = setting(None, "null: recognised by the first 50 rows of each file",
                                 choices=FORMATS)  # fmt: skip
    label_map: dict[str, str] = setting({}, 'label in the data → label of the policy; "*": every other value',
                                        of=_WITH_LABELS)  # fmt: skip
    label_turn: str = setting("none", "last: the last turn is the label",
                              choices=("none", "last"), of=_WITH_LABELS)  # fmt: skip
    unlabelled: str = setting("refuse", "rows without a label (blank, N/A, nan, None)", choices=("refuse", "leave_out"),
                              of=_WITH_LABELS)  # fmt: skip
    role_map: dict[str, str] = setting({}, 'speaker in the data → role, beyond the usual names; "*": any other')
    reasoning: str = setting("leave_out", "of the assistant, in <think> tags, fields or blocks",
                             choices=("leave_out", "read", "refuse"))  # fmt: skip
    system: str = setting("read", "system turns, in what is judged", choices=("read", "leave_out"))
    skip_media: bool = setting(False, "leave out images, audio, files and unknown keys; false: refuse the row")
    skip_empty: bool = setting(False, "leave out rows without text; false: refuse them",
                               of=_WITH_LABELS)  # fmt: skip
    noise: bool = setting(False, "list doubtful labels, by words and judge.url", of=("check",))
    columns: ColumnSettings = section(ColumnSettings)


@dataclass
class PromptSettings:
    """How a conversation and a policy become token ids."""

    layout: str = setting("transcript", "turns: the chat template's own roles", choices=("transcript", "turns"))
    instruction: str = setting("none", "what a suffix spells out of the policy", choices=("none", "title", "rule"))
    max_prefix_tokens: int = setting(4096, "longer conversations are cut", least=1)
    truncation: str = setting("middle", "what a longer conversation loses; windows: nothing, scored in parts",
                              choices=("middle", "start", "windows"))  # fmt: skip


@dataclass
class TrainingSettings:
    """The optimisation; names follow ``transformers.TrainingArguments``."""

    epochs: float | None = setting(None, "null: as many as show a policy 1,200 rows, from 2 to 20", above=0)
    max_steps: int = setting(-1, "optimiser steps; above 0 it overrides epochs", least=1, also=(-1,))
    batch_size: int = setting(8, "rows of a policy in a step, before accumulation", least=1)
    gradient_accumulation_steps: int = setting(1, "batches in an optimiser step", least=1)
    learning_rate: float | None = setting(
        None, "null: 1.2e-3 at rank 16 and width 576, by width and rank", above=0, most=1e300
    )
    class_weights: str = setting("none", "balanced: the same total weight for each label (rare positives)",
                                 choices=("none", "balanced"))  # fmt: skip
    weight_decay: float = setting(0.0, "of AdamW", least=0)
    warmup_ratio: float = setting(0.05, "share of the steps", least=0, most=1)
    scheduler: str = setting("cosine", "of the learning rate", choices=SCHEDULERS)
    max_grad_norm: float = setting(1.0, "clips gradients; 0: never", least=0)
    seed: int = setting(0, "of the weights and of the rows' order", least=0, most=2**32 - 1,
                      of=("train", "compare", "generate"))  # fmt: skip
    evaluations_per_epoch: int = setting(1, "each writes a checkpoint", least=1)
    early_stopping_patience: int = setting(4, "evaluations without a better loss; 0: never", least=0)
    gradient_checkpointing: bool = setting(False, "of the suffixes, for less memory and more time")
    max_suffix_tokens: int = setting(2048, "of one packed pass: bounds memory", least=1)
    prefix_cache_bytes: int | None = setting(
        None, "of prefix KV kept across epochs; null: half of the free memory", least=0, most=2**62
    )
    threads: int | None = setting(None, "null: torch's own choice", least=1, most=1024)
    shard_base: bool = setting(False, "under torchrun: a part of the base in each process (FSDP2)")
    engine: str = setting("alora", "trl: a standard LoRA by TRL's SFTTrainer", choices=("alora", "trl"))


@dataclass
class TrackingSettings:
    """Where else a run's figures go; nothing is sent unless ``kind`` asks for it."""

    kind: str = setting("none", "", choices=TRACKERS)
    every: int = setting(1, "optimiser steps between recorded training losses", least=1)
    project: str = setting("alora", "wandb, mlflow (its experiment), trackio")
    entity: str | None = setting(None, "wandb: team or account; null: the one logged in")
    group: str | None = setting(None, "wandb, mlflow: runs shown together; null: the recipe's name")
    tags: list[str] = setting([], "wandb, mlflow")
    mode: str | None = setting(None, "wandb; null: what WANDB_MODE says, else online", choices=("online", "offline"))


@dataclass
class EvaluationSettings:
    """Metrics and the operating point."""

    target: str | None = setting(None, "null: f1, or the bundle's own", choices=("f1", "fpr", "recall", "cost"),
                                 of=_FITTING)  # fmt: skip
    target_value: float | None = setting(None, "rate; null: fpr 0.01, recall 0.95", above=0, below=1, of=_FITTING)
    false_positive_cost: float | None = setting(None, "target=cost: of a false positive; null: 1", above=0, of=_FITTING)
    false_negative_cost: float | None = setting(
        None, "target=cost: of a false negative; null: 1; the ratio counts", above=0, of=_FITTING
    )
    bootstrap: int = setting(1000, "resamples behind each interval", least=0)
    report_texts: bool = setting(True, "false: report.html names rows and quotes none")


@dataclass
class ScoringSettings:
    """How rows of a file are scored."""

    max_tokens: int = setting(8192, "of conversations computed together: bounds memory", least=1)


@dataclass
class CompareSettings:
    """``alora compare``: the methods, on the same rows, seeds and budget."""

    arms: list[str] = setting(
        ["alora", "lora", "prompt", "probe", "bag_of_words"],
        "alora_cleaned: without doubtful training rows",
        some=True,
        choices=ARMS,
    )
    seeds: list[int] = setting([0, 1, 2], "of alora, lora and encoder", least=0, some=True, distinct=True)
    ranks: list[int] = setting(
        [], "of alora and lora; empty: adapter.rank alone", least=1, most=MOST_RANK, distinct=True
    )
    alora_learning_rate: float | None = setting(None, "null: training.learning_rate", above=0)
    lora_learning_rate: float | None = setting(None, "the same; LoRA often needs a lower rate", above=0)
    encoder: str = setting("minilm", "hub id or folder; minilm: all-MiniLM-L6-v2 from the package index")
    rows: int | None = setting(None, "rows of a policy at most, held-out included; null: all", least=1)


@dataclass
class JudgeSettings:
    """A language model behind an OpenAI-compatible endpoint. Nothing is sent without a URL."""

    url: str | None = setting(
        None, "base URL of the endpoint, /v1 included", form=(is_server, "https://HOST/v1"), in_files=(None,)
    )
    model: str | None = setting(None, "its name at the endpoint")
    api_key_env: str = setting("OPENAI_API_KEY", "environment variable of the key", in_files=("OPENAI_API_KEY",))
    timeout: float = setting(60.0, "seconds for one request", above=0)
    retries: int = setting(5, "of a failed request; once for an unreadable answer", least=0)
    concurrency: int = setting(4, "requests at a time", least=1)
    max_tokens: int = setting(200, "of an answer", least=1)
    max_characters: int = setting(20_000, "of a conversation; a longer one loses its middle", least=1)
    input_price: float | None = setting(None, "for a million tokens, any currency", least=0)
    output_price: float | None = setting(None, "the same, of its answers", least=0)


@dataclass
class GenerateSettings:
    """``alora generate``, by the model that ``judge`` names."""

    pairs: int = setting(200, "minimal pairs: a conversation for each label", least=1)
    votes: int = setting(3, "that must agree on a conversation's label", least=1, most=10)
    judges: list[str] = setting([], "models that vote in turn, at judge.url; empty: judge.model", distinct=True)
    hold_out: str | None = setting(None, "a dimension whose validation values no training row has")
    temperature: float = setting(0.8, "of written conversations", least=0, most=2)
    max_tokens: int = setting(1500, "of a written pair, and of the dimensions", least=1)
    max_calls: int | None = setting(None, "requests, all calls of a folder together", least=1)
    max_cost: float | None = setting(None, "in the currency of judge.input_price", above=0)
    similarity: float = setting(0.7, "common word trigrams above which rows are duplicates", above=0, most=1)


@dataclass
class FleetSettings:
    """``alora fleet``: when the report on a battery fails."""

    against: str | None = setting(None, "the battery's last version: drift on the same rows", read_by=("fleet",))
    figures: list[str] = setting(["auroc", "f1"], "must be measurable, and not fall", some=True, choices=FIGURES)
    tolerance: float = setting(0.02, "by more than this", least=0, below=1)


@dataclass
class LogsSettings:
    """``alora score`` into Parquet, ``alora report`` and ``alora label``."""

    verdicts: str | None = setting(None, "a folder or file that alora score wrote", read_by=("report", "label"))
    against: str | None = setting(None, "label: verdicts on the same rows by another version", read_by=("label",))
    shard_rows: int = setting(4096, "score: the most that a kill loses", least=1)
    actors: int | None = setting(None, "cluster=ray; null: one for each GPU, else each CPU", least=1)
    examples: int = setting(5, "of each kind and policy", least=0, of=("report",))
    rows: int = setting(100, "to export for each policy", least=1, of=("label",))


@dataclass
class PlanSettings:
    """``alora plan``: the traffic, and the device; rank and modules are ``adapter``'s."""

    device: str = setting("h100", choices=DEVICES)
    record: str | None = setting(None, "bench.json: rates as measured, not as published", read_by=("plan",))
    memory_gb: float | None = setting(None, "of one device, in place of the published", above=0)
    price: float | None = setting(None, "of one device for an hour, any currency", least=0)
    shape: str = setting("qwen3_4b", "where no base.source is given", choices=SHAPES)
    policies: int = setting(100, least=1)
    suffix: int = setting(32, "tokens of a policy's instruction", least=1)
    tokens: int = setting(2000, "of a conversation at its end", least=1)
    turns: int = setting(4, "of a conversation; each asks every policy", least=1, most=100_000)
    gap_s: float = setting(30.0, "from one turn to the next", least=0)
    rate: float = setting(10.0, "conversations that begin in a second", above=0)
    target_ms: float = setting(1000.0, "p95 of the last turn, all verdicts back", above=0)


@dataclass
class IdentitySettings:
    """The KV identity check."""

    dtypes: list[str] = setting([], "empty: float32, and bfloat16 where the hardware has it", choices=DTYPES)
    conversations: int = setting(3, "on which KV is compared", least=1)
    negative_controls: bool = setting(True, "plant faults that the check must catch")


@dataclass
class ExportSettings:
    """What the bundle holds and where it goes."""

    golden_rows: int = setting(8, "rows with logits to check", least=0)
    push_to: str | None = setting(None, "hub repository id", in_files=(None,))
    private: bool = setting(True, "whether push_to creates a private repository", in_files=(True,))
    license: str | None = setting(None, "for the card, such as apache-2.0", form=_CARD_WORD)
    languages: list[str] = setting([], "for the card, such as en", form=_CARD_WORD)


@dataclass
class ServingSettings:
    """``alora serve``."""

    scorer: str = setting("vllm", "packed: the guard alone, in this process", choices=("vllm", "packed"))
    host: str = setting("127.0.0.1", "to listen on", form=(str.strip, "an address"), in_files=("127.0.0.1",))
    port: int = setting(8000, "of the server", least=1, most=65535)
    max_loras: int | None = setting(None, "adapters in one step; null: all", least=1)
    room: int = setting(8, "to load while it runs (VLLM_ALLOW_RUNTIME_LORA_UPDATING=1)", least=0)
    max_model_len: int | None = setting(None, "tokens; null: the base's own", least=1)
    queue_requests: int | None = setting(None, "conversations at a time; null: 32, on a GPU 256", least=1)
    queue_tokens: int | None = setting(None, "the same in tokens; null: 16384, on a GPU 262144", least=1)
    drain_s: int = setting(30, "seconds to answer what runs at SIGTERM", least=0)
    arguments: list[str] = setting([], "vLLM's own options, as they are; its key: $VLLM_API_KEY", in_files=([],))


@dataclass
class ServingBenchSettings:
    """``alora bench serving``: systems on one engine in one run."""

    engine: str = setting("auto", "scorer: in this process, without a server", choices=("auto", "vllm", "scorer"))
    workloads: list[str] = setting(list(WORKLOADS), "what is measured", some=True, distinct=True, choices=WORKLOADS)
    systems: list[str] = setting(list(SYSTEMS), "what is compared", some=True, distinct=True, choices=SYSTEMS)
    lora_tokens: int | None = setting(10000, "LoRA's share of a cold burst; null: all", least=1)
    step_tokens: int = setting(512, "vLLM's max_num_batched_tokens", least=1)
    turns: int = setting(4, "of the growing conversation", least=1)
    load_tokens: int = setting(200, "of a conversation in the open loop", least=1)
    target_ms: float = setting(4000.0, "p95 of a conversation, all verdicts back", above=0)
    populations: list[int] = setting([50, 200], "the smallest fits the slots", least=1, some=True, distinct=True)
    conversations: int = setting(30, "of one offered rate", least=1)


@dataclass
class BenchSettings:
    """Measurements on a base of random weights, or on ``base``'s own."""

    workload: str = setting("serving", "what is measured", choices=("serving", "training"))
    battery: str | None = setting(None, "serving; null: random adapters", read_by=("bench",))
    judge: str | None = setting(None, "bench.json: judge its verdicts again, measure nothing", read_by=("bench",))
    needs_gpu: bool = setting(False, "refuse a machine without one, unless base.device=cpu")
    shape: str = setting("27m", "of random weights", choices=SHAPES)
    rank: int = setting(8, "of random adapters", least=1)
    targets: list[str] = setting(TARGETS, "of random adapters", some=True)
    prefixes: list[int] = setting([500, 2000], "tokens", least=1, some=True, distinct=True)
    suffix: int = setting(32, "tokens of a policy's instruction, three of them invocation", least=4)
    policies: list[int] = setting([1, 8, 32, 100], "on one conversation", least=1, some=True, distinct=True)
    baselines: list[str] = setting(list(BASELINES), "of training", some=True, distinct=True, choices=BASELINES)
    own_rows: int = setting(8, "training: conversations of each policy alone; 0: none", least=0)
    rounds: int = setting(3, "at least; a workload of few cells runs more", least=1)
    limit_s: float | None = setting(None, "seconds after which nothing new begins", above=0)
    seed: int = setting(0, "of all that is random", least=0, most=2**32 - 1)
    threads: int = setting(1, "of torch and vLLM", least=1, most=1024)
    serving: ServingBenchSettings = section(ServingBenchSettings)


@dataclass
class Recipe:
    """Everything that one ``alora`` command knows."""

    # No setting: the keys that the command line spells out, which count over an artifact's run even where they are null
    # or the default. No field either, so no file holds it and dataclasses.replace drops it.
    given = frozenset[str]()
    named = frozenset[str]()  # likewise, of a recipe or primary config that the command line names

    @property
    def said(self) -> frozenset[str]:
        """The keys of both, which count over an artifact's run."""
        return self.given | self.named

    name: str = setting("run", "of the run", form=(names_a_folder, "a folder's name: no slash, 200 letters at most"),
                        of=("new", "train", "compare"))  # fmt: skip
    run_dir: str = setting("runs/${name}", "where a run is kept", some=True, of=("train", "compare", "check"))
    base: BaseSettings = section(BaseSettings, *_TRAINING, *OF_ARTIFACT, "plan", "bench", "doctor")
    adapter: AdapterSettings = section(AdapterSettings, *_TRAINING, "plan")
    policy: PolicySettings = section(PolicySettings, *_WITH_POLICY)
    policies: list[str] = setting(
        [], "ids; several make a battery ('*': all)", of=(*_TRAINING, "generate", *OF_ARTIFACT)
    )
    data: DataSettings = section(DataSettings, *_WITH_LABELS, "score", "report", "label")
    prompt: PromptSettings = section(PromptSettings, *_TRAINING, "validate", "evaluate", "export")
    training: TrainingSettings = section(TrainingSettings, "train", "compare")
    tracking: TrackingSettings = section(TrackingSettings, "train")
    evaluation: EvaluationSettings = section(EvaluationSettings, "train", "compare", "evaluate", "recalibrate", "fleet")
    scoring: ScoringSettings = section(ScoringSettings, "train", "compare", "evaluate", "recalibrate", "fleet", "score")
    identity: IdentitySettings = section(IdentitySettings, "train", "validate", "recalibrate")
    export: ExportSettings = section(ExportSettings, "train", "export")
    serving: ServingSettings = section(ServingSettings, "serve")
    bench: BenchSettings = section(BenchSettings, "bench")
    compare: CompareSettings = section(CompareSettings, "compare")
    judge: JudgeSettings = section(JudgeSettings, "train", "compare", "generate", "check")
    generate: GenerateSettings = section(GenerateSettings, "train", "generate")
    fleet: FleetSettings = section(FleetSettings, "fleet")
    logs: LogsSettings = section(LogsSettings, "score", "report", "label")
    plan: PlanSettings = section(PlanSettings, "plan")
    artifact: str | None = setting(
        None, "adapter, bundle, run or (battery=DIR) battery; score: or a hub id", read_by=OF_ARTIFACT, some=True
    )
    bundles: list[str] = setting([], "several bundles, on one base", read_by=("score", "serve"))
    scorer: str = setting(
        "packed",
        "what computes verdicts; validate: whose KV is checked",
        form=(is_scorer, "packed, vllm, or for alora score http://HOST:PORT"),
        in_files=("packed", "vllm"),
        of=("score", "validate", "recalibrate"),
    )
    cluster: str | None = setting(None, "a log's shards by Ray actors ($RAY_ADDRESS)", choices=("ray",), of=("score",))
    conversation: str | None = setting(
        None,
        "a JSON file, or - for standard input; score, report, label: or a file of rows",
        read_by=("train", "score", "report", "label"),
    )
    output: str | None = setting(None, "file or folder of the result", of=("new", *_PRINTING, "report", "label"))
    json: bool = setting(False, "print the result as one JSON document", of=("compare", *_PRINTING))
    strict: bool = setting(
        False,
        "exit with 1 on warnings; score: stop at an unreadable row",
        of=("check", "generate", "train", "evaluate", "score"),
    )
    show: int = setting(0, "rows to print as tokens", least=0, of=("check",))
