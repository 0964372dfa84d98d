"""The certificate: what was checked, on what, with which software. Plain data, its JSON and its table; no torch."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from alora.atomic import write_json
from alora.base.fingerprint import Fingerprint
from alora.errors import BundleError
from alora.received import CHANGED, NOT_OURS, read_record, refused, sealed

FORMAT: Final = 1
ENGINE = "transformers"  # of a certificate that this process has made
_REMEDY = "run 'alora validate' again"


@dataclass(frozen=True)
class Environment:
    """Software and machine of the runs. ``attention`` names the attention kernels, ``threads`` is torch's count."""

    alora: str
    torch: str
    transformers: str
    peft: str
    python: str
    platform: str
    device: str
    threads: int
    attention: str


@dataclass(frozen=True)
class FindingRecord:
    """One breach of the definition: the ``check`` that saw it, and where."""

    check: str
    detail: str


@dataclass(frozen=True)
class LayerRecord:
    """Elements compared and different for K or V of one layer, summed over all calls of one dtype.

    ``must_differ`` says whether the adapter reaches it at the activation token.
    """

    site: str
    must_differ: bool
    prefix_elements: int
    prefix_different: int
    activation_elements: int
    activation_different: int


@dataclass(frozen=True)
class ControlRecord:
    """One negative control: was it caught, and where was the first difference."""

    name: str
    caught: bool
    first_difference: str


@dataclass(frozen=True)
class HandoverRecord:
    """A cached prefix handed to the adapter: elements of it that changed, and the error of the logits after it.

    ``logits_error`` is the largest absolute difference over the largest absolute logit; None when it is not finite.
    """

    case: str
    prefix_elements: int
    prefix_changed: int
    logits_error: float | None
    bound: float
    passed: bool

    @property
    def far(self) -> bool:
        """Whether the logits are further off than rounding explains."""
        return self.logits_error is None or self.logits_error > self.bound

    @property
    def logits_in_words(self) -> str:
        """How far off the logits are, for a list of what failed."""
        if self.logits_error is None:
            return "the logits are not finite: its training may have diverged (training.learning_rate)"
        return f"relative error of the logits {self.logits_error} (bound {self.bound})"


@dataclass(frozen=True)
class DtypeRecord:
    """Everything that was seen in one dtype. ``findings`` is empty when the definition holds in every call."""

    dtype: str
    passed: bool
    findings: tuple[FindingRecord, ...]
    layers: tuple[LayerRecord, ...]
    handovers: tuple[HandoverRecord, ...]
    controls: tuple[ControlRecord, ...]


@dataclass(frozen=True)
class ParityRecord:
    """Answers of this engine on a bundle's golden rows against the stored ones, which the in-process scorer gave.

    ``difference`` is the largest of two log-probabilities over a row's labels: absolute, relative above 1; None when
    not finite. ``dtype`` is the engine's, ``stored_dtype`` that of the stored answers.
    """

    rows: int
    dtype: str
    stored_dtype: str
    difference: float | None
    tolerance: float
    passed: bool
    controls: tuple[ControlRecord, ...] = ()

    @property
    def far(self) -> bool:
        """Whether the answers are further off than the dtypes explain."""
        return self.difference is None or self.difference > self.tolerance

    @property
    def failures(self) -> list[str]:
        """Every reason why ``passed`` is false, whatever it says."""
        lines = [f"golden rows: control not caught: {control.name}" for control in self.controls if not control.caught]
        if self.far:
            answers = f"answers in {self.dtype} differ from the bundle's in {self.stored_dtype}"
            lines.insert(0, f"golden rows: {answers} by {self.difference} (tolerance {self.tolerance})")
        return lines


