"""``open_loop``: conversations arrive by a Poisson process and fire policies of a population, whether or not the last
one is answered.

Two questions: the highest offered rate whose p95 stays below the target, and what happens when the population outgrows
the slots. Latency counts from the arrival, so a server that falls behind cannot hide it by accepting later.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from alora.config.schema import BenchSettings
from alora.lab.bench import objections
from alora.lab.bench.harness import Context
from alora.lab.bench.record import LoadRecord, OfferedRate
from alora.lab.bench.reference import Key, References, steadiness
from alora.lab.bench.systems import Request, System, VllmSystem, read_result
from alora.lab.bench.trials import Result

LOADED = ("alora", "lora")  # the systems with adapters
FIRES = (5, 10)  # policies that a conversation fires, from and to
ZIPF = 1.0  # exponent of the policies' popularity
RATES = 5  # to offer in a search
WIDEN = 4  # so that few offered rates find one that meets the target and one that does not
TOGETHER = 4  # conversations that are answered at once before the clock starts
SUSTAINED = 0.9  # of the offered rate must be served: the queue of a few conversations never stands quite still
CHECKED = 4  # conversations of every offered rate whose verdicts are compared with the system's reference


@dataclass(frozen=True)
class Arrival:
    """A conversation that arrives ``at`` seconds after the start and fires ``policies``."""

    at: float
    conversation: int
    policies: tuple[int, ...]


def arrivals(count: int, rate: float, population: int, seed: int) -> list[Arrival]:
    """A Poisson process of ``rate`` conversations a second; each fires distinct policies, the popular ones more often.
    For one seed, another rate stretches the same arrivals, and another count only adds some."""
    times, counts, generator = (np.random.default_rng([seed, stream]) for stream in range(3))
    weights, coming = 1.0 / np.arange(1, population + 1) ** ZIPF, []
    for number, at in enumerate(np.cumsum(times.exponential(1.0, size=count) / rate)):
        least, most = (min(end, population) for end in FIRES)
        many = int(counts.integers(least, most + 1))
        fired = generator.choice(population, size=many, replace=False, p=weights / weights.sum())
        coming.append(Arrival(float(at), number, tuple(map(int, fired))))
    return coming


def offered(settings: BenchSettings, rate: float, population: int) -> list[Arrival]:
    """The conversations of one offered rate: the same at every rate, for every system. Policies beyond the smallest
    population are numbered in the order of their call, so that who is never called needs no adapter."""
    kept, numbers, coming = min(settings.serving.populations), dict[int, int](), []
    for one in arrivals(settings.serving.conversations, rate, population, settings.seed):
        own = tuple(p if p < kept else numbers.setdefault(p, kept + len(numbers)) for p in one.policies)
        coming.append(replace(one, policies=own))
    return coming


def fired_adapters(settings: BenchSettings) -> int:
    """Adapters that the open loop needs: all of the smallest population, which is meant to fit the slots, and more."""
    populations = settings.serving.populations
    fired = [policy for many in populations for one in offered(settings, 1.0, many) for policy in one.policies]
    return max(min(populations), 1 + max(fired))


@dataclass
class Load:
    """What becomes a :class:`LoadRecord`: its rates, every result, and the requests to ask the references about."""

    record: LoadRecord
    results: list[tuple[Key, Result]] = field(default_factory=list)
    asked: set[Key] = field(default_factory=set)

    def judged(self, references: References, tolerance: float) -> LoadRecord:
        """Some verdicts compared with the reference, all with the system's first answer to the same request."""
        system = self.record.system
        entries = [references.judge(system, self.results), *steadiness(system, self.results)]
        refused = [one for entry in entries for one in objections.unequal_verdicts(entry, tolerance)]
        agreement = [entry for entry in entries if entry.checked]
        return replace(self.record, agreement=agreement, refused=[] if self.record.reason else refused)


