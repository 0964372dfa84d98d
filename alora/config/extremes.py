"""What no setting holds, whatever its meaning: numbers that nothing can count to, and text that no file can hold."""

from functools import reduce

from alora.config.explain import schema_types
from alora.config.schema import Recipe
from alora.reading import lone_surrogate

LARGEST = 2**32  # so that no product of two leaves 64 bits
_LARGER = {"training.prefix_cache_bytes": 2**62, "training.learning_rate": 1e300}  # training says when it diverges


def extremes(recipe: Recipe) -> list[str]:
    """One line for each number that is not finite or too large, and each text with a lone surrogate."""
    problems = []
    for key, _ in schema_types():
        value = reduce(getattr, key.split("."), recipe)
        limit = _LARGER.get(key, LARGEST)
        items = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else [value]
        for item in items:
            if isinstance(item, (int, float)) and not abs(item) <= limit:
                problems.append(f"{key} is {str(item)[:40]}; no setting goes beyond {limit}")
            if isinstance(item, str) and lone_surrogate(item) is not None:
                problems.append(f"{key} is {ascii(item)[:60]}, which is no Unicode text; write it in UTF-8")
    return problems
