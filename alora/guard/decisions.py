"""OpenAI's Decisions (``client.decisions.create``): questions about one input, of which each asks a served policy.

An adapter answers the policy that it was trained on, and no other question. So a question's instructions are that
policy's rule as the bundle has it, or ``policy:ID``; anything else is refused.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictStr, model_validator

from alora.guard.reader import GuardRefusal, Served
from alora.guard.wire import GuardResponse, Many, PolicyVerdict

MODEL = "alora"  # what ``model`` names the guard
_OTHERS = ("cache_salt", "on_failure", "policies", "priority", "stop_on_block", "stream")  # of ``/v1/guard``


class TextPart(BaseModel):
    """A piece of a question."""

    type: Literal["input_text"]
    text: str


class Predicate(BaseModel):
    """The probability of a policy's positive label."""

    type: Literal["predicate"]
    instructions: str | Many[TextPart]
    name: str | None = None


class Option(BaseModel):
    """One label."""

    value: StrictStr


class Choice(BaseModel):
    """A policy's label, and the probability of each."""

    type: Literal["choice"]
    instructions: str | Many[TextPart]
    choices: Many[Option] = Field(min_length=2, max_length=255)
    name: str | None = None


class DecisionRequest(BaseModel):
    """``POST /v1/decisions``."""

    model_config = ConfigDict(extra="ignore")  # OpenAI's options grow

    @model_validator(mode="before")
    @classmethod
    def _refuse_options_of_other_routes(cls, given: Any) -> Any:
        wrong = [name for name in _OTHERS if isinstance(given, dict) and given.get(name) is not None]
        if wrong:
            raise ValueError(f"{wrong[0]} is not an option of this route; it takes prompt_cache_key and deadline_ms")
        return given

    model: Literal["alora"]
    input: str | Many[dict[str, Any]]
    questions: Many[Annotated[Predicate | Choice, Field(discriminator="type")]] = Field(min_length=1, max_length=400)
    prompt_cache_key: str | None = Field(
        default=None, min_length=1, max_length=256, description="share KV under this key only"
    )
    deadline_ms: float | None = Field(default=None, gt=0, le=600_000, strict=True)


class PredicateAnswer(BaseModel):
    """The calibrated probability of the policy's positive label."""

    type: Literal["predicate"] = "predicate"
    name: str | None
    probability: float


class OptionProbability(BaseModel):
    """One label's."""

    value: str
    probability: float


class ChoiceAnswer(BaseModel):
    """``choice`` is the verdict at the policy's threshold, which need not be the most probable label."""

    type: Literal["choice"] = "choice"
    name: str | None
    choice: str
    confidence: float
    probabilities: list[OptionProbability]


class Refusal(BaseModel):
    """The policy did not answer, in time or at all."""

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

    model: str
    answers: list[PredicateAnswer | ChoiceAnswer | Refusal]
    usage: DecisionUsage


def policy_of(question: Predicate | Choice, number: int, served: Sequence[Served]) -> Served:
    """The policy that a question asks; GuardRefusal for one that no served policy answers, or several do."""
    given = question.instructions
    text = given if isinstance(given, str) else "".join(part.text for part in given)
    fitting = [
        item
        for item in served
        if text and text in (f"policy:{item.policy.id}", f"policy:{item.name}", item.policy.rule)
    ]
    if question.name in {item.policy.id for item in served} or len(fitting) > 1:
        fitting = [item for item in fitting if item.policy.id == question.name]
    if len(fitting) != 1:
        have = ", ".join(item.policy.id for item in served)[:500]
        which = number if question.name is None else repr(question.name[:100])
        raise GuardRefusal(
            f"question {which} asks what no policy here was trained on, and any answer would be to another question; "
            f"set instructions to policy:ID, of {have}, or to that policy's rule, word for word"
        )
    labels = fitting[0].policy.labels
    if isinstance(question, Choice) and sorted(option.value for option in question.choices) != sorted(labels):
        raise GuardRefusal(f"the choices about {fitting[0].policy.id} must be its labels: {', '.join(labels)}")
    return fitting[0]


def messages_of(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The input as messages, or as items that are read like those of data."""
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def decided(request: DecisionRequest, asked: Sequence[Served], answer: GuardResponse) -> DecisionResponse:
    """The answer in OpenAI's terms; ``asked`` has each question's policy."""
    verdicts = {verdict.policy: verdict for verdict in answer.verdicts}
    answers = [
        _answer(question, verdicts[item.policy.id]) for question, item in zip(request.questions, asked, strict=True)
    ]
    usage = answer.usage
    tokens = usage.prefix_tokens * usage.policies + usage.suffix_tokens
    given = sum(verdict.status == "ok" for verdict in answer.verdicts)
    return DecisionResponse(
        model=MODEL,
        answers=answers,
        usage=DecisionUsage(
            input_tokens=tokens,
            input_tokens_details={
                "cached_tokens": max(0, tokens - usage.computed_tokens) if answer.complete else 0,
                "cache_write_tokens": 0,
            },
            output_tokens=given,
            output_tokens_details={"reasoning_tokens": 0},
            total_tokens=tokens + given,
        ),
    )


def _answer(question: Predicate | Choice, verdict: PolicyVerdict) -> PredicateAnswer | ChoiceAnswer | Refusal:
    if verdict.probability is None or verdict.probabilities is None or verdict.label is None:
        return Refusal(name=question.name)
    if isinstance(question, Predicate):
        return PredicateAnswer(name=question.name, probability=verdict.probability)
    probabilities = [
        OptionProbability(value=option.value, probability=verdict.probabilities[option.value])
        for option in question.choices
    ]
    confidence = verdict.probabilities[verdict.label]
    return ChoiceAnswer(name=question.name, choice=verdict.label, confidence=confidence, probabilities=probabilities)
