"""Pure: the fields of a document's text and how far each can be trusted. All the built-in reader knows."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from services.documents.values import Value, find_amount, find_currencies, find_date

REQUIRED = ("supplier", "number", "date", "currency", "total")
"""What every document should say; where it does not, the field is empty, with no confidence, for a person to fill."""

_LABELLED = 0.95
_GUESSED = 0.6
_UNSURE = 0.75
"""A value that can be read in two ways keeps this share of its confidence."""
_CONTRADICTED = 0.6
_DOUBTED = 0.5
CHARACTERS = 200_000
"""How far into a text fields are looked for."""
_LINE = 2_000
"""How much of a line a label and its value may take."""
_BLANKS = re.compile(r"[^\S\n\f]{4,}")
_DOUBT = re.compile(r"\(\?\)|\?\?|\b(?:illegible|unreadable|unclear|unleserlich)\b", re.IGNORECASE)
_COMPANY = re.compile(
    r"\b(?:GmbH|AG|KG|UG|Ltd|Limited|LLC|LLP|Inc|Corp|PLC|B\.?V|AB|AS|Oy|S\.?A|S\.?L|SARL|SAS|SRL)\b\.?"
)
_NUMBER = re.compile(r"[A-Z0-9](?:[A-Z0-9/._-]{0,38}[A-Z0-9])?", re.IGNORECASE)
_TITLES = re.compile(
    r"^(?:tax )?(?:invoice|receipt|bill|credit note|rechnung|facture|factura|quittung)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Field:
    """One fact of a document. `confidence` goes from 0 (a guess) to 1 (certain)."""

    name: str
    value: str
    confidence: float


def find(text: str) -> list[Field]:
    """The fields a text holds, required ones first. Missing required ones are there, empty, with confidence 0.

    The text is a stranger's: its runs of blanks are shortened first, so that the time grows with its length only.
    """
    whole = [line.strip() for line in re.split(r"[\n\f]", _BLANKS.sub("   ", text[:CHARACTERS])) if line.strip()]
    text, lines = "\n".join(whole), [line[:_LINE] for line in whole]
    found = {rule.name: field for rule in _RULES if (field := _labelled(rule, lines)) is not None}
    if "supplier" not in found and (guess := _guess_supplier(lines)) is not None:
        found["supplier"] = guess
    if "date" not in found and (date := find_date(text)) is not None:
        found["date"] = Field("date", date.text, _GUESSED)
    if "currency" not in found and (currencies := find_currencies(text)):
        found["currency"] = Field("currency", currencies[0], 0.9 if len(currencies) == 1 else _GUESSED)
    missing = {name: Field(name, "", 0.0) for name in REQUIRED if name not in found}
    order = [*REQUIRED, *(rule.name for rule in _RULES if rule.name not in REQUIRED)]
    return [(found | missing)[name] for name in order if name in found or name in missing]


def check(text: str, fields: Sequence[Field]) -> list[Field]:
    """The same fields held against the text and each other; what contradicts loses confidence, what agrees gains."""
    by_name = {field.name: field for field in fields}

    def scale(name: str, factor: float) -> None:
        field = by_name[name]
        by_name[name] = replace(field, confidence=round(min(0.99, field.confidence * factor), 3))

    parts = [_money(by_name.get(name)) for name in ("subtotal", "tax", "total")]
    if None not in parts:
        net, tax, total = (part for part in parts if part is not None)
        for name in ("subtotal", "tax", "total"):
            scale(name, 1.04 if net + tax == total else _CONTRADICTED)
    date, due = by_name.get("date"), by_name.get("due_date")
    if date and due and date.value and due.value < date.value:
        scale("date", _CONTRADICTED)
        scale("due_date", _CONTRADICTED)
    flat = " ".join(text[:CHARACTERS].split())
    currencies = find_currencies(flat)
    if by_name.get("currency") and currencies and by_name["currency"].value not in currencies:
        scale("currency", _CONTRADICTED)
    for name in ("supplier", "number"):
        if (field := by_name.get(name)) and field.value and field.value not in flat:
            scale(name, _DOUBTED)
    return [by_name[field.name] for field in fields]


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str
    label: re.Pattern[str]
    read: Callable[[str], Value | None]


def _labelled(rule: _Rule, lines: Sequence[str]) -> Field | None:
    """The value behind the rule's label, or on the line below it. Two different ones: the last, less sure."""
    values: list[tuple[Value, float]] = []
    for index, line in enumerate(lines):
        match = rule.label.match(line)
        if match is None:
            continue
        rest, confidence = line[match.end() :], _LABELLED
        if not rest.strip() and index + 1 < len(lines):
            rest, confidence = lines[index + 1], _LABELLED - 0.05
        value = rule.read(_DOUBT.sub("", rest).strip())
        if value is not None and value.text:
            confidence *= (1 if value.sure else _UNSURE) * (_DOUBTED if _DOUBT.search(rest) else 1)
            values.append((value, confidence))
    if not values:
        return None
    value, confidence = values[-1] if rule.name == "total" else values[0]
    if len({other.text for other, _ in values}) > 1:
        confidence *= _UNSURE
    return Field(rule.name, value.text, round(confidence, 3))


