from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from runtime_samples import artifact, source

from polygen import knobs
from polygen.errors import CacheError
from polygen.runtime import cache, files, nvrtc


@pytest.fixture
def folder(tmp_path):
    with knobs.scope(cache_dir=tmp_path / "cache", cache=True):
        yield tmp_path / "cache"


@pytest.fixture
def compiled(monkeypatch):
    """Replaces the compiler; returns the list of what it was asked for."""
    asked = []

    def compile_source(given, *, allow_spills=False):
        asked.append(given)
        return artifact()

    monkeypatch.setattr(nvrtc, "compile_source", compile_source)
    monkeypatch.setattr(nvrtc, "compiler_identity", lambda *_: "test compiler")
    return asked


def fail_with(code):
    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    return fail


def test_second_time_is_a_hit_with_the_same_bytes(folder, compiled):
    first = cache.compile_cached(source())
    assert cache.compile_cached(source()) == first == artifact()
    assert len(compiled) == 1
    found = cache.info()
    assert found.entries == 1 and found.bytes > 0 and found.path == folder
    assert cache.clear() == 1 and cache.info().entries == 0


def test_a_real_kernel_survives_the_round_trip(folder):
    pytest.importorskip("cupy")
    first = cache.compile_cached(source())
    assert cache.compile_cached(source()) == first
    assert first.cubin[:4] == b"\x7fELF"


def test_everything_that_matters_is_in_the_key(monkeypatch):
    monkeypatch.setattr(nvrtc, "compiler_identity", lambda *_: "test compiler")
    base = source()
    keys = {
        cache.key(base),
        cache.key(source(base.text + " ")),
        cache.key(source(arch="sm_90a")),
        cache.key(source(shared=16)),
        cache.key(replace(base, entry="other")),
        cache.key(replace(base, launch=replace(base.launch, threads=32))),
        cache.key(base, allow_spills=True),
    }
    with knobs.scope(line_info=True):
        keys.add(cache.key(base))
    monkeypatch.setattr(nvrtc, "compiler_identity", lambda *_: "another compiler")
    keys.add(cache.key(base))
    monkeypatch.setattr(cache, "_MAGIC", b"polygen artifact 2\n")
    keys.add(cache.key(base))
    assert len(keys) == 10


def test_the_knob_switches_it_off(folder, compiled):
    with knobs.scope(cache=False):
        cache.compile_cached(source())
        cache.compile_cached(source())
    assert len(compiled) == 2 and not folder.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data[:10],
        lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
        lambda data: b"polygen artifact 0\n" + data[19:],
    ],
)
def test_a_damaged_entry_is_built_again(folder, compiled, caplog, damage):
    first = cache.compile_cached(source())
    path = cache.entry_path(cache.key(source()))
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert cache.compile_cached(source()) == first
    assert "damaged" in caplog.text and len(compiled) == 2
    assert cache.compile_cached(source()) == first and len(compiled) == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_full_disk_costs_a_warning_only(folder, compiled, monkeypatch, code):
    monkeypatch.setattr(os, "replace", fail_with(code))
    with pytest.warns(RuntimeWarning, match=os.strerror(code)) as caught:
        assert cache.compile_cached(source()) == artifact()
    assert len(caught) == 1 and len(compiled) == 1
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["lock"]


def test_a_folder_that_cannot_be_made_costs_a_warning_only(tmp_path, compiled):
    (tmp_path / "file").write_text("in the way")
    with (
        knobs.scope(cache_dir=tmp_path / "file" / "cache"),
        pytest.warns(RuntimeWarning, match="not kept"),
    ):
        assert cache.compile_cached(source()) == artifact()


def test_what_is_made_may_ask_for_entries_of_its_shard(folder, monkeypatch):
    monkeypatch.setattr(cache, "_LOCK_SECONDS", 0.0)  # nothing is waited for
    outer, inner = (folder / "generated" / "e8" / f"e8{name}.bin" for name in "ab")

    def plain(data):
        return data

    def make():
        return cache.kept(inner, plain, plain, lambda: b"inner") + b" in outer"

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.kept(outer, plain, plain, make) == b"inner in outer"
    assert outer.read_bytes() == b"inner in outer" and inner.read_bytes() == b"inner"


