"""What the bundles of an artifact answer to labelled rows."""

from collections.abc import Sequence

from alora.base.limits import IN_ARTIFACT, require_room
from alora.base.load import LoadedBase
from alora.bundle.read import Bundle
from alora.data.conversation import LabelledConversation
from alora.evaluation.predict import LabelScorer, Predictions, predict
from alora.prefix.scorer import Scorer


def answers_of(
    bundles: Sequence[Bundle],
    base: LoadedBase,
    rows: Sequence[LabelledConversation],
    max_tokens: int,
    scorer: LabelScorer | None = None,
) -> list[Predictions]:
    """What each bundle answers to the rows that are labelled for it; packed, where no ``scorer`` is given."""
    renderer, suffixes = bundles[0].renderer(base), {bundle.policy.id: bundle.suffix for bundle in bundles}
    require_room(base.model, renderer, rows, suffixes, IN_ARTIFACT)
    policies = [bundle.policy for bundle in bundles]
    if scorer is not None:
        return predict(scorer, renderer, policies, list(suffixes.values()), rows, max_tokens=max_tokens)
    with Scorer(base, [bundle.weights for bundle in bundles]) as packed:
        return predict(packed, renderer, policies, list(suffixes.values()), rows, max_tokens=max_tokens)
