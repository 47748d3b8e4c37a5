"""Reads BTF: the types, enums and functions of the running kernel, and of a BPF object.

With it, layouts are looked up and never written twice, and what a kernel offers is found by
looking for symbols and types instead of asking for its version. Format: the kernel's
Documentation/bpf/btf.rst. Only what sched-ctl needs is here; reading the kernel's 150,000 types
takes 0.1 s.
"""

import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Btf", "BtfError", "Kind", "Member", "Variable"]

VMLINUX = Path("/sys/kernel/btf/vmlinux")
MAGIC = 0xEB9F


class BtfError(Exception):
    """The data is no BTF, or lacks what was asked for."""


class Kind(IntEnum):
    """BTF_KIND_* of include/uapi/linux/btf.h."""

    INT = 1
    PTR = 2
    ARRAY = 3
    STRUCT = 4
    UNION = 5
    ENUM = 6
    FWD = 7
    TYPEDEF = 8
    VOLATILE = 9
    CONST = 10
    RESTRICT = 11
    FUNC = 12
    FUNC_PROTO = 13
    VAR = 14
    DATASEC = 15
    FLOAT = 16
    DECL_TAG = 17
    TYPE_TAG = 18
    ENUM64 = 19


# Words that follow the three of each type: fixed, and per element (vlen).
_EXTRA: dict[int, int] = {Kind.INT: 1, Kind.ARRAY: 3, Kind.VAR: 1, Kind.DECL_TAG: 1}
_PER_ELEMENT: dict[int, int] = {
    Kind.STRUCT: 3,
    Kind.UNION: 3,
    Kind.ENUM: 2,
    Kind.FUNC_PROTO: 2,
    Kind.DATASEC: 3,
    Kind.ENUM64: 3,
}
_QUALIFIERS = (Kind.TYPEDEF, Kind.VOLATILE, Kind.CONST, Kind.RESTRICT, Kind.TYPE_TAG)
_STRETCH, _LOOK, _MANY = 512, 64, 1 << 16  # words
_INT_SIGNED = 1  # in the upper bits of the word that follows an INT


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a struct; offset in bytes; `type` as an id."""

    name: str
    type: int
    offset: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A global variable in its section. offset, size in bytes."""

    name: str
    type: int
    offset: int
    size: int


