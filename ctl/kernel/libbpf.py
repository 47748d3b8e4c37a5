"""Loads BPF objects through libbpf, by ctypes.

The system's libbpf is used where it is new enough (1.4: struct_ops links and sleepable struct_ops
programs), else the one that the wheel of `pylibbpf` bundles (extra `scx`). Open, set, load and
attach are separate steps: tunables (`.rodata`) and the members of an ops table can only be set
between open and load.

    with Object.open(path, library()) as scheduler:
        scheduler.set("slice_us", 3000)
        scheduler.ops("scheduler", kernel)["timeout_ms"] = 5000
        scheduler.load()
        slots = scheduler.array(".bss.slots", "slots")
        link = scheduler.attach_ops("scheduler")

Memory is handed out as numpy arrays over mmap-ed maps, with the layout that the object's BTF
gives. A forked child inherits map and link descriptors and would keep a scheduler attached; one
that execs does not.
"""

import contextlib
import ctypes
import errno
import importlib.util
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sched_ctl.kernel.btf import Btf, BtfError, Variable

__all__ = ["BpfError", "InnerArray", "Library", "Link", "Object", "Ops", "library"]

MINIMUM = (1, 4)
_PAGE = mmap.PAGESIZE
_ARRAY = 2  # enum bpf_map_type, include/uapi/linux/bpf.h
_MMAPABLE, _INNER_MAP = 1 << 10, 1 << 12  # BPF_F_*
_WARN = 0  # enum libbpf_print_level

_P, _S, _I, _U32, _U64, _SIZE = (
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_uint64,
    ctypes.c_size_t,
)
# name -> result, arguments: tools/lib/bpf/libbpf.h, bpf.h, btf.h
_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "bpf_object__open_file": (_P, (_S, _P)),
    "bpf_object__load": (_I, (_P,)),
    "bpf_object__close": (None, (_P,)),
    "bpf_object__btf": (_P, (_P,)),
    "bpf_object__find_map_by_name": (_P, (_P, _S)),
    "bpf_object__next_program": (_P, (_P, _P)),
    "bpf_object__find_program_by_name": (_P, (_P, _S)),
    "bpf_program__attach": (_P, (_P,)),
    "bpf_program__set_autoload": (_I, (_P, ctypes.c_bool)),
    "bpf_map__fd": (_I, (_P,)),
    "bpf_map__key_size": (_U32, (_P,)),
    "bpf_map__value_size": (_U32, (_P,)),
    "bpf_map__max_entries": (_U32, (_P,)),
    "bpf_map__set_max_entries": (_I, (_P, _U32)),
    "bpf_map__initial_value": (_P, (_P, ctypes.POINTER(_SIZE))),
    "bpf_map__attach_struct_ops": (_P, (_P,)),
    "bpf_link__destroy": (_I, (_P,)),
    "btf__raw_data": (_P, (_P, ctypes.POINTER(_U32))),
    "bpf_map_create": (_I, (_I, _S, _U32, _U32, _U32, _P)),
    "bpf_map_update_elem": (_I, (_I, _P, _P, _U64)),
    "bpf_map_lookup_elem": (_I, (_I, _P, _P)),
    "bpf_map_lookup_batch": (_I, (_I, _P, _P, _P, _P, ctypes.POINTER(_U32), _P)),
    "bpf_map_delete_elem": (_I, (_I, _P)),
    "libbpf_set_print": (_P, (_P,)),
}
_PRINT = ctypes.CFUNCTYPE(_I, _I, _S, _P)


class _MapCreateOptions(ctypes.Structure):
    """struct bpf_map_create_opts of libbpf 1.0, as far as it is used: `size` says so."""

    _fields_ = (
        ("size", _SIZE),
        *((name, _U32) for name in ("btf_fd", "key_type", "value_type", "kernel_value_type")),
        ("inner_map_fd", _U32),
        ("map_flags", _U32),
    )


class BpfError(OSError):
    """A libbpf call failed. `log` is what libbpf and the kernel's verifier said about it."""

    log: str = ""


