"""Minimal pairs for each cell of the dimensions, judged by votes that must agree."""

import random
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from alora.config.schema import Recipe
from alora.data.conversation import Conversation, Message
from alora.data.messages import as_row
from alora.errors import RunError
from alora.llm import prompts
from alora.llm.calls import BudgetSpent, Calls
from alora.llm.prompts import Vote
from alora.policy import Policy

ARGUMENT_TOKENS = 300  # of a vote


@dataclass(frozen=True)
class Case:
    """A generated conversation, what it was written as, and what its judges said."""

    pair: str
    conversation: Conversation
    intended: str
    cell: Mapping[str, str]
    label: str | None  # None: the judges did not agree
    votes: Mapping[str, int]
    rounds: int
    model: str  # that wrote it
    prompt: str  # key of its pair's line in calls.jsonl: a digest of the request
    cost: float  # of its votes and its share of the writing; 0 without prices
    voters: Sequence[tuple[str, str]] = ()  # model and label of each vote, where several models vote

    def as_row(self, policy: Policy) -> dict[str, Any]:
        """A row as ``data.train`` reads it, with where it came from."""
        names = ("intended", "model", "prompt", "votes", "rounds", "cost")
        origin = {"cell": dict(self.cell)} | {name: getattr(self, name) for name in names}
        origin |= {"voters": [{"model": model, "label": label} for model, label in self.voters]} if self.voters else {}
        row = as_row(self.conversation) | {"policy": policy.id, "label": self.label}
        return row | {"pair": self.pair, "generated": origin}


def find_dimensions(calls: Calls, policy: Policy, recipe: Recipe) -> dict[str, list[str]] | None:
    """The policy's dimensions as the model names them; None when it names none that can be read."""
    most = max(recipe.generate.max_tokens, recipe.judge.max_tokens)  # judge's own default is that of a vote
    reply = calls.question(prompts.ask_dimensions(policy), prompts.read_dimensions, max_tokens=most)
    if reply.failed:
        why = calls.refusal or "no answer"
        raise RunError(f"the first request, for the policy's dimensions, failed: {why}; give the same command again")
    return reply.said


def cells(dimensions: Mapping[str, Sequence[str]], count: int, seed: int) -> list[dict[str, str]]:
    """``count`` combinations in which each value of a dimension occurs as often as any other, give or take one."""
    columns = {}
    for name, values in dimensions.items():
        draw = random.Random(f"{seed} {name}")
        column = [value for start in range(0, count, len(values)) for value in draw.sample(values, len(values))]
        columns[name] = column[:count]
    return [{name: column[number] for name, column in columns.items()} for number in range(count)]


def judged_pairs(
    calls: Calls, policy: Policy, wanted: Sequence[Mapping[str, str]], recipe: Recipe
) -> Generator[list[Case] | BudgetSpent | None, None, None]:
    """For each cell, in order: its cases, one for each label; None where the model's answer cannot be read; or
    BudgetSpent, where the budget ended before the last vote. On close, every answer under way is kept."""

    def judge_pair(number: int) -> list[Case] | BudgetSpent | None:
        try:
            return _pair(calls, policy, wanted[number], number, recipe)
        except BudgetSpent as spent:
            return spent
        except BaseException:
            calls.stop()  # here: the next pair may begin before the caller sees the error
            raise

    with ThreadPoolExecutor(recipe.judge.concurrency) as pool:
        try:
            yield from pool.map(judge_pair, range(len(wanted)))
        except BaseException:
            calls.stop()
            pool.shutdown(cancel_futures=True)
            raise


def _pair(calls: Calls, policy: Policy, cell: Mapping[str, str], number: int, recipe: Recipe) -> list[Case] | None:
    settings, pair = recipe.generate, f"pair-{number:05d}"
    written = calls.question(
        prompts.ask_cases(policy, cell, number),
        lambda text: prompts.read_cases(text, policy),
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
        response_format=prompts.cases_format(policy),
    )
    if written.said is None:
        return None
    cases, writing = [], written.usage.cost(recipe.judge) / len(policy.labels)
    for label, turns in zip(policy.labels, written.said, strict=True):
        conversation = Conversation(f"{policy.id}-{pair}-{label}", tuple(Message(role, text) for role, text in turns))
        votes, rounds, voting = _debate(calls, policy, conversation, recipe)
        said = [policy.labels[vote.label_id] for vote in votes]
        counts, agreed = {name: said.count(name) for name in policy.labels}, len(said) == settings.votes
        decided = said[0] if agreed and len(set(said)) == 1 else None
        voters = [(vote.model, name) for vote, name in zip(votes, said, strict=True) if vote.model]
        cost, model = round(writing + voting, 9), str(recipe.judge.model)
        cases.append(Case(pair, conversation, label, cell, decided, counts, rounds, model, written.key, cost, voters))
    return cases


def _debate(calls: Calls, policy: Policy, conversation: Conversation, recipe: Recipe) -> tuple[list[Vote], int, float]:
    """The votes of the last round, how many rounds there were (a second one only where the first did not agree), and
    what they cost."""
    votes, rounds, cost, judges = list[Vote](), 0, 0.0, recipe.generate.judges
    while not rounds or (rounds < 2 and len({vote.label_id for vote in votes}) > 1):
        said, votes, rounds = votes, list[Vote](), rounds + 1
        for stance in range(recipe.generate.votes):
            model = judges[stance % len(judges)] if judges else ""
            reply = calls.question(
                prompts.ask_vote(policy, conversation, stance, said, recipe.judge.max_characters),
                lambda text: prompts.read_vote(text, policy),
                # More votes than stances: a stance that is asked again must be able to say something else.
                temperature=0.0 if stance < len(prompts.STANCES) else recipe.generate.temperature,
                max_tokens=max(ARGUMENT_TOKENS, recipe.judge.max_tokens),
                response_format=prompts.vote_format(policy),
                **({"model": model} if model else {}),
            )
            cost += reply.usage.cost(recipe.judge)
            votes += [] if reply.said is None else [replace(reply.said, model=model)]
    return votes, rounds, cost
