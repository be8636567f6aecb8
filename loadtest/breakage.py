"""Ways a real PDF comes to harm. Every one keeps the header, so only a reader can tell, and no reader can repair it.

PDF readers are forgiving: they rebuild a lost cross-reference table by scanning for objects. So each kind here takes
away what cannot be rebuilt: the catalog, the page tree, or every object.
"""

from collections.abc import Callable
from random import Random

from loadtest.pdf import HEADER, Written

Harm = Callable[[Written, Random], bytes]


def truncated(file: Written, random: Random) -> bytes:
    """An upload that broke off before the structure at the end was sent."""
    return file.data[: random.randint(file.structure_at // 2, file.structure_at)]


def garbage_in_the_middle(file: Written, random: Random) -> bytes:
    """A bad disk block over the page tree, the catalog and the tables; beginning and last line survive."""
    tail = b"\n%%EOF\n"
    return file.data[: file.structure_at] + random.randbytes(len(file.data) - file.structure_at - len(tail)) + tail


def no_objects(file: Written, random: Random) -> bytes:
    """A header and an end, and nothing but comments between them."""
    filler = b"".join(b"%% %s\n" % random.randbytes(24).hex().encode() for _ in range(random.randint(2, 40)))
    return HEADER + filler + b"%%EOF\n"


def truncated_xref(file: Written, random: Random) -> bytes:
    """The catalog lost and the cross-reference table cut in its first entries, so nothing says where pages are."""
    table = file.data.rindex(b"xref\n0 ")
    return file.data[: file.structure_at] + file.data[table : table + random.randint(8, 24)] + b"\n"


def scrambled(file: Written, random: Random) -> bytes:
    """A transfer that decrypted or unpacked wrongly: only the header is what it was."""
    return HEADER + random.randbytes(len(file.data) - len(HEADER))


KINDS: tuple[Harm, ...] = (
    truncated,
    garbage_in_the_middle,
    no_objects,
    truncated_xref,
    scrambled,
)