class Btf:
    """All types of one kernel or object, by id and by name."""

    def __init__(self, data: bytes) -> None:
        try:
            magic, _version, _flags, header, types, types_len, strings, strings_len = (
                struct.unpack_from("=HBBIIIII", data)
            )
        except struct.error as error:
            raise BtfError("not BTF: too short") from error
        if magic != MAGIC:
            raise BtfError(f"not BTF of this machine's byte order: magic {magic:#x}")
        if header + max(types + types_len, strings + strings_len) > len(data):
            raise BtfError("truncated BTF")
        self._strings = data[header + strings : header + strings + strings_len]
        # A view: of a kernel's some 6 MB no second copy is made.
        self._words = memoryview(data)[header + types : header + types + types_len].cast("I")
        self._starts = self._index()
        words = np.frombuffer(self._words, np.uint32)
        self._names = words[np.frombuffer(self._starts, np.int32)[1:]]  # of each type from id 1 on

    @classmethod
    def of_kernel(cls) -> "Btf":
        """The running kernel's. OSError where it has none (CONFIG_DEBUG_INFO_BTF=n)."""
        return cls(VMLINUX.read_bytes())

    @classmethod
    def of_object(cls, path: Path) -> "Btf":
        """An ELF object's. Offsets in its sections are only known once libbpf has opened it."""
        return cls(_elf_section(path.read_bytes(), ".BTF"))

    def _index(self) -> "array[int]":
        """Where each type starts; id 0 is void."""
        words, end, at = self._words, len(self._words), 0
        seen, leaves = _stretches(np.frombuffer(words, np.uint32))
        found = bytearray(end)
        while at + 3 <= end:
            if seen[at]:
                number = at // _STRETCH
                stop = (number + 1) * _STRETCH
                found[at:stop] = seen[at:stop]
                at = leaves[number]
            else:
                found[at] = 1
                info = words[at + 1]
                kind = info >> 24 & 31
                at += 3 + _EXTRA.get(kind, 0) + _PER_ELEMENT.get(kind, 0) * (info & 0xFFFF)
        if at != end:
            raise BtfError("damaged BTF: types do not end where their section does")
        starts = array("i", [-1])
        starts.frombytes(np.flatnonzero(np.frombuffer(found, np.uint8)).astype(np.int32).tobytes())
        return starts

    # -- single types ---------------------------------------------------------------------------

    def kind(self, id_: int) -> Kind:
        return Kind(self._words[self._starts[id_] + 1] >> 24 & 31)

    def name(self, id_: int) -> str:
        return self._text(self._words[self._starts[id_]])

    def _text(self, offset: int) -> str:
        return self._strings[offset : self._strings.index(b"\0", offset)].decode()

    def _target(self, id_: int) -> int:
        """The third word: the size, or the type that this one refers to."""
        return self._words[self._starts[id_] + 2]

    def _elements(self, id_: int, per_element: int) -> Iterator[memoryview]:
        start = self._starts[id_]
        count = self._words[start + 1] & 0xFFFF
        for at in range(start + 3, start + 3 + per_element * count, per_element):
            yield self._words[at : at + per_element]

    def find(self, name: str, *kinds: Kind) -> int | None:
        """Id of the first type with this name (and one of the kinds), or None."""
        offset = self._strings.find(b"\0" + name.encode() + b"\0") + 1
        if offset == 0:
            return None
        for id_ in (np.flatnonzero(self._names == offset) + 1).tolist():
            if not kinds or self.kind(id_) in kinds:
                return int(id_)
        return None

    def _need(self, name: str, *kinds: Kind) -> int:
        id_ = self.find(name, *kinds)
        if id_ is None:
            wanted = " or ".join(kind.name.lower() for kind in kinds)
            raise BtfError(f"no {wanted} {name} in BTF")
        return id_

    def resolve(self, id_: int) -> int:
        """The type below typedefs and qualifiers."""
        while id_ and self.kind(id_) in _QUALIFIERS:
            id_ = self._target(id_)
        return id_

    # -- what is asked for ----------------------------------------------------------------------

    def parameters(self, function: str) -> list[str] | None:
        """Names of a function's parameters, or None if there is no such function."""
        id_ = self.find(function, Kind.FUNC)
        if id_ is None:
            return None
        return [self._text(name) for name, _type in self._elements(self._target(id_), 2)]

    def members(self, name: str) -> dict[str, Member]:
        """Members of a struct or union, in order."""
        return self._members(self._need(name, Kind.STRUCT, Kind.UNION))

    def _members(self, id_: int) -> dict[str, Member]:
        bitfields = self._words[self._starts[id_] + 1] >> 31
        found = {}
        for name, type_, offset in self._elements(id_, 3):
            bits = offset & 0xFFFFFF if bitfields else offset
            found[self._text(name)] = Member(self._text(name), type_, bits // 8)
        return found

    def enum(self, name: str) -> dict[str, int]:
        """Names and values of an enum."""
        id_ = self._need(name, Kind.ENUM, Kind.ENUM64)
        signed = self._words[self._starts[id_] + 1] >> 31
        values = {}
        if self.kind(id_) is Kind.ENUM64:
            for text, low, high in self._elements(id_, 3):
                value = high << 32 | low
                values[self._text(text)] = value - (1 << 64) * (signed and value >> 63)
        else:
            for text, value in self._elements(id_, 2):
                values[self._text(text)] = value - (1 << 32) * (signed and value >> 31)
        return values

    @cached_property
    def enumerators(self) -> Mapping[str, int]:
        """The values of all enums, named or not."""
        values = {}
        for id_, start in enumerate(self._starts):
            if start < 0:
                continue
            kind = self._words[start + 1] >> 24 & 31
            if kind == Kind.ENUM:
                for text, value in self._elements(id_, 2):
                    values[self._text(text)] = value
            elif kind == Kind.ENUM64:
                for text, low, high in self._elements(id_, 3):
                    values[self._text(text)] = high << 32 | low
        return values

    def section(self, name: str) -> dict[str, Variable]:
        """Variables of a data section (".rodata"), in order of their offsets."""
        found = {}
        for id_, offset, size in self._elements(self._need(name, Kind.DATASEC), 3):
            found[self.name(id_)] = Variable(self.name(id_), self._target(id_), offset, size)
        return dict(sorted(found.items(), key=lambda item: item[1].offset))

    def sections(self) -> list[str]:
        return [
            self.name(id_) for id_ in range(1, len(self._starts)) if self.kind(id_) is Kind.DATASEC
        ]

    def tags(self, name: str) -> dict[str, str]:
        """Declaration tags of a struct's members: member -> text."""
        owner = self._need(name, Kind.STRUCT)
        members = list(self._members(owner))
        found = {}
        for id_, start in enumerate(self._starts):
            if start < 0 or self._words[start + 1] >> 24 & 31 != Kind.DECL_TAG:
                continue
            index = self._words[start + 3]
            if self._target(id_) == owner and index < len(members):
                found[members[index]] = self.name(id_)
        return found

    def size(self, id_: int) -> int:
        return self.dtype(id_).itemsize

    def dtype(self, type_: int | str) -> np.dtype[Any]:
        """The numpy type of a struct (by name) or of any sized type (by id).

        Pointers become u8; a char array becomes bytes ("S"); bit fields are not supported.
        """
        if isinstance(type_, str):
            type_ = self._need(type_, Kind.STRUCT, Kind.UNION)
        id_ = self.resolve(type_)
        kind = self.kind(id_) if id_ else None
        if kind is Kind.INT:
            size, bits = self._target(id_), self._words[self._starts[id_] + 3]
            return np.dtype(f"{'i' if bits >> 24 & _INT_SIGNED else 'u'}{size}")
        if kind in (Kind.ENUM, Kind.ENUM64):
            signed = self._words[self._starts[id_] + 1] >> 31
            return np.dtype(f"{'i' if signed else 'u'}{self._target(id_)}")
        if kind is Kind.PTR:
            return np.dtype("u8")
        if kind is Kind.FLOAT:
            return np.dtype(f"f{self._target(id_)}")
        if kind is Kind.ARRAY:
            at = self._starts[id_] + 3
            element, count = self._words[at], self._words[at + 2]
            if self.name(self.resolve(element)) == "char":
                return np.dtype(f"S{count}")
            return np.dtype((self.dtype(element), (count,)))
        if kind in (Kind.STRUCT, Kind.UNION):
            members = self._members(id_).values()
            return np.dtype(
                {
                    "names": [member.name for member in members],
                    "formats": [self.dtype(member.type) for member in members],
                    "offsets": [member.offset for member in members],
                    "itemsize": self._target(id_),
                }
            )
        raise BtfError(f"type {type_} has no size")


def _stretches(words: NDArray[np.uint32]) -> tuple[bytearray, list[int]]:
    """Walks from type to type through all stretches of _STRETCH words side by side.

    Where the types of a stretch begin is not known, so each walk begins where one probably does:
    whoever comes upon a word that its walk has seen as the start of a type may go its way from
    there on. Returns whether each word was seen so, and where each walk leaves its stretch.
    No walks where one alone takes less.
    """
    end = len(words)
    seen = bytearray(end)
    if end < _MANY:
        return seen, []
    begins = np.arange(0, end - _STRETCH, _STRETCH)
    # What a type's second word looks like: a kind, few elements, and hardly any other word does.
    second = words[begins[:, None] + np.arange(1, _LOOK)]
    at = begins + np.argmax((second & 0xE0FFFFF0 == 0) & (second >> 24 > 0), axis=1)
    extra = np.array([3 + _EXTRA.get(kind, 0) for kind in range(32)])
    each = np.array([_PER_ELEMENT.get(kind, 0) for kind in range(32)])
    walks, leaves, stops = np.arange(len(at)), at.copy(), begins + _STRETCH
    marks = np.frombuffer(seen, np.uint8)
    while len(walks):
        marks[at] = 1
        info = words[at + 1]
        kinds = info >> 24 & 31
        at = at + extra[kinds] + each[kinds] * (info & 0xFFFF)
        inside = at < stops
        if not inside.all():
            leaves[walks[~inside]] = at[~inside]
            walks, at, stops = walks[inside], at[inside], stops[inside]
    return seen, leaves.tolist()


def _elf_section(data: bytes, wanted: str) -> bytes:
    """Contents of a section of a 64-bit ELF file of this machine's byte order. elf(5)"""
    if data[:5] != b"\x7fELF\x02":
        raise BtfError("not a 64-bit ELF file")
    try:
        (offset,) = struct.unpack_from("=Q", data, 0x28)
        size, count, names = struct.unpack_from("=HHH", data, 0x3A)
        headers = [struct.unpack_from("=IIQQQQIIQQ", data, offset + size * i) for i in range(count)]
    except struct.error as error:
        raise BtfError("damaged ELF file") from error
    strings = headers[names][4]
    for header in headers:
        start = strings + header[0]
        if data[start : data.index(b"\0", start)].decode(errors="replace") == wanted:
            return data[header[4] : header[4] + header[5]]
    raise BtfError(f"the ELF file has no section {wanted}")
