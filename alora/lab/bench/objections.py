"""What must hold before a ratio is printed. The codes are in ``docs/serving_benchmark.md``, and stable."""

from collections.abc import Sequence

import torch

from alora.lab.bench.trials import AA, READS_TEXT, Agreement, Cell, Measured, Objection, Trial, mean_ratio

# Relative, of the worst matrix. In 16 bits a gradient is a sum of many rounded products, layer after layer: behind 36
# random layers on an H200 the worst of 504 matrices was 0.16 to 0.21 apart and the mean 0.06 to 0.11; behind 30, 0.05.
GRADIENT_TOLERANCE = {False: 1e-4, True: 0.3}
# Of a label's probability: two engines, other kernels. In bfloat16, vLLM on a CPU is up to 0.017 from the right
# reference behind 12 layers of Qwen3-4B's width; on an H100 aLoRA's own rounds differ by 0.03.
VERDICT_TOLERANCE = {False: 1e-3, True: 0.05}
MOVED = 2  # times the tolerance: what adapters must change on average, so that one left out would be noticed
AA_COVERAGE = 0.99  # so that the A/A run cries wolf once in a hundred runs
WIDEST_AA = 2.0  # high over low of the A/A ratio's interval
LARGEST_BLOCK = 32  # tokens that the cache keeps or loses together: on CPU; 16 on a GPU
ROOFLINE_MARGIN = 0.8  # rates are measured too, on other shapes than the model's


def half(dtype: torch.dtype) -> bool:
    """Whether rounding alone explains much."""
    return dtype in (torch.bfloat16, torch.float16)


def refuse(code: str, text: str, when: object = True) -> list[Objection]:
    return [Objection(code, text)] if when else []


def unequal_work(ours: Sequence[Trial], theirs: Sequence[Trial], name: str) -> list[Objection]:
    """Both must have run the same pieces, token for token, none twice. A system that runs a part of them (a trainer one
    pair, standard LoRA a part of the burst) stands for the whole only where all prompts are of one length."""
    for who, trials in (("ours", ours), (name, theirs)):
        if not trials or not all(trial.run.work for trial in trials):
            return refuse("UNEQUAL_WORK", f"{who} ran nothing")
        if any(len(set(trial.run.work)) != len(trial.run.work) for trial in trials):
            return refuse("UNEQUAL_WORK", f"{who} counts a piece twice")
    whole, *others = (set(trial.run.work) for trial in ours)
    if any(work != whole for work in others):
        return refuse("UNEQUAL_WORK", "ours did not run the same pieces in every round")
    code = "OTHER_PROMPTS" if name in READS_TEXT else "UNEQUAL_WORK"
    for part in (set(trial.run.work) for trial in theirs):
        mine, other = (sorted({(one.prompt_tokens, one.output_tokens) for one in pieces}) for pieces in (whole, part))
        foreign = part - whole
        if foreign and mine != other:
            return refuse(code, f"prompts differ: ours {mine}, {name} {other} (tokens in, tokens out)")
        if foreign:
            return refuse(code, f"{name} ran {len(foreign)} piece(s) that ours did not: other tokens or another answer")
        if len(part) < len(whole) and len(mine) > 1:
            return refuse("UNEQUAL_WORK", f"{name} ran a part of prompts of unequal length: its whole is unknown")
    return []


def missing_rounds(ours: Sequence[Trial], theirs: Sequence[Trial], name: str) -> list[Objection]:
    """Ratios are taken round by round, so both must have run every one of them, once."""
    mine, other = (sorted(trial.round for trial in trials) for trials in (ours, theirs))
    text = f"{name} was measured in rounds {other}, ours in {mine}"
    return refuse("MISSING_ROUNDS", text, mine != other or len(set(mine)) < len(mine))


