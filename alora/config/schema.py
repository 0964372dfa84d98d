"""The one typed schema: every key that a recipe, a config group or an override may set.

Plain dataclasses with no import of Hydra, so any layer may take its own section as an argument. They stay unfrozen
because Hydra turns frozen dataclasses into read-only configs. A value of None means "decided from the other settings",
and the comment says how.
"""

from dataclasses import dataclass, field
from typing import Any

# The dictionaries whose keys are the user's own; every other key of a recipe is a field below.
OPEN_DICTIONARIES = ("data.label_map", "data.role_map", "policy.labels", "base.template_kwargs")


@dataclass
class BaseSettings:
    """The frozen language model under every adapter."""

    source: str | None = None  # hub id, folder, FILE.gguf or "smollm2"; None: what the artifact names, else smollm2
    revision: str | None = None  # branch, tag or commit on the hub
    dtype: str = "auto"  # auto (float32 on CPU, bfloat16 on GPU), float32, bfloat16, float64
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    weights: str = "pretrained"  # pretrained, or random: the shape alone, for benchmarks
    quantization: str | None = None  # none, nf4 (4 bits, QLoRA); None: what the artifact names, else none
    trust_remote_code: bool = False
    template_kwargs: dict[str, bool] = field(default_factory=dict)  # passed to the chat template (enable_thinking)


@dataclass
class AdapterSettings:
    """Shape of one LoRA adapter."""

    kind: str = "alora"  # alora, lora (adapted from token 0: the baseline)
    rank: int = 16  # of the two factors A and B
    alpha: float | None = None  # None: twice the rank
    targets: list[str] = field(
        default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )


@dataclass
class PolicySettings:
    """One policy: inline, or read from ``file`` (``id`` then selects one of several)."""

    file: str | None = None
    id: str | None = None
    title: str | None = None
    rule: str | None = None
    labels: dict[str, str] = field(default_factory=dict)  # label → answer word, positive first; empty: violation/ok


@dataclass
class ColumnSettings:
    """Names of the columns that hold what alora needs."""

    messages: str = "messages"  # or text columns, such as prompt,response; where it is missing, alora looks for others
    label: str = "label"
    labels: str = "labels"
    id: str = "id"
    group: str | None = None  # rows with the same value (customer, thread) are never both trained and validated on


@dataclass
class DataSettings:
    """Labelled conversations: JSON, CSV, TSV or Parquet files, ``hub:NAME[:SPLIT]`` data sets, or a list of them."""

    train: Any = None
    validation: Any = None  # None: ``validation_share`` of the training rows of each label, by a hash of their text
    test: Any = None
    validation_share: float = 0.15  # of the training rows, where data.validation is not given
    label_map: dict[str, str] = field(default_factory=dict)  # label in the data → label of the policy
    role_map: dict[str, str] = field(default_factory=dict)  # role in the data → role; human, gpt, ... need no entry
    skip_media: bool = False  # leave images, audio and files out of a message instead of refusing its row
    columns: ColumnSettings = field(default_factory=ColumnSettings)


@dataclass
class PromptSettings:
    """How a conversation and a policy become token ids."""

    layout: str = "transcript"  # transcript, turns
    instruction: str = "none"  # none, title, rule: how much of the policy the suffix spells out, at every policy's cost
    max_prefix_tokens: int = 4096  # longer conversations are cut
    truncation: str = "middle"  # middle, start: what a too long conversation loses


@dataclass
class TrainingSettings:
    """The optimisation; names follow ``transformers.TrainingArguments``."""

    epochs: float | None = None  # None: as many as show a policy 1,200 rows, from 2 to 20
    max_steps: int = -1  # above 0 it counts in place of epochs
    batch_size: int = 8  # rows of one policy in an optimiser step, before accumulation
    gradient_accumulation_steps: int = 1
    learning_rate: float | None = None  # None: 2e-3 at rank 16, times sqrt(16 / rank)
    weight_decay: float = 0.0  # of AdamW
    warmup_ratio: float = 0.05  # share of the steps
    scheduler: str = "cosine"  # a name of transformers.SchedulerType
    max_grad_norm: float = 1.0
    seed: int = 0
    evaluations_per_epoch: int = 2  # each writes a checkpoint
    early_stopping_patience: int = 4  # evaluations without a better validation loss; 0: never stop early
    gradient_checkpointing: bool = False  # of the suffixes, for less memory and more time
    max_suffix_tokens: int = 2048  # suffix tokens of one packed pass: bounds memory whatever the number of policies
    prefix_cache: str = "memory"  # off, memory, disk: prefix KV kept across epochs (disk: and runs)
    prefix_cache_bytes: int = 2 * 1024**3
    threads: int | None = None  # None: torch's own choice
    shard_base: bool = False  # under torchrun: each process holds a part of the frozen base (FSDP2)
    engine: str = "alora"  # alora (the split), trl (a standard LoRA by TRL's SFTTrainer, as others train it)


