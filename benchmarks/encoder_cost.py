"""What P policies cost as P encoders, and as P aLoRAs behind one prefix: CPU seconds at one thread, in one run.

    python benchmarks/encoder_cost.py --out benchmarks/results/encoder_cost_cpu.json

Scoring is of one conversation of 256 tokens by all P policies. aLoRA computes the base's prefix first ("alone"), or
finds its KV ("behind the prefill", as in an engine that answers the chat with the same base). Training is forward and
backward of one conversation labelled for all P policies, without the optimizer; the encoder takes its share of a batch
of 16, and 100 aLoRAs take 12.5 runs of 8.
The P encoders share their weights here, so their caches are warmer than P files' would be; the weights are in
float32, and autocast rounds them to bfloat16 in every pass.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from alora.adapter.folder import AdapterSpec
from alora.base.load import load_base
from alora.config.environment import describe_environment
from alora.config.schema import AdapterSettings, BaseSettings
from alora.lab.bench.material import INVOCATION, draw_batch, random_adapter
from alora.lab.bench.trainers import PackedTrainer
from alora.lab.compare.encoder import BATCH, NAME, TOKENS, load_encoder
from alora.prefix.scorer import Scorer
from alora.prefix.store import open_store
from alora.prompt.render import Prefix, Suffix

POLICIES, SUFFIX, REPEATS = (1, 8, 100), 12, 3
GROUP = 8  # aLoRAs that are trained together; more are trained in several runs


def seconds(work: Callable[[], object]) -> float:
    """The median of a few calls, after one that sets up what libraries do once."""
    taken = []
    for _ in range(REPEATS + 1):
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    return statistics.median(taken[1:])


def of_encoder(dtype: torch.dtype) -> dict[str, Any]:
    encoder = load_encoder(NAME, torch.device("cpu"), dtype)
    text = "user: " + "what is it " * TOKENS
    encoder.head = nn.Linear(encoder.body.config.hidden_size, 2)
    labels_B = torch.zeros(BATCH, dtype=torch.long)

    def train() -> None:
        nn.functional.cross_entropy(encoder([text] * BATCH), labels_B).backward()
        encoder.zero_grad()

    def score(policies: int) -> None:
        for _ in range(policies):
            encoder.outputs([text])

    step = seconds(train) / BATCH
    size = sum(parameter.nbytes for parameter in encoder.body.parameters())
    return {
        str(policies): {
            "scoring_alone": seconds(lambda policies=policies: score(policies)),
            "training": step * policies,
            "bytes": size * policies,
        }
        for policies in POLICIES
    }


def of_alora(dtype: str, scratch: Path) -> dict[str, Any]:
    base = load_base(BaseSettings(source="smollm2", dtype=dtype))
    settings = AdapterSettings()
    spec = AdapterSpec.of(settings, INVOCATION, settings.rank)
    drawn = [random_adapter(spec, base.model, 10 * number) for number in range(min(GROUP, max(POLICIES)))]
    found: dict[str, Any] = {}
    for policies in POLICIES:
        own = [drawn[number % len(drawn)] for number in range(policies)]
        batch = draw_batch(base.model.config.vocab_size, TOKENS, SUFFIX, policies, 0)
        suffixes = [Suffix(pair.suffix_ids, INVOCATION, pair.label_token_ids) for pair in batch.pairs]
        prefix, store = Prefix(batch.prefixes[0]), open_store(2**30, base.model, batch.prefixes)
        size = sum(a.nbytes + b.nbytes for a, b in drawn[0].tensors.values()) * policies
        with Scorer(base, own) as cold:
            alone = seconds(lambda scorer=cold: scorer.label_logits(prefix, suffixes))  # noqa: B023
        with Scorer(base, own, store=store) as warm:
            behind = seconds(lambda scorer=warm: scorer.label_logits(prefix, suffixes))  # noqa: B023
        found[str(policies)] = {"scoring_alone": alone, "scoring_behind_the_prefill": behind, "bytes": size}
        if policies <= GROUP:
            trainer = PackedTrainer(base.model, own, batch, scratch)
            found[str(policies)]["training"] = seconds(lambda trainer=trainer: (trainer.clear(), trainer.step()))
            trainer.close()
        else:
            found[str(policies)]["training"] = found[str(GROUP)]["training"] * policies / GROUP
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        found = {"encoder": of_encoder(getattr(torch, given.dtype)), "alora": of_alora(given.dtype, Path(scratch))}
    settings = {"dtype": given.dtype, "tokens": TOKENS, "suffix": SUFFIX, "repeats": REPEATS, "trained_together": GROUP}
    for method, entries in found.items():
        for policies, entry in entries.items():
            print(method, policies, {name: round(value, 4) for name, value in entry.items()})
    if given.out:
        results = {"environment": describe_environment(), "settings": settings, "cpu_seconds": found}
        given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
