"""The settings of both processes of the documents service."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from messaging.policy import Policy
from schemas.retention import RetentionSettings
from web.outbound import AllowList


class DocumentsSettings(RetentionSettings):
    """Variables ``WORKBOT_<NAME>``; sizes in bytes, times in seconds."""

    storage_dir: Path = Field(description="Folder of the stored files; only this service reads or writes it.")
    max_document_bytes: int = Field(20 * 2**20, gt=0, description="Largest file, and largest page fetched.")
    max_text_bytes: int = Field(1 * 2**20, gt=0, description="Largest JSON body; longer texts come as files.")
    file_retention_days: float = Field(
        365.0,
        gt=0,
        description="How long a file is kept after its document was approved or rejected, or failed; what was read "
        "of it stays.",
    )
    sender_limit: int = Field(10_000, gt=0, description="Most documents of one sender that may wait unread.")

    reader_per_key: int = Field(2, ge=1, description="Slots guaranteed to each sender.")
    reader_total: int = Field(10, ge=1, description="Slots of all readers together.")
    reader_lend: bool = Field(True, description="Whether idle slots go to whoever has work.")
    confidence_bar: float = Field(0.8, ge=0, le=1, description="A field below it sends the document to a reviewer.")

    model_url: str | None = Field(
        None,
        pattern="^https?://",
        description="Base address of an OpenAI-compatible API, such as http://host/v1; unset: the built-in reader.",
    )
    model_name: str = Field("gpt-4o-mini", description="The model asked for.")
    model_key_file: Path | None = Field(None, description="File with the API key; none is sent when unset.")
    model_timeout_seconds: float = Field(60.0, gt=0, description="Longest wait for one answer of the model.")

    reading_processes: int = Field(2, ge=1, description="Processes that take text out of files.")
    reading_deadline_seconds: float = Field(30.0, gt=0, description="Longest time one file's text may take.")
    fetch_timeout_seconds: float = Field(15.0, gt=0, description="Longest time a page may take, redirects included.")
    fetch_allow: AllowList = Field(
        frozenset(), description="Comma-separated host:port that may be fetched although private."
    )

    def policy(self) -> Policy:
        """How the readers' slots are shared."""
        return Policy(per_key=self.reader_per_key, total=self.reader_total, lend=self.reader_lend)

    @model_validator(mode="after")
    def _policy_is_possible(self) -> Self:
        if self.reader_per_key > self.reader_total:
            raise ValueError(
                f"reader_per_key must not be above reader_total ({self.reader_total}), and is {self.reader_per_key}"
            )
        return self
