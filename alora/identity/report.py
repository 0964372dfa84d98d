"""A certificate as rows of a table: every check and control, by dtype."""

from alora.identity.certificate import Certificate, DtypeRecord, ParityRecord
from alora.identity.certify import ENGINE

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