@dataclass
class Library:
    """libbpf, found and declared. `origin` says which one, in words."""

    handle: ctypes.CDLL
    origin: str
    version: tuple[int, int]
    messages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(self.handle, name)
            function.restype, function.argtypes = result, arguments
        libc = ctypes.CDLL(None)
        libc.vsnprintf.argtypes = (_P, _SIZE, _S, _P)
        buffer = ctypes.create_string_buffer(1 << 16)

        def collect(level: int, text: bytes, arguments: int) -> int:
            # libbpf's warnings and the verifier's log; the rest only tells what it does.
            if level == _WARN:
                libc.vsnprintf(buffer, len(buffer), text, arguments)
                self.messages.append(buffer.value.decode(errors="replace"))
            return 0

        self._print = _PRINT(collect)  # lives as long as the library may call it
        self.handle.libbpf_set_print(ctypes.cast(self._print, _P))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _PROTOTYPES:
            raise AttributeError(name)
        return getattr(self.handle, name)  # type: ignore[no-any-return]

    def pointer(self, value: int | None, what: str) -> int:
        """Check a result that is NULL on error."""
        if not value:
            raise self.error(ctypes.get_errno(), what)
        return value

    def check(self, value: int, what: str) -> int:
        """Check a result that is negative on error."""
        if value < 0:
            raise self.error(-value, what)
        return value

    def error(self, number: int, what: str) -> BpfError:
        error = BpfError(number, os.strerror(number), what)
        error.log, self.messages = "".join(self.messages), []
        return error


_found: Library | None = None
_loading = threading.Lock()


def library() -> Library:
    """The libbpf to use; loaded once. Raises BpfError that says what was looked for."""
    with _loading:
        return _library()


def _library() -> Library:
    global _found
    if _found is None:
        tried = []
        for path, origin in _candidates():
            try:
                handle = ctypes.CDLL(path, use_errno=True)
                version = handle.libbpf_major_version(), handle.libbpf_minor_version()
            except (OSError, AttributeError) as error:
                tried.append(f"{origin}: {error}")
                continue
            if version < MINIMUM:
                tried.append(f"{origin} is {version[0]}.{version[1]}")
                continue
            _found = Library(handle, f"{origin} {version[0]}.{version[1]}", version)
            break
        else:
            wanted = f"libbpf {MINIMUM[0]}.{MINIMUM[1]} or newer"
            raise BpfError(errno.ENOENT, f"no {wanted} ({'; '.join(tried)})")
    return _found


def _candidates() -> Iterator[tuple[str, str]]:
    yield "libbpf.so.1", "the system's libbpf"
    # Only the shared object is wanted; importing the package would pull in a compiler.
    spec = importlib.util.find_spec("pylibbpf")
    if spec is not None and spec.origin is not None:
        for path in Path(spec.origin).parent.glob("pylibbpf*.so"):
            yield str(path), "pylibbpf's bundled libbpf"


