"""The README's example does what it says, and its table of settings is the real one."""

import json
import re
from pathlib import Path
from typing import get_args

from services.documents import api, fields, pdf
from services.documents.settings import DocumentsSettings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def test_the_example_text_has_every_field_that_a_document_should_have() -> None:
    (body,) = re.findall(r"-d '(\{\"text\".*?\})'", README)
    found = {field.name: field.value for field in fields.find(json.loads(body)["text"])}
    assert found["supplier"] == "Acme Ltd"
    assert found["total"] == "12.50"
    assert all(found[name] for name in fields.REQUIRED)


def test_the_example_file_is_in_the_clone_and_has_every_field() -> None:
    (name,) = re.findall(r"-F file=@(\S+)", README)
    found = {field.name: field.value for field in fields.find(pdf.text((ROOT / name).read_bytes()))}
    assert all(found[name] for name in fields.REQUIRED)


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_every_status_of_a_document_is_explained() -> None:
    told = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[a-z_`, ]+`) \|", README, re.MULTILINE)))
    assert set(get_args(api.Status)) <= set(told)
    (rejected,) = re.findall(r"^\| `rejected` \| (.*) \|$", README, re.MULTILINE)
    assert "Never given yet" in rejected, "nothing rejects a document yet"


def test_answers_do_not_run_into_one_another() -> None:
    """Ours end in no newline. A live stream has its own, and what a program reads needs none."""
    blocks = "".join(re.findall(r"^```\n(.*?)^```$", README, re.MULTILINE | re.DOTALL))
    calls = [call for call in re.findall(r"(?:\w+=\$\()?curl [^\n]*", blocks) if not call.startswith("ID=$(")]
    assert len(calls) > 10
    assert [call for call in calls if "-w '\\n'" not in call and "/stream" not in call] == []


def test_every_setting_of_the_model_is_explained() -> None:
    real = {f"WORKBOT_{name.upper()}" for name in DocumentsSettings.model_fields if name.startswith("model_")}
    assert set(re.findall(r"^\| `(WORKBOT_MODEL_\w+)` \|", README, re.MULTILINE)) == real