@dataclass
class Generator:
    """Offers conversations to a system; ``conversation`` makes prefix ids of a number of tokens and a seed."""

    settings: BenchSettings
    system: VllmSystem
    conversation: Callable[[int, int], tuple[int, ...]]
    context: Context

    def requests(self, coming: Sequence[Arrival]) -> list[list[tuple[Key, Request]]]:
        """Of every conversation, made before the clock runs: tokenising is the client's work."""
        requests = []
        for one in coming:
            prefix = self.conversation(self.settings.serving.load_tokens, 100 + one.conversation)
            requests.append([((prefix, each.policy), each) for each in self.system.requests(prefix, one.policies)])
        return requests

    def rehearse(self, population: int) -> None:
        """One conversation, then some at once, untimed: no batch of these sizes is the first one of a rate."""
        some = self.requests(offered(self.settings, 1.0, population)[:TOGETHER])
        for together in (some[:1], some):
            self.system.forget()
            self.system.engine.answer([request for one in together for _, request in one])

    def offer(self, rate: float, load: Load) -> OfferedRate:
        """Send ``rate`` conversations a second on an empty cache until all are answered; at rate 0 the same ones, one
        after another. ``load`` gets the figures at once, so that a run that is stopped keeps them."""
        self.context.harness.in_time()
        self.system.forget()
        clock, engine = self.context.clock, self.system.engine
        coming = offered(self.settings, rate or 1.0, load.record.population)
        requests, answered = self.requests(coming), list[tuple[Key, Request, Any]]()
        sent, begun, latencies = dict[str, tuple[int, Key, Request]](), dict[int, float](), list[float]()
        waiting, start = deque(zip(coming, requests, strict=True)), clock.now()
        while waiting or begun:
            # the same sum as wait_until gets: a difference may never reach an arrival
            while waiting and (clock.now() >= start + waiting[0][0].at if rate else not begun):
                one, own = waiting.popleft()
                begun[one.conversation] = one.at if rate else clock.now() - start
                sent |= {engine.send(request): (one.conversation, key, request) for key, request in own}
            if not begun:
                clock.wait_until(start + waiting[0][0].at)
                continue
            outputs = engine.step()
            now = clock.now() - start
            for output in (output for output in outputs if output.finished):
                number, key, request = sent.pop(output.request_id)
                answered.append((key, request, output))
                if all(number != other for other, _, _ in sent.values()):
                    latencies.append(now - begun.pop(number))
            self.context.harness.in_time()  # raises, and leaves what is under way
        measured, some = offered_rate(rate, latencies, clock.now() - start, coming[-1].at), min(CHECKED, len(coming))
        for number in range(some):
            load.asked |= {key for key, _ in requests[number * len(coming) // some]}
        load.results += [(key, read_result(request, 0.0, output)) for key, request, output in answered]  # off the clock
        load.record.rates.append(measured)
        return measured


def offered_rate(rate: float, latencies: Sequence[float], seconds: float, last: float) -> OfferedRate:
    """One offered rate from the latencies of its conversations, of which the ``last`` arrived then. A queue of few
    conversations may stay below the target at any rate, so the rate must also have been sustained."""
    sustained = not rate or SUSTAINED * (seconds - min(latencies)) <= last
    return OfferedRate(rate, bool(sustained), round(seconds, 3), [round(1000 * one, 3) for one in latencies])


def search(offer: Callable[[float], OfferedRate], target_ms: float, rates: int = RATES) -> list[OfferedRate]:
    """Find the knee: start from one conversation at a time, widen until the answer changes, then bisect."""
    offers = [offer(0.0)]
    if not offers[0].meets(target_ms):
        return offers  # not even one conversation at a time is answered in time
    rate, good, bad = 1000.0 / offers[0].percentile(95), 0.0, None
    for _ in range(rates):
        offers.append(offer(rate))
        good, bad = (rate, bad) if offers[-1].meets(target_ms) else (good, rate)
        rate = rate * WIDEN if bad is None else rate / WIDEN if good == 0.0 else (good + bad) / 2
    return offers


def run_open_loop(
    settings: BenchSettings, systems: Mapping[str, System], conversation: Callable[[int, int], tuple[int, ...]],
    context: Context, loads: list[Load],
) -> None:  # fmt: skip
    """Search the highest rate of each system with adapters, then offer half of it to growing populations."""
    smallest, target = min(settings.serving.populations), settings.serving.target_ms
    for name in LOADED:
        system = systems.get(name)
        if isinstance(system, VllmSystem):
            generator = Generator(settings, system, conversation, context)
            system.engine.load(name, range(smallest))
            generator.rehearse(smallest)
            load = Load(LoadRecord("rate", name, smallest, target, system.engine.slots, smallest))
            loads.append(load)
            rates = search(lambda rate, load=load, one=generator: one.offer(rate, load), target)
            best = load.record.bounds()[0]
            offer_populations(generator, best / 2 if best else 0.0 if rates[0].meets(target) else None, loads)


def offer_populations(generator: Generator, rate: float | None, loads: list[Load]) -> None:
    """The same conversations on each population, by turns, some rounds; one fits the slots, to compare with."""
    settings, engine, name = generator.settings, generator.system.engine, generator.system.name
    own, fired = [], {}
    for population in sorted(settings.serving.populations):
        calls = Counter(policy for one in offered(settings, 1.0, population) for policy in one.policies)
        fired[population] = [policy for policy, _ in reversed(calls.most_common())]  # who is loaded last has a slot
        reason = "not exercised: no rate met the target, not even one after another" if rate is None else None
        if own and len(calls) <= engine.slots:
            reason = f"not exercised: {len(calls)} distinct adapters, {engine.slots} slots"
        target = settings.serving.target_ms
        own.append(Load(LoadRecord("population", name, population, target, engine.slots, len(calls), reason)))
    run = [load for load in own if load.record.reason is None]
    loads += [load for load in own if load.record.reason is not None or len(run) > 1]
    for number in range(settings.rounds + settings.rounds % 2 if len(run) > 1 else 0):  # each is first as often
        for load in run if number % 2 == 0 else reversed(run):
            engine.load(name, fired[load.record.population])
            generator.offer(rate or 0.0, load)