@dataclass(frozen=True)
class Certificate:
    """KV identity of one adapter on one base.

    ``engine`` is what ran the pairs; ``lengths`` has one ``(name, activation index of each row, padded tokens)`` per
    call; ``adapter_digest`` and ``base`` are compared with a bundle's own by :meth:`require`. ``created`` is UTC.
    ``parity`` is there when an engine other than the scorer's was asked for a bundle's golden rows, and ``vllm`` when
    the same adapter was certified in vLLM's cache too.
    """

    passed: bool
    engine: str
    created: str
    base_source: str
    base: Fingerprint
    adapter_digest: str
    invocation_ids: tuple[int, ...]
    adapted_modules: tuple[str, ...]
    environment: Environment
    lengths: tuple[tuple[str, tuple[int, ...], int], ...]
    dtypes: tuple[DtypeRecord, ...]
    notes: tuple[str, ...] = ()
    parity: ParityRecord | None = None
    vllm: "Certificate | None" = None
    format: Literal[1] = FORMAT

    @property
    def failures(self) -> tuple[str, ...]:
        """Every reason why ``passed`` is false, most telling first; empty when it is true."""
        lines = []
        for record in self.dtypes:
            lines += [f"{record.dtype}: {finding.check} check, {finding.detail}" for finding in record.findings]
            lines += [
                f"{record.dtype}: {layer.site}, {layer.prefix_different} element(s) of the prefix differ"
                for layer in record.layers
                if layer.prefix_different and not record.findings
            ]
            lines += [
                f"{record.dtype}: handover, {handover.case}: {handover.prefix_changed} element(s) of the cached "
                f"prefix changed, {handover.logits_in_words}"
                for handover in record.handovers
                if not handover.passed or handover.prefix_changed or handover.far
            ]
            lines += [f"{record.dtype}: control not caught: {c.name}" for c in record.controls if not c.caught]
        if self.parity is not None:
            lines += self.parity.failures
        return tuple(lines)

    @property
    def all_passed(self) -> bool:
        """Whether every part passed; ``passed`` is what the file says."""
        parts = (*self.dtypes, *filter(None, (self.parity,)))
        return bool(self.dtypes) and all(record.passed for record in parts) and not self.failures

    @property
    def without_controls(self) -> bool:
        """Whether no fault was planted in a dtype, as with ``identity.negative_controls=false``."""
        return any(not record.controls for record in self.dtypes)

    def require(self, base: Fingerprint, adapter_digest: str, folder: object = "this bundle") -> None:
        """BundleError unless this certificate passed and speaks of this very base and adapter, those of ``folder``."""
        problems = [f"the base's {name} is another one" for name in self.base.differences(base)]
        if self.adapter_digest != adapter_digest:
            problems.append(
                f"the adapter's digest is {adapter_digest[:12]}, the certificate's is {self.adapter_digest[:12]}"
            )
        if not self.passed:
            problems.append("the certificate says that the check failed")
        if problems:
            why = f"the KV identity certificate of {self.created} does not cover {folder}: {'; '.join(problems)}"
            raise refused(BundleError, NOT_OURS, f"{why}; {_REMEDY} on this adapter and base")

    def as_dict(self) -> dict[str, Any]:
        """Plain form, as written to ``identity.json``."""
        return asdict(self)


def write_certificate(certificate: Certificate, path: Path) -> None:
    """Write the JSON next to ``path`` and rename it there, so that a file that exists is whole."""
    write_json(path, sealed(certificate.as_dict()))


def read_certificate(path: Path) -> Certificate:
    """Read what :func:`write_certificate` wrote; BundleError when it is missing, damaged or of another format.

    One that says that it passed must hold nothing else: a run's own file is trusted by export.
    """
    certificate = read_record(Certificate, path, BundleError, _REMEDY, format=FORMAT)
    for part in filter(None, (certificate, certificate.vllm)):
        if part.passed and not part.all_passed:
            reason = next(iter(part.failures), "no dtype was checked, or a part failed")
            raise refused(BundleError, CHANGED, f"{path} says that it passed, and holds: {reason}; {_REMEDY}")
    return certificate


Row = tuple[str, str, str]


def check_rows(certificate: Certificate) -> list[Row]:
    """What was checked, in which dtype, and how it went."""
    rows = [row for record in certificate.dtypes for row in _of_dtype(record, certificate.engine)]
    return rows + ([] if certificate.parity is None else _of_parity(certificate.parity))


def _of_dtype(record: DtypeRecord, engine: str) -> list[Row]:
    seen = {finding.check for finding in record.findings}
    compared = sum(layer.prefix_elements for layer in record.layers)
    reached = sum(layer.must_differ for layer in record.layers)
    changed = sum(handover.prefix_changed for handover in record.handovers)
    errors = [handover.logits_error for handover in record.handovers]
    worst = "not finite" if None in errors else f"{max((e for e in errors if e is not None), default=0.0):.1e}"
    far = any(handover.far for handover in record.handovers)
    checks = [
        ("the base repeats itself", "repeat" not in seen, ""),
        ("prefix equal as integers", "prefix" not in seen, f"{compared} elements"),
        ("difference at the activation token", "activation" not in seen, f"{reached} tensors must"),
    ]
    if engine == ENGINE:
        checks += [
            ("PEFT's search finds the activation", "search" not in seen, ""),
            ("cached prefix unchanged by the adapter", not changed, f"{len(record.handovers)} prompts"),
            ("logits after the cached prefix", not far, f"relative error {worst}"),
        ]
    else:
        checks.append(("cached prefix unchanged by the adapter", "handover" not in seen, ""))
    lines = [(name, record.dtype, _outcome("ok" if good else "FAILED", extra)) for name, good, extra in checks]
    return lines + [
        (f"control: {control.name}", record.dtype, "caught" if control.caught else "NOT CAUGHT")
        for control in record.controls
    ]


def _of_parity(parity: ParityRecord) -> list[Row]:
    difference = "not finite" if parity.difference is None else f"{parity.difference:.1e}"
    extra = f"{parity.rows} rows, largest difference {difference}, tolerance {parity.tolerance:g}"
    return [
        ("the golden rows' answers", parity.dtype, _outcome("FAILED" if parity.far else "ok", extra)),
        *(
            (f"golden control: {control.name}", parity.dtype, "caught" if control.caught else "NOT CAUGHT")
            for control in parity.controls
        ),
    ]


def _outcome(word: str, extra: str) -> str:
    return f"{word} ({extra})" if extra else word