def _guess_supplier(lines: Sequence[str]) -> Field | None:
    head = [line for line in lines[:12] if not _TITLES.match(line)]
    for line in head:
        if _COMPANY.search(line) and len(line) <= 80:
            return Field("supplier", line, 0.7)
    names = [line for line in head[:1] if len(line) <= 60 and not re.search(r"\d{3}|[:?!]", line)]
    return Field("supplier", names[0], 0.4) if names else None


def _name(text: str) -> Value | None:
    name = re.split(r"\s{3,}|\t", text)[0].strip(" ,;")
    return Value(name[:120]) if any(character.isalpha() for character in name) else None


def _number(text: str) -> Value | None:
    match = _NUMBER.match(text)
    return Value(match[0]) if match and any(character.isdigit() for character in match[0]) else None


def _code(text: str) -> Value | None:
    currencies = find_currencies(text)
    return Value(currencies[0], sure=len(currencies) == 1) if currencies else None


def _money(field: Field | None) -> Decimal | None:
    return Decimal(field.value) if field is not None and field.value else None


def _rule(name: str, words: str, read: Callable[[str], Value | None], *, colon: bool = False) -> _Rule:
    end = r"\s*[:#=]\s*" if colon else r"(?:\s*[:#=.]+\s*|\s+(?=\W*\d|[A-Z]{2,}[-/]?\d)|\s*$)"
    return _Rule(name, re.compile(rf"(?:{words}){end}", re.IGNORECASE), read)


_DOCUMENT = "invoice|receipt|bill|credit note|rechnungs?|factur[ae]|quittungs?"
_RULES = (
    _rule(
        "supplier",
        "supplier|vendor|seller|from|issued by|lieferant|verkäufer|fournisseur|proveedor",
        _name,
        colon=True,
    ),
    _rule(
        "number",
        rf"(?:{_DOCUMENT})?[ -]*(?:number|numéro|número|nummer|no|nr|n°|id|#)|{_DOCUMENT}",
        _number,
    ),
    _rule(
        "date",
        rf"(?:(?:{_DOCUMENT})[ -]?)?(?:date|datum|fecha)(?: of issue| de facturation)?|issued(?: on)?",
        find_date,
    ),
    _rule(
        "due_date",
        r"(?:payment )?due(?: date| on| by)?|pay(?:able)? by|fällig(?: am)?|échéance|vencimiento",
        find_date,
    ),
    _rule("currency", "currency|währung|devise|moneda", _code),
    _rule("subtotal", r"sub-?total|net(?: amount| total)?|netto|zwischensumme|total ht|base imponible", find_amount),
    _rule(
        "tax",
        r"(?:plus )?(?:vat|sales tax|tax|gst|mwst|ust|tva|iva)\.?(?: ?\(?\d{1,2}(?:[.,]\d{1,2})? ?%\)?)?(?: amount)?",
        find_amount,
    ),
    _rule(
        "total",
        r"(?:grand |invoice )?total(?: due| amount| ttc| to pay)?(?: \(?[A-Z]{3}\)?)?|amount due|balance due|"
        r"gesamtbetrag|gesamtsumme|rechnungsbetrag|gesamt|montant total|importe total",
        find_amount,
    ),
)
