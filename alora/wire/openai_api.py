"""OpenAI's moderations, where each policy is a category, and its decisions, where each question asks a policy."""

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, model_validator

from alora.wire.native import GuardRequest, GuardResponse, Many, Options, PolicyVerdict

MODEL = "alora"  # what ``model`` names the guard
MOST_TEXTS = 100  # of one moderation request, each a conversation of its own

# Categories that OpenAI's SDK (3.51) reads under another name than its attribute's. A policy may have that id: the SDK
# would give None for it, which an app takes for "not flagged".
_OPENAIS = {
    "harassment_threatening": "harassment/threatening",
    "hate_threatening": "hate/threatening",
    "illicit_violent": "illicit/violent",
    "self_harm": "self-harm",
    "self_harm_instructions": "self-harm/instructions",
    "self_harm_intent": "self-harm/intent",
    "sexual_minors": "sexual/minors",
    "violence_graphic": "violence/graphic",
}
_Few = Field(max_length=MOST_TEXTS, fail_fast=True)


class ModerationRequest(Options):
    """OpenAI's ``POST /v1/moderations``; ``messages`` in place of ``input`` judges a whole conversation."""

    input: str | Annotated[list[str], _Few] | Annotated[list[dict[str, Any]], _Few] | None = None
    model: str = MODEL
    messages: Many[dict[str, Any]] | None = None

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if (self.input is None) == (self.messages is None):
            raise ValueError("give input (text or a list of texts) or messages (one conversation), not both")
        if self.input == []:
            raise ValueError("input is an empty list; give at least one text")
        return self

    @property
    def conversations(self) -> list[list[dict[str, Any]]]:
        """What is judged: the messages, or each text as a user's; a list of parts is one text."""
        if self.messages is not None:
            return [self.messages]
        one = isinstance(self.input, str) or isinstance((self.input or [""])[0], dict)
        texts = [self.input] if one else self.input or []
        return [[{"role": "user", "content": text}] for text in texts]


class ModerationResult(BaseModel):
    """``complete`` is false where a policy did not answer: it is flagged with score 1, or, where the request's
    ``on_failure`` is open, neither flagged nor scored."""

    flagged: bool
    complete: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[str]]

    @classmethod
    def of(cls, answer: GuardResponse) -> Self:
        found = {verdict.policy: verdict for verdict in answer.verdicts}
        # A policy that has OpenAI's own name keeps it.
        found = {_OPENAIS[name]: verdict for name, verdict in found.items() if name in _OPENAIS} | found
        return cls(
            flagged=answer.action == "block",
            complete=answer.complete,
            categories={name: verdict.flagged for name, verdict in found.items()},
            category_scores={
                name: 1.0 if verdict.probability is None else verdict.probability
                for name, verdict in found.items()
                if verdict.flagged or verdict.probability is not None
            },
            category_applied_input_types={name: ["text"] for name in found},
        )


class ModerationResponse(BaseModel):
    """One result per input."""

    id: str = Field(default_factory=lambda: f"modr-{secrets.token_hex(12)}")
    model: str
    results: list[ModerationResult]


class TextPart(BaseModel):
    """A piece of a question."""

    type: Literal["input_text"]
    text: str


class DecisionQuestion(BaseModel):
    """An adapter answers the policy that it was trained on: ``instructions`` are that policy's rule, or
    ``policy:ID``."""

    instructions: str | Many[TextPart]
    name: str | None = None

    @property
    def text(self) -> str:
        given = self.instructions
        return given if isinstance(given, str) else "".join(part.text for part in given)


class Predicate(DecisionQuestion):
    """The probability of a policy's positive label."""

    type: Literal["predicate"]


class Option(BaseModel):
    """A label; true is the positive one, and false any other."""

    value: StrictStr | StrictBool


class Choice(DecisionQuestion):
    """A policy's label, and the probability of each."""

    type: Literal["choice"]
    choices: Many[Option] = Field(min_length=2, max_length=255)

    def labels(self, of_policy: Sequence[str]) -> dict[str | bool, Sequence[str]] | None:
        """The labels that each choice stands for; None where they are neither the policy's own, nor true and false."""
        values, (positive, *rest) = [option.value for option in self.choices], of_policy
        known: dict[str | bool, Sequence[str]] = {label: [label] for label in of_policy}
        for meant in (known, {True: [positive], False: rest}):
            if len(values) == len(meant) and set(values) == meant.keys():
                return {value: meant[value] for value in values}  # pyright: ignore[reportArgumentType]
        return None


