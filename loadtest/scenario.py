"""What one run sends, to whom, and on which terms: the options of the command line as data."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import inf

from loadtest import corpus


@dataclass(frozen=True, slots=True)
class Scenario:
    """One noisy sender floods the queue; the others send a little right after it.

    counts      documents per sender; the first sender is the noisy one
    broken      how many of the noisy sender's documents are malformed PDFs
    mean        mean seconds of provider time per document (each takes 0.5 to 1.5 times this)
    error_rate, timeout_rate, throttle_rate   share of provider calls that answer 500, nothing at all, or 429
    per_sender, total, lend   the reader's policy during the run: guaranteed slots, all slots, lending

    Raises ValueError for what cannot be, in the words of the command: by the names of its options.
    """

    senders: tuple[str, ...] = ("noisy", "ana", "ben", "chi", "dee")
    counts: tuple[int, ...] = (300, 50, 50, 50, 50)
    broken: int = 100
    seed: int = 33
    mean: float = 1.0
    error_rate: float = 0.0
    timeout_rate: float = 0.0
    throttle_rate: float = 0.0
    per_sender: int = 2
    total: int = 10
    lend: bool = True

    def __post_init__(self) -> None:
        if not self.senders or len(self.senders) != len(self.counts):
            raise ValueError(
                f"--senders names {len(self.senders)} and --counts has {len(self.counts)}: give one count per sender"
            )
        if len(set(self.senders)) != len(self.senders) or not all(self.senders):
            raise ValueError("--senders: every sender needs a name of its own")
        if any(":" in sender for sender in self.senders):
            raise ValueError("--senders: a name may not contain a colon")
        if min(self.counts) < 1:
            raise ValueError("--counts: every sender sends at least one document")
        if not 0 <= self.broken <= self.counts[0]:
            raise ValueError(f"--broken must be between 0 and the noisy sender's {self.counts[0]} documents")
        if not 1 <= self.per_sender <= self.total:
            raise ValueError(f"--per-sender, slots per sender, must be between 1 and the --total of {self.total}")
        if not 0 < self.mean < inf:
            raise ValueError(f"--mean, the mean latency, must be above 0 s, not {self.mean:g}")
        rates = {
            "--error-rate": self.error_rate,
            "--timeout-rate": self.timeout_rate,
            "--throttle-rate": self.throttle_rate,
        }
        for option, rate in rates.items():
            if not 0 <= rate < 1:
                raise ValueError(f"{option} is a share of all calls, from 0 to below 1, not {rate:g}")
        if sum(rates.values()) >= 1:
            raise ValueError(f"{', '.join(rates)} must stay below 1 together, not {sum(rates.values()):g}")

    @property
    def noisy(self) -> str:
        """The sender that floods the queue."""
        return self.senders[0]

    @property
    def quiet(self) -> tuple[str, ...]:
        """Everyone else."""
        return self.senders[1:]

    @property
    def documents(self) -> int:
        """How many documents the run sends."""
        return sum(self.counts)

    @property
    def quiet_slots(self) -> int:
        """The slots guaranteed to the quiet senders together."""
        return min(self.total, self.per_sender * max(1, len(self.quiet)))

    @property
    def faulty(self) -> bool:
        """Whether the provider was told to fail on documents it could read."""
        return self.error_rate + self.timeout_rate + self.throttle_rate > 0

    def plan(self) -> Iterator[tuple[str, corpus.Document]]:
        """Every (sender, document) in sending order; the broken ones are spread evenly over the noisy sender's."""
        index = 0
        for sender, count in zip(self.senders, self.counts, strict=True):
            share = Fraction(self.broken, count) if sender == self.noisy else Fraction(0)
            for position in range(count):
                is_broken = int((position + 1) * share) > int(position * share)
                yield sender, (corpus.broken if is_broken else corpus.document)(self.seed, index)
                index += 1

    def terms(self) -> dict[str, object]:
        """What must be equal for two runs to be compared: everything but lending."""
        return {name: value for name, value in asdict(self).items() if name != "lend"}