def unequal_verdicts(agreement: Agreement, tolerance: float) -> list[Objection]:
    """A system must answer as its reference does, and the reference's adapters must matter."""
    system, against = agreement.system, agreement.against
    if agreement.checked == 0:
        return refuse("NOT_COMPARED", f"no verdict of {system} was compared with {against}")
    if agreement.moved is not None and agreement.moved <= MOVED * tolerance:
        text = f"adapters of {system} move a probability by {agreement.moved:.1e} on average: agreement shows nothing"
        return refuse("INERT_ADAPTERS", text)
    unsteady = against == system
    text = (
        f"verdicts of {system} differ by up to {agreement.worst:.2g} from "
        f"{'its own other rounds' if unsteady else against} (rounding explains {tolerance:g}; {agreement.same} of "
        f"{agreement.checked} labels are the same)"
    )
    code = "UNSTEADY_VERDICTS" if unsteady else "UNEQUAL_VERDICTS"
    return refuse(code, text, not agreement.worst <= tolerance)  # NaN too


def warm_cache(trials: Sequence[Trial], shared: int, name: str) -> list[Objection]:
    """On an empty cache, nothing but the burst's own prefix may be hit, and by none but the later requests."""
    for trial in trials:
        hits = [answer.cached_tokens for answer in trial.run.results]
        if hits and (max(hits) > shared or min(hits) > 0):
            text = f"the cache was not empty: a request of {name} hit {max(hits)} tokens of {shared} shared ones"
            return refuse("COLD_CACHE", text)
    return []


def emptied_cache(trials: Sequence[Trial], kept: int, name: str) -> list[Objection]:
    """What the stage before has left in the cache must still be there, or a system starts anew that need not."""
    least = kept // LARGEST_BLOCK * LARGEST_BLOCK
    short = sum(answer.cached_tokens < least for trial in trials for answer in trial.run.results)
    text = (
        f"{short} request(s) of {name} did not find the {least} tokens that the stage before left in the cache: it was "
        "emptied in between, or is too small (VLLM_CPU_KVCACHE_SPACE=GIB on CPU)"
    )
    return refuse("EMPTIED_CACHE", text, short)


def below_roofline(seconds: float, roofline: float, name: str) -> list[Objection]:
    """Nothing is faster than its own arithmetic: a system that seems to be has left work out, or it is miscounted."""
    text = f"{name} took {seconds:.1e} s, its arithmetic and bytes at this machine's best rates {roofline:.1e} s"
    return refuse("BELOW_ROOFLINE", text, seconds < ROOFLINE_MARGIN * roofline)


def biased_aa(ratio: Measured) -> list[Objection]:
    """Ours against itself must show 1.0 within its interval, and the interval must not hold whatever one likes."""
    shown = f"ours against itself shows {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
    if not ratio.contains(1.0):
        return refuse("BIASED_AA", f"{shown} in place of 1.0: the order or the machine disturbs the measurement")
    text = f"{shown}, too wide to say anything: run it on a quiet machine, or with a higher bench.rounds"
    return refuse("NOISY_AA", text, ratio.high > WIDEST_AA * ratio.low)


def aa_ratio(cells: Sequence[Cell]) -> tuple[Measured | None, list[Objection]]:
    """The A/A run over ours in one workload: one ratio a round, of the seconds of all its cells together, since what
    the machine does in a round, it does to all of them."""
    pairs: list[dict[int, tuple[float, float]]] = []
    for cell in (cell for cell in cells if cell.ours):
        ours, aa = cell.of(cell.ours[0]), cell.of(AA)
        if not aa:
            return None, refuse("NO_AA", f"{cell.name} has no A/A run")
        if missing := missing_rounds(ours, aa, "the A/A run"):
            return None, missing
        pairs.append({one.round: (one.run.seconds, two.run.seconds) for one, two in zip(aa, ours, strict=True)})
    shared = sorted(set.intersection(*map(set, pairs))) if pairs else []  # a cell that was stopped has fewer
    if len(shared) < 2:
        return None, refuse("NO_AA", "there is no A/A run of two rounds or more")
    ratio = mean_ratio([sum(c[n][0] for c in pairs) / sum(c[n][1] for c in pairs) for n in shared], AA_COVERAGE)
    return ratio, biased_aa(ratio)
