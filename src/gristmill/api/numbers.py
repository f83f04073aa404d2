"""`{number:id}` in the address of a route: any number of digits, where Python and databases refuse to read thousands."""

from __future__ import annotations

from starlette.convertors import Convertor, register_url_convertor

_DIGITS = 20  # with so many it is larger than any id


class Number(Convertor[int]):
    """Of one that is too long the first digits, which are nobody's number either."""

    regex = "[0-9]+"

    def convert(self, value: str) -> int:
        return int(value.lstrip("0")[:_DIGITS] or "0")

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("id", Number())
