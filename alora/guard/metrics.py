"""What a server exports of the guard. Labels are ids of served policies and fixed words: their number is bounded."""

from prometheus_client import Counter, Histogram

REQUESTS = Counter("alora_guard_requests", "Answered conversations.", ["action"])
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
SHADOW = Counter("alora_shadow_disagreement", "Shadow verdicts unlike the live one.", ["policy", "live", "shadow"])
