"""Functions that a loaded library imports from others, replaced for this process; on Linux, in processes of 64 bits.

A library calls what it imports through a table of addresses that the dynamic linker has filled. The table is found as
the linker does: from the library's ``link_map``, which a handle of glibc points to, over the dynamic section to the
relocations of its procedure linkage table (``link.h`` and ``elf.h``).
"""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_END, _TABLE_BYTES, _STRINGS, _SYMBOLS, _TABLE = 0, 2, 5, 6, 23  # DT_NULL, PLTRELSZ, STRTAB, SYMTAB and JMPREL
_WORD = ctypes.sizeof(ctypes.c_size_t)
_ENTRY_BYTES, _SYMBOL_BYTES, _RELOCATION_BYTES = 2 * _WORD, 24, 24  # Elf64_Dyn, Elf64_Sym and Elf64_Rela


def replace_imports(library: ctypes.CDLL, replacements: Mapping[bytes, Any]) -> None:
    """Let a library call other functions than those it imports.

    Args:
        library: the library, loaded.
        replacements: ctypes functions by the name of what they replace; the caller keeps them alive.

    Raises:
        OSError: the table cannot be written.
    """
    for name, slot in _imports(library._handle):  # noqa: SLF001 - public under no other name
        if name in replacements:
            _allow_writing(slot)
            address = ctypes.cast(replacements[name], ctypes.c_void_p).value
            ctypes.c_void_p.from_address(slot).value = address


def _imports(link_map: int) -> Iterator[tuple[bytes, int]]:
    """Yield each imported function's name and where its address is kept."""
    base, _, dynamic = _words(link_map, 3)
    section = _section(dynamic)
    table = section.get(_TABLE, 0)
    for relocation in range(table, table + section.get(_TABLE_BYTES, 0), _RELOCATION_BYTES):
        offset, info = _words(relocation, 2)
        symbol = section[_SYMBOLS] + _SYMBOL_BYTES * (info >> 32)
        name = section[_STRINGS] + ctypes.c_uint32.from_address(symbol).value
        yield ctypes.string_at(name), base + offset


def _section(dynamic: int) -> dict[int, int]:
    found: dict[int, int] = {}
    while (entry := _words(dynamic, 2))[0] != _END:
        found[entry[0]] = entry[1]
        dynamic += _ENTRY_BYTES
    return found


def _words(address: int, count: int) -> list[int]:
    return list((ctypes.c_size_t * count).from_address(address))


def _allow_writing(slot: int) -> None:
    process = ctypes.CDLL(None, use_errno=True)
    page = slot - slot % mmap.PAGESIZE  # slots are aligned, so that none lies on two pages
    address, protection = ctypes.c_void_p(page), ctypes.c_int(mmap.PROT_READ | mmap.PROT_WRITE)
    if process.mprotect(address, ctypes.c_size_t(mmap.PAGESIZE), protection):
        raise OSError(ctypes.get_errno(), "a library's table of imported functions cannot be written")