def test_a_stuck_lock_holder_is_ignored(folder, compiled, monkeypatch):
    from filelock import FileLock

    monkeypatch.setattr(cache, "_LOCK_SECONDS", 0.05)
    shard = cache.entry_path(cache.key(source())).parent
    shard.mkdir(parents=True)
    with (
        FileLock(shard / "lock"),
        pytest.warns(RuntimeWarning, match="not kept"),
    ):
        assert cache.compile_cached(source()) == artifact()


CHILD = """
import os, signal, sys, time
sys.path.insert(0, {tests!r})
from runtime_samples import artifact, source
from polygen import knobs
from polygen.runtime import cache, files, nvrtc

def compile_source(given, *, allow_spills=False):
    with open({count!r}, "a") as file:
        file.write("compiled\\n")
    time.sleep(0.2)
    return artifact()

nvrtc.compile_source = compile_source
nvrtc.compiler_identity = lambda *_: "test compiler"
{extra}
with knobs.scope(cache_dir=__import__("pathlib").Path({folder!r})):
    assert cache.compile_cached(source()) == artifact()
"""


def child(tmp_path, folder, extra=""):
    code = textwrap.dedent(CHILD).format(
        tests=str(Path(__file__).parents[2]),
        count=str(tmp_path / "count"),
        folder=str(folder),
        extra=extra,
    )
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)


def test_four_processes_compile_once(folder, tmp_path):
    running = [child(tmp_path, folder) for _ in range(4)]
    for process in running:
        assert process.wait(timeout=600) == 0, process.stderr.read()
    assert (tmp_path / "count").read_text() == "compiled\n"


def test_a_kill_in_mid_write_harms_nobody(folder, tmp_path, compiled):
    die = (
        "def die(*a): os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.replace = die"  # the temporary file is written, the lock is held
    )
    process = child(tmp_path, folder, die)
    assert process.wait(timeout=600) == -signal.SIGKILL
    assert len(list(folder.rglob(".*.tmp"))) == 1 and cache.info().entries == 0
    with warnings.catch_warnings(action="error"):  # a lock that is held ends in one
        assert cache.compile_cached(source()) == artifact()
    assert cache.info().entries == 1 and not list(folder.rglob(".*.tmp"))


def test_clear_removes_what_killed_writers_left(folder, tmp_path, compiled):
    cache.compile_cached(source())
    (cache.entry_path("ab" * 32).parent).mkdir(exist_ok=True)
    leftover = cache.entry_path("ab" * 32).with_name(".x.bin.1.tmp")
    leftover.write_bytes(b"half")
    assert cache.clear() == 1 and not leftover.exists()


def test_atomic_files(tmp_path):
    files.write_text_atomic(tmp_path / "deep" / "k.cu", "text\n")
    files.write_bytes_atomic(tmp_path / "deep" / "k.cubin", b"\0\1")
    assert (tmp_path / "deep" / "k.cu").read_bytes() == b"text\n"
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["k.cu", "k.cubin"]


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    """As /dev/full and /dev/null do, whose place a file would take for everybody."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    try:
        files.write_text_atomic(pipe, "text")
        assert pipe.is_fifo() and os.read(reader, 10) == b"text"
    finally:
        os.close(reader)


@pytest.mark.parametrize("name", ["", ".", "/", "a\0b"])
def test_what_names_no_file_is_refused(name):
    with pytest.raises(CacheError, match="is no file to write"):
        files.write_text_atomic(name, "text")


@pytest.mark.parametrize("call", ["replace", "fsync"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_failed_save_keeps_the_old_file_and_leaves_nothing(tmp_path, monkeypatch, call, code):
    target = tmp_path / "k.cu"
    target.write_text("old")
    monkeypatch.setattr(os, call, fail_with(code))
    with pytest.raises(CacheError, match=os.strerror(code)) as caught:
        files.write_text_atomic(target, "new")
    assert str(target) in str(caught.value) and "choose another folder" in str(caught.value)
    assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]


def test_an_entry_that_cannot_be_removed(folder, compiled, monkeypatch):
    cache.compile_cached(source())
    monkeypatch.setattr(Path, "unlink", fail_with(errno.EACCES))
    with pytest.raises(CacheError, match="Permission denied"):
        cache.clear()
