"""Who reads a document: two calls, extract the fields and then check them, to one of two readers.

    BuiltinReader      works without a network: real text extraction and rules
    CompatibleReader   a model behind an OpenAI-compatible endpoint

Both raise the errors of `messaging.errors`: NotRetryable when the document is at fault, Throttled when asked to wait,
Outage when our own set-up is at fault or the reader is shut to everybody, Retryable for all that may pass.
"""

from services.documents.providers.builtin import BuiltinReader
from services.documents.providers.compatible import CompatibleReader
from services.documents.providers.reading import Document, Provider, Reading

__all__ = ["BuiltinReader", "CompatibleReader", "Document", "Provider", "Reading"]
