"""What is wrong with a file, gathered to the end: every problem with its place, before any money is spent."""

from alora.errors import DataError

SHOWN = 20


class Findings:
    """Problems in the order found. All are counted, the first :data:`SHOWN` are kept."""

    def __init__(self) -> None:
        self.count = 0
        self.shown: list[str] = []

    def add(self, where: str, problem: str) -> None:
        """Note one problem; ``where`` is a place such as ``train.jsonl:17``."""
        self.count += 1
        if len(self.shown) < SHOWN:
            self.shown.append(f"{where}: {problem}")

    def lines(self) -> list[str]:
        """What to print: the problems, and how many more there are."""
        more = self.count - len(self.shown)
        return [*self.shown, *([f"... and {more} more"] if more else [])]

    def raise_if_any(self, source: str) -> None:
        """Raise all problems as one :class:`alora.errors.DataError`."""
        if self.count:
            raise self.error(source)

    def error(self, source: str) -> DataError:
        """All problems as one error."""
        return DataError(f"{source}: {self.count} problem{'s' if self.count > 1 else ''}", self.lines(), self.count)
