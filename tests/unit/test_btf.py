"""The BTF reader and the loader, against a compiler, libbpf and the running kernel."""

import re
import shutil
import struct
import subprocess
from pathlib import Path
from random import Random

import numpy as np
import pytest

from sched_ctl.kernel import btf
from sched_ctl.kernel.btf import VMLINUX, Btf, BtfError, Kind
from sched_ctl.kernel.libbpf import BpfError, Object, library
from sched_ctl.kernel.scheduler import OBJECT

SOURCE = """
#define ABOUT(text) __attribute__((btf_decl_tag(text)))
enum colour { RED = 1, DEEP = -5 };
enum wide { FAR = 1ULL << 63 };
struct inner { short a; char text[6]; };
struct outer {
	unsigned char small;
	long long big ABOUT("a large number");
	struct inner pair[2];
	enum colour colour;
	void *pointer;
};
struct outer shared __attribute__((section(".bss.shared")));
enum wide wide __attribute__((section(".bss.shared")));
const volatile unsigned int slice_us __attribute__((section(".rodata"))) = 3000;
const volatile _Bool loud __attribute__((section(".rodata"))) = 0;
const volatile unsigned long long table[3] __attribute__((section(".rodata")));
int function(struct outer *first, int second) { return second + slice_us + loud + table[1]; }
"""

SOURCES = Path(__file__).parents[2] / "bpf"
OBJECTS = sorted(OBJECT.parent.glob("*.bpf.o"))
# What the scheduler may call in Linux 6.12.117: BTF_ID_FLAGS in kernel/sched/ext.c, and of those in
# kernel/bpf/helpers.c and cpumask.c what it calls.
FIRST = {
    *("bpf_cpumask_test_cpu", "bpf_rcu_read_lock", "bpf_rcu_read_unlock", "bpf_rdonly_cast"),
    *("bpf_iter_num_destroy", "bpf_iter_num_new", "bpf_iter_num_next"),
    *("bpf_iter_scx_dsq_destroy", "bpf_iter_scx_dsq_new", "bpf_iter_scx_dsq_next"),
    *("bpf_task_from_pid", "bpf_task_release"),
    *("scx_bpf_consume", "scx_bpf_cpu_rq", "scx_bpf_create_dsq", "scx_bpf_destroy_dsq"),
    *("scx_bpf_cpuperf_cap", "scx_bpf_cpuperf_cur", "scx_bpf_cpuperf_set"),
    *("scx_bpf_dispatch", "scx_bpf_dispatch_cancel", "scx_bpf_dispatch_nr_slots"),
    *("scx_bpf_dispatch_from_dsq", "scx_bpf_dispatch_from_dsq_set_slice"),
    *("scx_bpf_dispatch_from_dsq_set_vtime", "scx_bpf_dispatch_vtime_from_dsq"),
    *("scx_bpf_dispatch_vtime", "scx_bpf_dsq_nr_queued", "scx_bpf_reenqueue_local"),
    *("scx_bpf_dump_bstr", "scx_bpf_error_bstr", "scx_bpf_exit_bstr"),
    *("scx_bpf_get_idle_cpumask", "scx_bpf_get_idle_smtmask", "scx_bpf_put_idle_cpumask"),
    *("scx_bpf_get_online_cpumask", "scx_bpf_get_possible_cpumask", "scx_bpf_put_cpumask"),
    *("scx_bpf_kick_cpu", "scx_bpf_nr_cpu_ids", "scx_bpf_pick_any_cpu", "scx_bpf_pick_idle_cpu"),
    *("scx_bpf_select_cpu_dfl", "scx_bpf_test_and_clear_cpu_idle"),
    *("scx_bpf_task_cgroup", "scx_bpf_task_cpu", "scx_bpf_task_running"),
}
clang = shutil.which("clang-19") or shutil.which("clang")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("btf")
    (folder / "some.bpf.c").write_text(SOURCE)
    target = folder / "some.bpf.o"
    assert clang is not None
    command = [clang, "-O2", "-g", "-target", "bpf", "-c", "some.bpf.c", "-o", str(target)]
    subprocess.run(command, cwd=folder, check=True)
    return target


@pytest.mark.needs("clang")
def test_layouts_are_the_compilers(compiled: Path) -> None:
    btf = Btf.of_object(compiled)
    outer = btf.dtype("outer")
    assert outer.itemsize == 48
    assert outer.fields is not None
    assert [outer.fields[name][1] for name in outer.names or ()] == [0, 8, 16, 32, 40]
    assert outer["pair"].shape == (2,)
    assert outer["pair"].base["text"] == np.dtype("S6")
    assert btf.enum("colour") == {"RED": 1, "DEEP": -5}
    assert btf.enum("wide") == {"FAR": 1 << 63}
    assert btf.enumerators["FAR"] == 1 << 63
    assert btf.tags("outer") == {"big": "a large number"}
    assert btf.parameters("function") == ["first", "second"]
    assert btf.parameters("absent") is None


