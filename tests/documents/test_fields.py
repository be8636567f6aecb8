"""Fields in texts: what is found, how sure, and what loses trust."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.errors import NotRetryable
from services.documents import fields, markup, verdict
from services.documents.fields import REQUIRED, Field
from services.documents.values import Value, find_amount, find_currencies, find_date


def read(text: str) -> dict[str, Field]:
    return {field.name: field for field in fields.check(text, fields.find(text))}


def values(text: str) -> dict[str, str]:
    return {name: field.value for name, field in read(text).items() if field.value}


ENGLISH = """Invoice
Blue River Ltd.
Invoice No. BR-4411
Invoice date: August 3, 2025
Due date: 2025-09-02
Subtotal $1,000.00
Sales tax (8%) $80.00
Total due $1,080.00"""

GERMAN = """ACME Büro GmbH
Hauptstr. 1, 10115 Berlin
Rechnungsnummer
RE-2024/117
Rechnungsdatum: 12.03.2024
Zwischensumme 1.000,00 €
MwSt. 19 % 190,00 €
Gesamtbetrag 1.190,00 €
Fällig am 11.04.2024"""


def test_an_english_invoice() -> None:
    assert values(ENGLISH) == {
        "supplier": "Blue River Ltd.",
        "number": "BR-4411",
        "date": "2025-08-03",
        "currency": "USD",
        "total": "1080.00",
        "due_date": "2025-09-02",
        "subtotal": "1000.00",
        "tax": "80.00",
    }


def test_a_german_invoice() -> None:
    assert values(GERMAN) == {
        "supplier": "ACME Büro GmbH",
        "number": "RE-2024/117",
        "date": "2024-03-12",
        "currency": "EUR",
        "total": "1190.00",
        "due_date": "2024-04-11",
        "subtotal": "1000.00",
        "tax": "190.00",
    }


def test_a_labelled_value_is_trusted_more_than_a_guess() -> None:
    labelled, guessed = read("Supplier: Acme\nTotal: 1.00"), read("Acme Ltd\nTotal: 1.00")
    assert labelled["supplier"].confidence > 0.9 > 0.75 > guessed["supplier"].confidence


def test_what_is_missing_is_there_for_a_person_to_fill() -> None:
    found = read("hello there, how are you?")
    assert list(found) == list(REQUIRED)
    assert {(field.value, field.confidence) for field in found.values()} == {("", 0.0)}


@pytest.mark.parametrize(
    ("sound", "unsound", "name"),
    [
        (ENGLISH, ENGLISH.replace("1,080", "1,090"), "total"),
        (ENGLISH, ENGLISH.replace("2025-09-02", "2025-07-02"), "due_date"),
        (ENGLISH, ENGLISH.replace("$1,080.00", "$1,080.00 (?)"), "total"),
        (ENGLISH, ENGLISH + "\nInvoice No. BR-9999", "number"),
        ("Date: 13/05/2026", "Date: 04/05/2026", "date"),
        ("Total: 1,234.00", "Total: 1,234", "total"),
    ],
)
def test_what_is_contradicted_or_doubtful_loses_trust(sound: str, unsound: str, name: str) -> None:
    assert read(unsound)[name].confidence < 0.8 <= read(sound)[name].confidence


def test_a_field_that_does_not_stand_in_the_text_is_doubted() -> None:
    (checked,) = fields.check(ENGLISH, [Field("number", "XX-1", 0.95)])
    assert checked.confidence < 0.5


@pytest.mark.parametrize(
    ("found", "status"),
    [
        ([], "waiting_for_review"),
        ([Field("a", "1", 0.8)], "approved"),
        ([Field("a", "1", 0.79)], "waiting_for_review"),
        ([Field("a", "1", 1.0), Field("b", "1", 0.1)], "waiting_for_review"),
    ],
)
def test_a_person_looks_at_it_unless_all_is_sure(found: list[Field], status: str) -> None:
    assert verdict.status_after_reading(found, 0.8) == status


@given(st.text(max_size=400))
def test_any_text_can_be_read(text: str) -> None:
    for field in read(text).values():
        assert 0 <= field.confidence <= 1


@given(st.dates(), st.sampled_from(["%Y-%m-%d", "%d.%m.%Y", "%d %B %Y", "%B %d, %Y", "%Y/%m/%d"]))
def test_a_date_is_found_in_each_form(day: object, form: str) -> None:
    from datetime import date

    assert isinstance(day, date)
    if day.year >= 1000:
        assert find_date(f"on {day.strftime(form)}.") == Value(day.isoformat())


@pytest.mark.parametrize("text", ["31.02.2024", "2024-13-01", "1.2", "no date", "99/99/2024"])
def test_no_date_is_made_up(text: str) -> None:
    assert find_date(text) is None


@given(st.integers(-(10**9), 10**9))
def test_an_amount_is_found_however_it_is_grouped(cents: int) -> None:
    sign, whole, rest = ("-" if cents < 0 else ""), abs(cents) // 100, abs(cents) % 100
    expected = Value(f"{sign}{whole}.{rest:02}")
    english = f"{sign}{whole:,}.{rest:02}"
    german = f"{sign}{whole:,}".replace(",", ".") + f",{rest:02}"
    swiss = f"{sign}{whole:,}".replace(",", "'") + f".{rest:02}"
    for text in (english, german, swiss, f"{sign}{whole}.{rest:02}"):
        if cents != 0 or sign == "":
            assert find_amount(f"Total {text} EUR") == expected


def test_currencies_by_code_and_symbol() -> None:
    assert find_currencies("12 € or USD 13 or £9, not EUROPE") == ["EUR", "USD", "GBP"]


def test_a_page_is_read_block_by_block() -> None:
    page = b"""<html><head><meta charset="iso-8859-1"><title>T\xfcr</title><script>var a = "<p>no</p>"</script></head>
        <body><nav>Menu</nav><h1>One</h1><p>two <b>three</b>&amp;four</p><table><tr><td>a</td><td>b</td></tr></table>
        <svg><text>no</text></svg><br/>last"""
    assert markup.text(page) == "Tür\nOne\ntwo three&four\na b\nlast"


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        ("é".encode(), None, "é"),
        ("é".encode("latin-1"), None, "é"),
        ("é".encode("latin-1"), "iso-8859-1", "é"),
        ("é".encode(), "no-such-encoding", "é"),
        ("\ufeffé".encode(), "latin-1", "é"),
        ("é".encode("utf-16"), "utf-8", "é"),
    ],
)
def test_encodings(data: bytes, encoding: str | None, text: str) -> None:
    assert markup.decode(data, encoding) == text


@given(st.binary(max_size=500))
def test_any_page_can_be_read(page: bytes) -> None:
    assert "\0" not in markup.text(page)


def seconds(text: str) -> float:
    began = time.process_time()
    read(text)
    return time.process_time() - began


@pytest.mark.parametrize("start", ["total", "invoice", "due", "supplier", "1", "may 1"])
def test_the_time_grows_with_the_length_only(start: str) -> None:
    short, long = (min(seconds(start + " " * count + "x") for _ in range(3)) for count in (20_000, 200_000))
    assert long < 1
    assert long <= 20 * max(0.001, short)


def test_blanks_between_a_label_and_its_value_do_no_harm() -> None:
    assert values("total:" + " " * 5000 + "12.00 EUR")["total"] == "12.00"
    assert values("From: Blue River" + " " * 9 + "Page 1")["supplier"] == "Blue River"


@pytest.mark.parametrize("name", ["punycode", "undefined", "idna", "unicode_escape", "utf-7", "rot13", "x\0y", ""])
def test_only_encodings_of_text_are_followed(name: str) -> None:
    assert markup.decode("Größe".encode(), name) == "Größe"
    if name:
        with pytest.raises(NotRetryable, match="UTF-8") as error:
            markup.decode("Größe".encode("latin-1"), name)
        assert error.value.reason == "unknown_encoding"


@pytest.mark.parametrize("name", ["ISO-8859-1", "windows-1252", "Latin1", "iso_8859-15"])
def test_known_encodings_are_followed(name: str) -> None:
    assert markup.decode("Größe".encode("latin-1"), name) == "Größe"
    assert markup.decode(f'<meta charset="{name}">Größe'.encode("latin-1")).endswith("Größe")


def test_many_open_ends_cost_no_more_than_their_number() -> None:
    def took(count: int) -> float:
        page = b"<nav>" * count + b"</svg>" * count
        began = time.process_time()
        assert markup.text(page) == ""
        return time.process_time() - began

    assert took(40_000) <= 20 * min(took(4_000) for _ in range(3))


def test_an_outer_end_tag_ends_what_was_left_open_inside() -> None:
    assert markup.text(b"<nav><svg><svg></nav>seen<svg>not</svg>") == "seen"