@dataclass
class TrackingSettings:
    """Where a run's figures go besides its folder. Nothing is sent anywhere unless ``kind`` asks for it."""

    kind: str = "none"  # none, wandb, tensorboard
    every: int = 1  # optimiser steps from one recorded training loss to the next
    project: str = "alora"  # wandb
    entity: str | None = None  # wandb: the team or account; None: the one that is logged in
    group: str | None = None  # wandb: runs shown together; None: the recipe's name
    tags: list[str] = field(default_factory=list)  # wandb
    mode: str | None = None  # wandb: online, offline; None: what WANDB_MODE says, else online


@dataclass
class EvaluationSettings:
    """Metrics and the operating point."""

    target: str | None = None  # f1, fpr, recall, cost, on validation rows; None: f1, in recalibrate the bundle's own
    target_value: float | None = None  # rate to hold; None: fpr at most 0.01, recall at least 0.95
    false_positive_cost: float | None = None  # target=cost: what a false alarm costs; None: 1 ...
    false_negative_cost: float | None = None  # ... and a missed violation; only their ratio counts
    bootstrap: int = 1000  # resamples behind each interval


@dataclass
class CompareSettings:
    """``alora compare``: the methods, on the same rows, seeds and budget."""

    arms: list[str] = field(default_factory=lambda: ["alora", "lora", "prompt", "probe", "bag_of_words"])  # and judge
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])  # of alora and lora; the others draw nothing
    ranks: list[int] = field(default_factory=list)  # of alora and lora; empty: adapter.rank alone
    alora_learning_rate: float | None = None  # None: training.learning_rate
    lora_learning_rate: float | None = None  # likewise: a LoRA adapts every token and often wants a lower one
    rows: int | None = None  # training rows of a policy at most; None: all


@dataclass
class JudgeSettings:
    """A language model behind an OpenAI-compatible endpoint that is asked for the verdict. Nothing is sent without a
    URL."""

    url: str | None = None  # up to the version: https://HOST/v1
    model: str | None = None
    api_key_env: str = "OPENAI_API_KEY"  # the environment variable that holds the key
    timeout: float = 60.0  # seconds for one request
    retries: int = 5  # of a request that failed, and once more of an answer that cannot be read
    concurrency: int = 4  # requests at a time
    max_tokens: int = 200  # of an answer
    max_characters: int = 20_000  # of a conversation; the middle of a longer one is left out
    input_price: float | None = None  # for a million tokens, in any currency; both prices: cost is reported
    output_price: float | None = None


@dataclass
class FleetSettings:
    """``alora fleet``: the report on a battery, and when it fails."""

    against: str | None = None  # the battery's last version: drift is measured on the same rows
    figures: list[str] = field(default_factory=lambda: ["auroc", "f1"])  # must be measurable, and not fall
    tolerance: float = 0.02  # by more than this


@dataclass
class IdentitySettings:
    """The KV identity check."""

    dtypes: list[str] = field(default_factory=list)  # empty: float32, and bfloat16 where the device has it in hardware
    conversations: int = 3  # on which KV is compared
    negative_controls: bool = True


@dataclass
class ExportSettings:
    """What the bundle holds and where it goes."""

    golden_rows: int = 8  # rows whose logits a reader of the bundle can check
    push_to: str | None = None  # hub repository id
    private: bool = True  # a repository that push creates


@dataclass
class ServingSettings:
    """``alora serve``: stock vLLM's OpenAI server with bundles in it."""

    host: str = "127.0.0.1"
    port: int = 8000
    max_loras: int | None = None  # adapters in one step of the engine, each with its memory; None: all of them
    room: int = 8  # adapters that may be loaded besides while it runs (VLLM_ALLOW_RUNTIME_LORA_UPDATING=1)
    max_model_len: int | None = None  # tokens; None: the base's own
    arguments: list[str] = field(default_factory=list)  # vLLM's own options, as they are; its key: $VLLM_API_KEY


