"""What a server exports of the guard. Labels are ids of served policies and fixed words: their number is bounded."""

from prometheus_client import Counter, Gauge, Histogram

from alora.wire.native import GuardResponse

REQUESTS = Counter("alora_guard_requests", "Answered conversations.", ["action"])
REFUSED = Counter("alora_guard_refusals", "Requests that got no answer, by HTTP status.", ["status"])
SECONDS = Histogram(
    "alora_guard_seconds",
    "Time to the whole answer.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
TOKENS = Counter("alora_guard_tokens", "Prompt tokens of all policies.", ["kind"])  # computed, cached
VERDICTS = Counter("alora_guard_verdicts", "Verdicts.", ["policy", "status", "flagged"])
PROBABILITY = Histogram(
    "alora_guard_probability", "Probability of a violation.", ["policy"], buckets=[tenth / 10 for tenth in range(1, 11)]
)
SHADOW = Counter(
    "alora_shadow_disagreement", "Shadow verdicts unlike the live one, by both labels.", ["policy", "live", "shadow"]
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
        VERDICTS.labels(verdict.policy, verdict.status, str(verdict.flagged).lower()).inc()
        if verdict.probability is not None:
            PROBABILITY.labels(verdict.policy).observe(verdict.probability)
