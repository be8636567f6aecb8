"""Pure: dates, amounts and currencies as documents write them, in one form each."""

import re
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            ("january", "jan", "januar", "janvier", "enero"),
            ("february", "feb", "februar", "février", "febrero"),
            ("march", "mar", "märz", "mars", "marzo"),
            ("april", "apr", "avril", "abril"),
            ("may", "mai", "mayo"),
            ("june", "jun", "juni", "juin", "junio"),
            ("july", "jul", "juli", "juillet", "julio"),
            ("august", "aug", "août", "agosto"),
            ("september", "sep", "sept", "septembre", "septiembre"),
            ("october", "oct", "okt", "oktober", "octobre", "octubre"),
            ("november", "nov", "novembre", "noviembre"),
            ("december", "dec", "dez", "dezember", "décembre", "diciembre"),
        ),
        start=1,
    )
    for name in names
}
_ISO = re.compile(r"(?<!\d)(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?!\d)")
_NUMERIC = re.compile(r"(?<!\d)(\d{1,2})([./-])(\d{1,2})\2(\d{4})(?!\d)")
_DAY_FIRST = re.compile(r"(?<!\d)(\d{1,2})\.?\s+(?:de\s+)?([^\W\d_]{3,10})\.?,?\s+(?:de\s+)?(\d{4})(?!\d)")
_MONTH_FIRST = re.compile(r"([^\W\d_]{3,10})\.?\s+(\d{1,2})(?:st|nd|rd|th)?,?\s+(\d{4})(?!\d)")

_SYMBOLS = {"€": "EUR", "£": "GBP", "$": "USD", "¥": "JPY", "₹": "INR", "zł": "PLN"}
_CODES = "EUR|USD|GBP|SEK|NOK|DKK|CHF|PLN|CZK|HUF|JPY|CNY|INR|CAD|AUD|NZD"
_CURRENCY = re.compile(rf"(?<![A-Za-z])(?:{_CODES})(?![A-Za-z])|[€£$¥₹]|zł")
_GROUPED = r"\d{1,3}(?:[ .,'’\u00a0\u202f]\d{3})+(?:[.,]\d{1,2})?"
_AMOUNT = re.compile(rf"(?<![\w.,])-?(?:{_GROUPED}|\d+(?:[.,]\d{{1,2}})?)(?![\w%])")


@dataclass(frozen=True, slots=True)
class Value:
    """A value in its one form. `sure` is False when the document can be read in two ways."""

    text: str
    sure: bool = True


def find_date(text: str) -> Value | None:
    """The first date, as YYYY-MM-DD. 04/05/2026 is taken day first, and is not sure."""
    if match := _ISO.search(text):
        return _date(int(match[1]), int(match[2]), int(match[3]))
    if match := _NUMERIC.search(text):
        first, second, year = int(match[1]), int(match[3]), int(match[4])
        if second > 12:
            return _date(year, first, second)
        return _date(year, second, first, sure=match[2] == "." or first > 12 or first == second)
    if (match := _DAY_FIRST.search(text)) and match[2].lower() in _MONTHS:
        return _date(int(match[3]), _MONTHS[match[2].lower()], int(match[1]))
    if (match := _MONTH_FIRST.search(text)) and match[1].lower() in _MONTHS:
        return _date(int(match[3]), _MONTHS[match[1].lower()], int(match[2]))
    return None


def find_amount(text: str) -> Value | None:
    """The last amount on a line, with a point and two decimals. "1.234" may be a thousand or not: not sure."""
    matches = _AMOUNT.findall(text)
    return _amount(matches[-1]) if matches else None


def find_currencies(text: str) -> list[str]:
    """The distinct currencies a text names, by code, in order of appearance."""
    return list(dict.fromkeys(_SYMBOLS.get(found, found) for found in _CURRENCY.findall(text)))


def _date(year: int, month: int, day: int, *, sure: bool = True) -> Value | None:
    try:
        return Value(date(year, month, day).isoformat(), sure)
    except ValueError:
        return None


def _amount(written: str) -> Value:
    digits = re.sub(r"[ '’\u00a0\u202f]", "", written)
    sure = True
    if "." in digits and "," in digits:
        decimal = max(".", ",", key=digits.rfind)
    elif re.search(r"[.,]\d{1,2}$", digits):
        decimal = digits[-3] if digits[-3] in ".," else digits[-2]
    else:
        decimal = ""
        sure = "." not in digits and "," not in digits
    whole, _, cents = digits.rpartition(decimal) if decimal else (digits, "", "")
    plain = re.sub(r"[.,]", "", whole)
    return Value(f"{Decimal(f'{plain}.{cents or 0}'):.2f}", sure)