class DecisionRequest(BaseModel):
    """``POST /v1/decisions``."""

    model_config = ConfigDict(extra="ignore")  # OpenAI's options grow

    model: Literal["alora"]
    input: str | Many[dict[str, Any]]
    questions: Many[Annotated[Predicate | Choice, Field(discriminator="type")]] = Field(min_length=1, max_length=400)
    prompt_cache_key: str | None = Field(
        default=None, min_length=1, max_length=256, description="share KV under this key only"
    )
    deadline_ms: float | None = Field(default=None, gt=0, le=600_000, strict=True)
    metadata: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_options_of_other_routes(cls, given: Any) -> Any:
        asked, known = given if isinstance(given, dict) else {}, GuardRequest.model_fields
        others = sorted(known.keys() - {"messages", *cls.model_fields})
        wrong = [name for name in others if asked.get(name) not in (None, known[name].default)]
        if wrong:
            raise ValueError(f"{wrong[0]} is not an option of this route; it takes prompt_cache_key and deadline_ms")
        return given


class PredicateAnswer(BaseModel):
    """The calibrated probability of the policy's positive label."""

    type: Literal["predicate"] = "predicate"
    name: str | None
    probability: float


class OptionProbability(BaseModel):
    """One label's."""

    value: str | bool
    probability: float


class ChoiceAnswer(BaseModel):
    """``choice`` is the verdict at the policy's threshold, which need not be the most probable label."""

    type: Literal["choice"] = "choice"
    name: str | None
    choice: str | bool
    confidence: float
    probabilities: list[OptionProbability]


class Refusal(BaseModel):
    """The policy did not answer, in time or at all, or is only logged."""

    type: Literal["refusal"] = "refusal"
    name: str | None


class DecisionUsage(BaseModel):
    """Tokens of all questions, each with the whole input; ``cached_tokens`` of them were not computed."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class DecisionResponse(BaseModel):
    """Answers in the questions' order."""

    model: str = MODEL
    answers: list[PredicateAnswer | ChoiceAnswer | Refusal]
    usage: DecisionUsage

    @classmethod
    def of(cls, request: DecisionRequest, policies: Sequence[str], answer: GuardResponse) -> Self:
        """The answer in OpenAI's terms; ``policies`` has the id of each question's."""
        verdicts, usage = {verdict.policy: verdict for verdict in answer.verdicts}, answer.usage
        tokens = usage.prefix_tokens * usage.policies + usage.suffix_tokens
        cached = max(0, tokens - usage.computed_tokens) if answer.complete else 0
        given = sum(verdict.status == "ok" for verdict in answer.verdicts)
        asked = zip(request.questions, policies, strict=True)
        return cls(
            answers=[_answer(question, verdicts.get(policy)) for question, policy in asked],
            usage=DecisionUsage(
                input_tokens=tokens,
                input_tokens_details={"cached_tokens": cached, "cache_write_tokens": 0},
                output_tokens=given,
                output_tokens_details={"reasoning_tokens": 0},
                total_tokens=tokens + given,
            ),
        )


def _answer(question: Predicate | Choice, verdict: PolicyVerdict | None) -> PredicateAnswer | ChoiceAnswer | Refusal:
    if verdict is None or verdict.probability is None or verdict.probabilities is None or verdict.label is None:
        return Refusal(name=question.name)
    if isinstance(question, Predicate):
        return PredicateAnswer(name=question.name, probability=verdict.probability)
    shares = verdict.probabilities
    meant = question.labels(list(shares)) or {}
    found = {value: sum(shares[label] for label in labels) for value, labels in meant.items()}
    choice = next(value for value, labels in meant.items() if verdict.label in labels)
    return ChoiceAnswer(
        name=question.name,
        choice=choice,
        confidence=found[choice],
        probabilities=[OptionProbability(value=value, probability=share) for value, share in found.items()],
    )
