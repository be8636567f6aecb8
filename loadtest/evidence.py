"""What the evidence of a run amounts to, document by document: lost, done twice, rightly dead."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from loadtest.records import Evidence, ProviderCall, Run, Seen, Sent, Stored
from schemas.events import DocumentFailed, DocumentRead

READ = frozenset({"waiting_for_review", "approved", "rejected"})
"""Statuses of a document that was read. Waiting for a person counts as done: the queue's part is over."""
FAILED = frozenset({"failed"})


@dataclass(frozen=True)
class Ledger:
    """The evidence, joined. `attempts` is how often the reader tries a job that keeps failing."""

    evidence: Evidence
    attempts: int = 4
    _stored: Mapping[str, Stored] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_stored", {document.id: document for document in self.evidence.stored})

    @cached_property
    def sent(self) -> Mapping[str, Sent]:
        """What the API accepted, by document id."""
        return {sent.id: sent for sent in self.evidence.sent if sent.id is not None}

    @cached_property
    def runs(self) -> Mapping[str, Sequence[Run]]:
        """Each document's runs in order of start."""
        return _grouped(sorted(self.evidence.runs, key=lambda run: run.started_at))

    @cached_property
    def dead(self) -> Mapping[str, Sequence[Seen]]:
        """Dead letters by document, one for each distinct record id."""
        unique = {letter.id: letter for letter in self.evidence.dead_letters}
        groups: dict[str, list[Seen]] = defaultdict(list)
        for letter in unique.values():
            groups[letter.subject].append(letter)
        return groups

    @cached_property
    def events(self) -> Mapping[tuple[str, str], int]:
        """How many different events each (document, type) has. A repeat of one event's id is no second event."""
        unique = {event.id: event for event in self.evidence.events}
        return Counter((event.subject, event.type) for event in unique.values())

    @cached_property
    def calls(self) -> Mapping[str, Sequence[ProviderCall]]:
        """The provider's records by document id; calls for documents that are not of this run are left out."""
        known = {sent.reference: document for document, sent in self.sent.items()}
        known |= {sent.sha256: document for document, sent in self.sent.items()}
        groups: dict[str, list[ProviderCall]] = defaultdict(list)
        for call in self.evidence.calls:
            if (document := known.get(call.document)) is not None:
                groups[document].append(call)
        return groups

    def status(self, document: str) -> str | None:
        """The status the service has for a document, or None when it has no such document."""
        stored = self._stored.get(document)
        return stored.status if stored else None

    def done_at(self, document: str) -> float | None:
        """When the run that settled a document gave its slot back."""
        ends = [run.finished_at for run in self.runs.get(document, ()) if run.outcome in ("done", "dead")]
        return max(ends, default=None)

    def lost(self) -> list[str]:
        """Documents whose end cannot be shown, each with what is missing."""
        faults = []
        for sent in self.evidence.sent:
            if sent.id is None:
                faults.append(f"#{sent.index} of {sent.sender}: never accepted ({sent.error})")
            elif (missing := self._missing(sent.id)) is not None:
                faults.append(f"{sent.id} of {sent.sender}: {missing}")
        return faults

    def _missing(self, document: str) -> str | None:
        status = self.status(document)
        if status is None:
            return "the service does not know it"
        if status not in READ | FAILED:
            return f"still {status}"
        if self.done_at(document) is None:
            return f"{status}, but no run settled it"
        if status in READ and not self.events.get((document, DocumentRead.TYPE)):
            return f"{status}, but no {DocumentRead.TYPE} event went out"
        if status in FAILED and not self.events.get((document, DocumentFailed.TYPE)):
            return f"{status}, but no {DocumentFailed.TYPE} event went out"
        if status in FAILED and document not in self.dead:
            return f"{status}, but it is not among the dead letters"
        return None

    def duplicates(self) -> list[str]:
        """Effects that happened more than once: events, endings, dead letters, documents."""
        faults = [f"{document}: {count} different {kind} events" for (document, kind), count in self._repeated()]
        for document in self.sent:
            settled = [run for run in self.runs.get(document, ()) if run.outcome in ("done", "dead")]
            if len(settled) > 1:
                faults.append(f"{document}: settled by {len(settled)} runs")
            if self.events.get((document, DocumentRead.TYPE)) and self.events.get((document, DocumentFailed.TYPE)):
                faults.append(f"{document}: told both as read and as failed")
            if len(self.dead.get(document, ())) > 1:
                faults.append(f"{document}: {len(self.dead[document])} dead letters")
        faults += [
            f"{document.id}: not one that was sent"
            for document in self.evidence.stored
            if document.id not in self.sent
        ]
        accepted = Counter(sent.id for sent in self.evidence.sent if sent.id is not None)
        faults += [f"{document}: one id for {count} documents" for document, count in accepted.items() if count > 1]
        return faults

    def _repeated(self) -> list[tuple[tuple[str, str], int]]:
        return [(name, count) for name, count in self.events.items() if count > 1 and name[0] in self.sent]

    def expected_dead(self) -> set[str]:
        """The broken documents, and those that died of their last attempt after the provider failed each."""
        broken = {document for document, sent in self.sent.items() if sent.broken}
        tried = self.dead_attempts()
        return broken | {
            document
            for document, calls in self.calls.items()
            if tried.get(document) == self.attempts
            and sum(call.status not in (200, 400, 429) for call in calls) >= self.attempts
        }

    def dead_attempts(self) -> dict[str, int]:
        """For each dead letter's document, the attempt that ended it."""
        return {
            document: max((run.attempt for run in self.runs.get(document, ())), default=0) for document in self.dead
        }


def _grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.document].append(run)
    return groups
