"""The README's example does what it says, and its table of settings is the real one."""

import json
import re
from pathlib import Path

from services.documents import fields
from services.documents.settings import DocumentsSettings

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")


def test_the_example_text_has_every_field_that_a_document_should_have() -> None:
    (body,) = re.findall(r"-d '(\{\"text\".*?\})'", README)
    found = {field.name: field.value for field in fields.find(json.loads(body)["text"])}
    assert found["supplier"] == "Acme Ltd"
    assert found["total"] == "12.50"
    assert all(found[name] for name in fields.REQUIRED)


def test_every_setting_of_the_model_is_explained() -> None:
    real = {f"WORKBOT_{name.upper()}" for name in DocumentsSettings.model_fields if name.startswith("model_")}
    assert set(re.findall(r"^\| `(WORKBOT_MODEL_\w+)` \|", README, re.MULTILINE)) == real
