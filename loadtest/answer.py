"""What the simulated provider answers: the fields in a document's text, in the shapes of an OpenAI-compatible API."""

import json
import re
import time
from random import Random
from typing import Any

_LABELS = {
    "supplier": re.compile(r"^Supplier:[ \t]*(.+)$", re.MULTILINE),
    "number": re.compile(r"^Invoice number:[ \t]*(.+)$", re.MULTILINE),
    "date": re.compile(r"^Invoice date:[ \t]*(\S+(?: \(\?\))?)", re.MULTILINE),
    "currency": re.compile(r"^Currency:[ \t]*([A-Z]{3})\b", re.MULTILINE),
    "total": re.compile(r"^Total:[ \t]*([0-9.]+)(?: [A-Z]{3})?( \(\?\))?", re.MULTILINE),
}
_DOUBT = " (?)"


def fields(text: str, document: str) -> list[dict[str, Any]]:
    """The fields with a confidence each. One marked "(?)" is doubted; one that is not there is empty, with 0."""
    found: list[dict[str, Any]] = []
    for name, label in _LABELS.items():
        match = label.search(text)
        if match is None:
            found.append({"name": name, "value": "", "confidence": 0.0})
            continue
        doubted = match.group().rstrip().endswith(_DOUBT)
        confidence = Random(f"{document}/{name}").uniform(*((0.35, 0.75) if doubted else (0.9, 0.99)))  # noqa: S311
        value = match.group(1).strip().removesuffix(_DOUBT)
        found.append({"name": name, "value": value, "confidence": round(confidence, 2)})
    return found


def completion(found: list[dict[str, Any]], model: str, number: int) -> dict[str, Any]:
    """A chat completion whose content is the fields as JSON."""
    content = json.dumps({"fields": found})
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": len(content) // 4, "total_tokens": len(content) // 4},
    }


def error(message: str, kind: str, code: str) -> dict[str, Any]:
    """An error body as OpenAI writes them."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
