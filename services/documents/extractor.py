"""One process of the extraction pool: takes a file on stdin, answers with its text on stdout, until stdin closes.

A request is a JSON line {"task", "size", "encoding"} and `size` bytes; the answer is {"ok": true, "size"} and that
much UTF-8, or {"ok": false, "reason", "message"}. Plain data both ways: a hostile file may take this process over,
and its parent must not unpickle what comes out of it.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import traceback
from typing import BinaryIO

from messaging.errors import NotRetryable
from services.documents import markup, pdf

MEMORY_BYTES = 2 * 2**30
"""Address space one file may need; a decompression bomb ends its own process only."""
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until the parent closes stdin or dies."""
    parent = int(sys.argv[1])
    _end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "wb")
    # Whatever a library prints goes to the log, not into the answers.
    os.dup2(2, 1)
    _send(answers, {"ok": True, "size": 0})
    requests = sys.stdin.buffer
    while line := requests.readline():
        request = json.loads(line)
        data = requests.read(request["size"])
        if len(data) < request["size"]:
            return
        try:
            text = _read(request["task"], data, request["encoding"]).encode("utf-8", "replace")
        except NotRetryable as error:
            _send(answers, {"ok": False, "reason": error.reason, "message": str(error)})
        except MemoryError:
            message = "The file needs more memory than reading one may take; split it or export it anew."
            _send(answers, {"ok": False, "reason": "unreadable", "message": message})
        except Exception:
            # A fault the file alone brings about, which it would bring about again; the log says where.
            traceback.print_exc()
            message = "The file cannot be read; export it again and send it anew."
            _send(answers, {"ok": False, "reason": "unreadable", "message": message})
        else:
            _send(answers, {"ok": True, "size": len(text)}, text)


def _read(task: str, data: bytes, encoding: str | None) -> str:
    return pdf.text(data) if task == "pdf" else markup.text(data, encoding)


def _send(answers: BinaryIO, head: dict[str, object], body: bytes = b"") -> None:
    answers.write(json.dumps(head).encode() + b"\n" + body)
    answers.flush()


def _end_with(parent: int) -> None:
    """Be killed when the parent dies, also in the middle of a file; it may have died before we asked for that."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


if __name__ == "__main__":
    main()
