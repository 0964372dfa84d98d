"""What a server exports of the guard. Labels are ids and digests of what is served, and fixed words."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from alora.data.roles import usual_role
from alora.guard.reader import Served
from alora.wire.native import Action, GuardResponse, PolicyVerdict

REQUESTS = Counter("alora_guard_requests", "Answered conversations.", ["action"])
REFUSED = Counter("alora_guard_refusals", "Requests that got no answer, by HTTP status.", ["status"])
for _status in ("429", "503"):  # from 0 on: else a rate does not see the first
    REFUSED.labels(_status)
SECONDS = Histogram(
    "alora_guard_seconds",
    "Time to the whole answer.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
TOKENS = Counter("alora_guard_tokens", "Prompt tokens of all policies.", ["kind"])  # computed, cached
VERDICTS = Counter("alora_guard_verdicts", "Verdicts.", ["policy", "action", "status", "flagged"])
PROBABILITY = Histogram(
    "alora_guard_probability", "Probability of a violation.", ["policy"], buckets=[tenth / 10 for tenth in range(1, 11)]
)
DISAGREEMENT = Counter(
    "alora_guard_disagreement",
    "Verdicts of action log unlike the answer's, by both labels.",
    ["policy", "label", "logged"],
)
UNLIKE = Counter(
    "alora_guard_unlike_training",
    "Conversations with a system turn where the policy's training rows had none, or without where all had one.",
    ["policy", "system"],
)
SERVED = Gauge(
    "alora_guard_served_created_seconds",
    "When what is served was made, in seconds since 1970; 0: it is not served any more.",
    ["policy", "action", "adapter", "manifest"],
    multiprocess_mode="livemax",
)
TROUBLE = Gauge(
    "alora_guard_trouble",
    "1 where health has something to look at, or the guard serves nothing.",
    multiprocess_mode="livemax",
)
PSI = Gauge(
    "alora_guard_psi",
    "Population stability index of the last probabilities against validation's; NaN where there are too few.",
    ["policy"],
    multiprocess_mode="livemax",
)


def count(response: GuardResponse) -> None:
    REQUESTS.labels(response.action).inc()
    SECONDS.observe(response.timing_ms.total / 1000)
    whole = response.usage.prefix_tokens * response.usage.policies + response.usage.suffix_tokens
    TOKENS.labels("computed").inc(response.usage.computed_tokens)
    if response.complete:  # of what did not answer nobody knows
        TOKENS.labels("cached").inc(max(0, whole - response.usage.computed_tokens))
    for verdict in response.verdicts:
        count_verdict(verdict, verdict.action)
        if verdict.probability is not None:
            PROBABILITY.labels(verdict.policy).observe(verdict.probability)


def count_verdict(verdict: PolicyVerdict, action: Action) -> None:
    VERDICTS.labels(verdict.policy, action, verdict.status, str(verdict.flagged).lower()).inc()


def count_unlike(asked: Iterable[Served], messages: Iterable[Mapping[str, Any]]) -> None:
    """Count for each policy a conversation that is unlike its training rows."""
    own = any(usual_role(str(message.get("role"))) == "system" for message in messages)
    for item in asked:
        if item.manifest.system_share == (0.0 if own else 1.0) and item.manifest.system == "read":
            UNLIKE.labels(item.policy.id, str(own).lower()).inc()


def note_served(before: Iterable[Served], now: Iterable[Served]) -> None:
    """Export which bundles are served, and since when there is each."""
    kept = {_labels(item): datetime.fromisoformat(item.manifest.created).timestamp() for item in now}
    for labels, created in (dict.fromkeys(map(_labels, before), 0.0) | kept).items():
        SERVED.labels(*labels).set(created)


def _labels(item: Served) -> tuple[str, str, str, str]:
    return item.policy.id, item.action, item.name, item.manifest.sha256[:12]