@pytest.mark.needs("clang", "libbpf")
def test_tunables_are_set_by_name(compiled: Path) -> None:
    with Object.open(compiled, library()) as opened:
        assert list(opened.variables()) == ["slice_us", "loud", "table"]
        opened.set("slice_us", 1234)
        opened.set("loud", True)
        opened.set("table", [7, 8, 9])
        memory = bytes(opened._initial(".rodata"))
        values = [
            np.frombuffer(memory, opened.btf.dtype(v.type).base, offset=v.offset)[0]
            for v in opened.variables().values()
        ]
        assert values == [1234, True, 7]
        assert opened.variables(".bss.shared")["wide"].offset == 48
        with pytest.raises(KeyError):
            opened.set("absent", 1)


@pytest.mark.needs("clang", "libbpf")
def test_damaged_objects_are_refused(compiled: Path, tmp_path: Path) -> None:
    whole = compiled.read_bytes()
    for size in (0, 3, 60, 200, len(whole) // 2):
        (tmp_path / "cut.o").write_bytes(whole[:size])
        with pytest.raises(BtfError):
            Btf.of_object(tmp_path / "cut.o")
        with pytest.raises(BpfError):
            Object.open(tmp_path / "cut.o", library())
    with pytest.raises(BtfError):
        Btf(b"\x9f\xeb")


def test_the_scheduler_needs_no_function_that_the_first_kernel_with_sched_ext_lacks() -> None:
    """What came later is declared weak: it loads without."""
    text = "\n".join(path.read_text() for path in SOURCES.glob("*.bpf.[ch]"))
    functions = re.findall(r"^extern [^;(]*?(\w+)\([^;]*\)\s*__ksym( __weak)?;", text, re.M)
    variables = re.findall(r"^extern const [^;(]* __ksym __weak;", text, re.M)
    assert len(functions) + len(variables) == text.count("__ksym"), "else one was not seen"
    needed = {name for name, weak in functions if not weak}
    assert sorted(needed - FIRST) == []


@pytest.mark.skipif(not VMLINUX.exists(), reason="needs kernel BTF")
@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name)
def test_what_a_program_asks_of_the_kernel_has_a_type(path: Path) -> None:
    """For a symbol without one libbpf reads all of /proc/kallsyms, which takes a slow CPU 3 s."""
    btf = Btf.of_object(path)
    if ".ksyms" not in btf.sections():
        return
    variables = btf.section(".ksyms").values()
    assert [v.name for v in variables if btf.resolve(v.type) == 0] == []


def test_the_running_kernel() -> None:
    kernel = Btf.of_kernel()
    assert kernel.parameters("do_exit") == ["code"]
    assert kernel.members("task_struct")["pid"].offset % 4 == 0
    assert kernel.find("task_struct", Kind.FUNC) is None


@pytest.mark.needs("libbpf")
def test_the_library_says_which_it_is() -> None:
    assert library().version >= (1, 4)
    assert "libbpf" in library().origin


@pytest.mark.skipif(not OBJECT.exists(), reason="needs the compiled scheduler")
def test_turns_of_a_thread_are_counted_for_years() -> None:
    """A thousand a second are 2^32 in 50 days."""
    thread = Btf.of_object(OBJECT).dtype("thread")
    assert thread["runs"] == np.dtype("u8") and thread.itemsize == 128


def made(words: list[int]) -> bytes:
    """BTF of these types, without names."""
    header = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, 4 * len(words), 4 * len(words), 1)
    return header + struct.pack(f"={len(words)}I", *words) + b"\0"


@pytest.mark.parametrize("seed", range(20))
def test_many_types_are_found_as_few_are(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where much of what lies between them looks like the start of one."""
    random = Random(seed)
    words: list[int] = []
    while len(words) < btf._MANY + btf._STRETCH:
        kind = random.choice(list(Kind))
        count = random.choice((0, 1, 5, 200)) if kind in btf._PER_ELEMENT else 0
        more = btf._EXTRA.get(kind, 0) + btf._PER_ELEMENT.get(kind, 0) * count
        words += [0, kind << 24 | count, 0]
        words += random.choices((0, 7, 1 << 25, 4 << 24 | 3, 5 << 24 | 0xFFFF), k=more)
    found = Btf(made(words))._starts
    with monkeypatch.context() as patch:
        patch.setattr(btf, "_MANY", len(words) + 1)
        assert found == Btf(made(words))._starts
    for damaged in (words[:-1], words[:-2], [*words, 0, Kind.STRUCT << 24 | 0xFFFF, 0]):
        with pytest.raises(BtfError, match="damaged"):
            Btf(made(damaged))


@pytest.mark.skipif(not VMLINUX.exists(), reason="needs kernel BTF")
def test_the_kernels_types_are_found_one_by_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Btf.of_kernel()._starts
    assert len(found) > 10_000
    monkeypatch.setattr(btf, "_MANY", 1 << 30)
    assert found == Btf.of_kernel()._starts