@dataclass
class ServingBenchSettings:
    """``alora bench serving``: systems on one engine in one run. ``bench=cpu`` and ``bench=gpu`` set some of these."""

    engine: str = "auto"  # auto (vllm where it is installed), vllm, scorer (in this process, without a server)
    workloads: list[str] = field(default_factory=lambda: ["grid", "warm", "conversation", "open_loop"])
    systems: list[str] = field(default_factory=lambda: ["lora", "alora", "base", "reader", "packed"])
    lora_tokens: int | None = 10000  # that standard LoRA reads of a cold burst in a round, about; None: all of it
    step_tokens: int = 512  # vLLM's max_num_batched_tokens
    turns: int = 4  # of the growing conversation
    load_tokens: int = 200  # of a conversation in the open loop
    target_ms: float = 4000.0  # p95 of a conversation, all verdicts back
    populations: list[int] = field(default_factory=lambda: [50, 200])  # of policies; the smallest fits the slots
    conversations: int = 30  # of one offered rate


@dataclass
class BenchSettings:
    """Measurements on a base of random weights, since speed does not depend on the values, or on ``base``'s own."""

    workload: str = "serving"  # serving, training; compare: of two runs in bench.runs
    runs: list[str] = field(default_factory=list)  # compare: two bench.json
    battery: str | None = None  # serving: real bundles, a folder with battery.json; None: random adapters
    needs_gpu: bool = False  # refuse a machine without one, unless base.device=cpu asks for it
    shape: str = "27m"  # of random weights: toy, mini, 27m, smollm2, qwen3_0_6b, qwen3_4b
    rank: int = 8
    targets: list[str] = field(default_factory=lambda: list(AdapterSettings().targets))  # of random adapters
    prefixes: list[int] = field(default_factory=lambda: [500, 2000])  # tokens; warm and turns take the first
    suffix: int = 32  # tokens of a policy's instruction, invocation included
    policies: list[int] = field(default_factory=lambda: [1, 8, 32, 100])  # on one conversation
    baselines: list[str] = field(default_factory=lambda: ["peft", "trainer", "trl"])  # training: compared with ours
    memory: bool = True  # training: peak memory, each system in a process of its own
    rounds: int = 3  # at least; a workload of few cells runs more
    limit_s: float | None = None  # seconds after which nothing new is begun; what is finished is reported
    seed: int = 0
    threads: int = 1
    serving: ServingBenchSettings = field(default_factory=ServingBenchSettings)


@dataclass
class Recipe:
    """Everything that one ``alora`` command knows."""

    name: str = "run"  # of the run; names its folder
    run_dir: str = "runs/${name}"  # where train and compare keep everything
    base: BaseSettings = field(default_factory=BaseSettings)
    adapter: AdapterSettings = field(default_factory=AdapterSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    policies: list[str] = field(default_factory=list)  # train a battery: ids in policy.file ("*": all of them)
    data: DataSettings = field(default_factory=DataSettings)
    prompt: PromptSettings = field(default_factory=PromptSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    identity: IdentitySettings = field(default_factory=IdentitySettings)
    export: ExportSettings = field(default_factory=ExportSettings)
    serving: ServingSettings = field(default_factory=ServingSettings)
    bench: BenchSettings = field(default_factory=BenchSettings)
    compare: CompareSettings = field(default_factory=CompareSettings)
    judge: JudgeSettings = field(default_factory=JudgeSettings)
    fleet: FleetSettings = field(default_factory=FleetSettings)
    artifact: str | None = None  # an adapter folder, a bundle, a run folder or, also as battery=DIR, a battery
    bundles: list[str] = field(default_factory=list)  # score: several bundles on one conversation
    engine: str = "transformers"  # transformers (in-process), vllm; score also http://HOST:PORT
    conversation: str | None = None  # train, score: a JSON file, "-" for standard input
    output: str | None = None  # where a report, verdicts or the bundle are written, besides what is printed
    json: bool = False  # every verb but new, train and serve: machine-readable output
    strict: bool = False  # check: warnings fail too
    show: int = 0  # check: rows to print as tokens, with what the adapter reads
    force: bool = False  # train: start over in a run folder that holds other settings
