"""How much success a stage needs for its run to go on."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.errors import Invalid, quoted


@dataclass(frozen=True)
class Need:
    """How much success a stage needs: a count, a share, or (neither) one item if there were any."""

    count: int | None = None
    share: float | None = None

    @classmethod
    def of(cls, value: float | None, where: str) -> Need:
        if value is None:
            return cls()
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise Invalid(f"{where}: need must be a count (2) or a share (0.5), not {quoted(value)}")
        if isinstance(value, int):
            return cls(count=value)
        if not 0 <= value <= 1:
            raise Invalid(f"{where}: need={value!r}: a share goes from 0.0 to 1.0, a count is a whole number")
        return cls(share=value)

    def met(self, succeeded: int, total: int) -> bool:
        if self.count is not None:
            return succeeded >= self.count
        if self.share is not None:
            return total == 0 or succeeded / total >= self.share
        return succeeded > 0 or total == 0

    def words(self, succeeded: int, total: int) -> str:
        if self.share is not None:
            return f"{succeeded} of {total} succeeded, {self.share:.0%} needed"
        return f"{succeeded} of {total} succeeded, {1 if self.count is None else self.count} needed"