class Object:
    """An opened BPF object. Close it, or use it as a context: that detaches what is attached."""

    def __init__(self, handle: int, lib: Library, path: Path) -> None:
        self.path = path
        self.library = lib
        self._handle = handle
        self._links: list[Link] = []
        self._maps: dict[str, int] = {}
        self._views: dict[str, mmap.mmap] = {}
        size = _U32()
        raw = lib.pointer(lib.bpf_object__btf(handle), f"{path}: BTF")
        data = lib.pointer(lib.btf__raw_data(raw, ctypes.byref(size)), f"{path}: BTF")
        # libbpf has filled in the sections' offsets by now, the compiler leaves them at 0.
        self.btf = Btf(ctypes.string_at(data, size.value))

    @classmethod
    def open(cls, path: Path, lib: Library) -> Self:
        handle = lib.pointer(lib.bpf_object__open_file(os.fsencode(path), None), f"open {path}")
        try:
            return cls(handle, lib, path)
        except BaseException:
            lib.bpf_object__close(handle)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Detach, unload, forget. Arrays handed out stay readable, of memory nobody looks at."""
        for link in self._links:
            link.destroy()
        self._links.clear()
        self._views.clear()
        if self._handle:
            self.library.bpf_object__close(self._handle)
            self._handle = 0

    def _map(self, name: str) -> int:
        if name not in self._maps:
            found = self.library.bpf_object__find_map_by_name(self._handle, name.encode())
            self._maps[name] = self.library.pointer(found, f"{self.path}: map {name}")
        return self._maps[name]

    def _initial(self, name: str) -> NDArray[np.uint8]:
        """Memory that libbpf owns: gone when the object is closed."""
        size = _SIZE()
        found = self.library.bpf_map__initial_value(self._map(name), ctypes.byref(size))
        address = self.library.pointer(found, f"{self.path}: initial value of {name}")
        return np.ctypeslib.as_array((ctypes.c_uint8 * size.value).from_address(address))

    # -- between open and load ------------------------------------------------------------------

    def variables(self, section: str = ".rodata") -> Mapping[str, Variable]:
        return self.btf.section(section)

    def set(self, name: str, value: object, section: str = ".rodata") -> None:
        """Set a tunable. KeyError if there is none of this name."""
        variable = self.variables(section)[name]
        dtype = self.btf.dtype(variable.type)
        window = self._initial(section)[variable.offset :][: variable.size]
        window.view(dtype.base).reshape(dtype.shape)[...] = value

    def ops(self, name: str, kernel: Btf) -> "Ops":
        """The members of a struct_ops table, to set before load."""
        return Ops(self._initial(name), self.btf, kernel, self._struct_of(name))

    def _struct_of(self, name: str) -> str:
        for section in (".struct_ops.link", ".struct_ops"):
            with contextlib.suppress(BtfError, KeyError):
                type_ = self.btf.section(section)[name].type
                return self.btf.name(self.btf.resolve(type_))
        raise BtfError(f"{self.path} has no ops table {name}")

    def resize(self, name: str, entries: int) -> None:
        self.library.check(
            self.library.bpf_map__set_max_entries(self._map(name), entries), f"resize of {name}"
        )

    def leave_out(self, program: str) -> None:
        """Do not load it."""
        lib = self.library
        lib.check(lib.bpf_program__set_autoload(self._program(program), False), program)

    def load(self) -> None:
        """Verify and load. The error's `log` holds the verifier's."""
        self.library.messages.clear()
        self.library.check(self.library.bpf_object__load(self._handle), f"load {self.path.name}")

    # -- after load -----------------------------------------------------------------------------

    def fd(self, name: str) -> int:
        return self.library.check(self.library.bpf_map__fd(self._map(name)), f"map {name}")

    def array(self, section: str, variable: str) -> NDArray[Any]:
        """A global variable as a numpy array over the kernel's memory, shaped as its BTF says.

        A struct is a 0-d array: `control["ttl_ms"] = 500` writes at once, without a system call.
        """
        found = self.variables(section)[variable]
        dtype = self.btf.dtype(found.type)
        count = int(np.prod(dtype.shape, dtype=np.int64))
        flat = np.frombuffer(self._view(section), dtype.base, count, found.offset)
        return flat.reshape(dtype.shape)

    def map_array(self, name: str, struct: str) -> NDArray[Any]:
        """A map of type array (BPF_F_MMAPABLE) of structs, as a numpy array over its memory."""
        entries = self.library.bpf_map__max_entries(self._map(name))
        return np.frombuffer(self._view(name), self.btf.dtype(struct), entries)

    def _view(self, name: str) -> mmap.mmap:
        if name not in self._views:
            found = self._map(name)
            # The kernel rounds the elements of an array map up to 8 bytes.
            size = (self.library.bpf_map__value_size(found) + 7) // 8 * 8
            length = size * self.library.bpf_map__max_entries(found)
            length = (length + _PAGE - 1) // _PAGE * _PAGE
            self._views[name] = mmap.mmap(self.fd(name), length, mmap.MAP_SHARED)
        return self._views[name]

    def inner_array(self, outer: str, index: int, struct: str, entries: int) -> "InnerArray":
        """A new array of structs (BPF_F_MMAPABLE) as element `index` of a map of maps.

        Its descriptor may be handed to a process that is to write there: mapping it takes no
        privilege, and lets it touch nothing else.
        """
        dtype = self.btf.dtype(struct)
        options = _MapCreateOptions(
            size=ctypes.sizeof(_MapCreateOptions), map_flags=_MMAPABLE | _INNER_MAP
        )
        name = struct.encode()
        fd = self.library.bpf_map_create(
            _ARRAY, name, 4, dtype.itemsize, entries, ctypes.byref(options)
        )
        self.library.check(fd, f"a map for {outer}")
        try:
            length = (dtype.itemsize * entries + _PAGE - 1) // _PAGE * _PAGE
            memory = mmap.mmap(fd, length, mmap.MAP_SHARED)
            self.update(outer, index.to_bytes(4, "little"), fd.to_bytes(4, "little"))
        except BaseException:
            os.close(fd)
            raise
        return InnerArray(fd, np.frombuffer(memory, dtype, entries))

    def attach_ops(self, name: str) -> "Link":
        lib = self.library
        lib.messages.clear()
        link = lib.pointer(lib.bpf_map__attach_struct_ops(self._map(name)), f"attach {name}")
        return self._keep(link)

    def attach(self, program: str) -> "Link":
        """A tracing program, to what its section says."""
        lib = self.library
        lib.messages.clear()
        found = lib.bpf_program__attach(self._program(program))
        return self._keep(lib.pointer(found, f"attach {program}"))

    def _program(self, name: str) -> int:
        found = self.library.bpf_object__find_program_by_name(self._handle, name.encode())
        return self.library.pointer(found, f"{self.path}: program {name}")

    def _keep(self, handle: int) -> "Link":
        link = Link(handle, self.library)
        self._links.append(link)
        return link

    def update(self, name: str, key: bytes, value: bytes) -> None:
        """Set an element. OSError: ESRCH for a pidfd whose thread is gone."""
        if self.library.bpf_map_update_elem(self.fd(name), key, value, 0) < 0:
            raise self.library.error(ctypes.get_errno(), f"update of map {name}")

    def lookup(self, name: str, key: bytes) -> bytes | None:
        size = self.library.bpf_map__value_size(self._map(name))
        buffer = ctypes.create_string_buffer(size)
        if self.library.bpf_map_lookup_elem(self.fd(name), key, buffer) < 0:
            if ctypes.get_errno() in (errno.ENOENT, errno.ESRCH):
                return None
            raise self.library.error(ctypes.get_errno(), f"lookup in map {name}")
        return buffer.raw

    def table(self, name: str, struct: str | None) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """All elements of a hash map: keys as (n, size) bytes, values as structs, or as u64.

        In one system call, while others write: an element that moves may be missed.
        """
        found = self._map(name)
        entries = self.library.bpf_map__max_entries(found)
        dtype = np.dtype("<u8") if struct is None else self.btf.dtype(struct)
        keys = np.zeros((entries, self.library.bpf_map__key_size(found)), dtype=np.uint8)
        values = np.zeros(entries, dtype=dtype)
        count, place = _U32(entries), ctypes.create_string_buffer(16)
        address = (keys.ctypes.data, values.ctypes.data)
        result = self.library.bpf_map_lookup_batch(
            self.fd(name), None, place, *address, ctypes.byref(count), None
        )
        if result < 0 and -result != errno.ENOENT:  # which says that these were all
            raise self.library.error(-result, f"reading of map {name}")
        return keys[: count.value], values[: count.value]

    def delete(self, name: str, key: bytes) -> bool:
        """Whether there was such an element."""
        if self.library.bpf_map_delete_elem(self.fd(name), key) < 0:
            if ctypes.get_errno() in (errno.ENOENT, errno.ESRCH):
                return False
            raise self.library.error(ctypes.get_errno(), f"delete from map {name}")
        return True


@dataclass(frozen=True, eq=False)
class InnerArray:
    """An array in a map of maps, its rows as a numpy array over its memory."""

    fd: int
    rows: NDArray[Any]

    def close(self) -> None:
        os.close(self.fd)


class Link:
    """Something attached; detached when destroyed, or when the process dies."""

    def __init__(self, handle: int, lib: Library) -> None:
        self._handle, self._library = handle, lib

    def destroy(self) -> None:
        if self._handle:
            self._library.bpf_link__destroy(self._handle)
            self._handle = 0


class Ops:
    """An ops table between open and load: its plain members by name, and which callbacks it has."""

    def __init__(self, memory: NDArray[np.uint8], btf: Btf, kernel: Btf, struct: str) -> None:
        self._memory, self._btf = memory, btf
        self._members = btf.members(struct)
        self._kernel = kernel.members(struct)

    def __setitem__(self, member: str, value: int | bytes) -> None:
        self._view(member)[...] = value

    def __getitem__(self, member: str) -> Any:
        return self._view(member)[()]

    def __contains__(self, member: str) -> bool:
        """Whether both the object and the running kernel know this member."""
        return member in self._members and member in self._kernel

    def clear_unknown(self) -> list[str]:
        """Clear the members that are set and that this kernel lacks; returns their names.

        libbpf would refuse to load. What a cleared callback was for is simply not done.
        """
        cleared = []
        for name in self._members:
            view = self._view(name)
            if name not in self._kernel and view[()]:
                view[...] = 0
                cleared.append(name)
        return cleared

    def _view(self, member: str) -> NDArray[Any]:
        found = self._members[member]
        dtype = self._btf.dtype(found.type)
        window = self._memory[found.offset :][: dtype.itemsize]
        return window.view(dtype.base).reshape(dtype.shape)
