"""Downloads that break off, lie or overflow, and archives that reach out (faults 28–30, 35, 39)."""

import hashlib
import io
import json
import logging
import random
import re
import signal
import stat
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
import zipfile
from functools import partial

import pytest
from conftest import clean_environment

from skipbench.datasets.download import download as download_patiently
from skipbench.datasets.download import fetch as fetch_patiently
from skipbench.datasets.download.unpack import unpack
from skipbench.engine.progress import megabytes
from skipbench.errors import DataError, ResourceError, UsageError
from skipbench.records import Archive

WAITS = (0.0, 0.0, 0.0)  # before retries
download = partial(download_patiently, waits=WAITS)
fetch = partial(fetch_patiently, waits=WAITS)

PICTURE = random.Random(0).randbytes(300_000)
TREE = {"set/images/1.jpg": PICTURE, "set/masks/1.png": b"mask", "set/list.txt": b"1\n"}


@pytest.fixture(autouse=True)
def told(caplog):
    caplog.set_level(logging.INFO, "skipbench")
    return caplog


def zipped(tree):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in tree.items():
            file.writestr(name, content)
    return buffer.getvalue()


def tarred(tree, mode="w"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as file:
        for name, content in tree.items():
            member = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.name = name
            if isinstance(content, bytes):
                member.size = len(content)
            file.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    return buffer.getvalue()


MAKERS = {
    "x.zip": zipped,
    "x.tar": tarred,
    "x.tar.gz": lambda tree: tarred(tree, "w:gz"),
    "x.tgz": lambda tree: tarred(tree, "w:gz"),
}


def published(server, file="x.zip", content=None, kind="sha256", **more):
    """Put it on the server; what the data set says of it."""
    content = MAKERS[file](TREE) if content is None else content
    server.files[f"/official/{file}"] = content
    checksum = f"{kind}:{hashlib.new(kind, content).hexdigest()}"
    facts = {"checksum": checksum, "bytes": len(content), "unpacked_bytes": 0} | more
    return Archive(server.url(file), **facts)


def body(server, archive):
    return server.files[f"/official/{archive.file}"]


def tree_of(root):
    """Every file that a user sees."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and ".downloads" not in path.parts
    }


def waiting_in(root):
    """The names in the folder of downloads."""
    return {path.name for path in (root / ".downloads").iterdir()} - {"lock"}


def ranges(server):
    return [asked for _, asked, _ in server.seen]


# --- what should be ---------------------------------------------------------------------------


@pytest.mark.parametrize("file", MAKERS)
@pytest.mark.parametrize("kind", ["md5", "sha1", "sha256"])
def test_fetched_and_unpacked(server, tmp_path, file, kind, capfd):
    download([published(server, file, kind=kind)], tmp_path)
    assert tree_of(tmp_path) == TREE
    assert waiting_in(tmp_path) == {f"{file}.unpacked.json"}
    assert re.fullmatch(
        rf"{file}: 1 of 1 MB.*\nunpacking {file}: 1 of 1 MB.*\n", capfd.readouterr().err
    )


def test_into_a_folder_below_the_root(server, tmp_path):
    download([published(server, into="a/b")], tmp_path)
    assert tree_of(tmp_path / "a" / "b") == TREE


def test_not_twice(server, tmp_path, told):
    archive = published(server)
    download([archive], tmp_path)
    download([archive], tmp_path)
    assert len(server.seen) == 1 and "x.zip: already downloaded and unpacked" in told.text


def test_twice_if_the_files_are_gone_or_the_archive_is_another(server, tmp_path):
    tree = TREE | {"set/masks/2.png": b"mask"}
    archive = published(server, content=zipped(tree))
    download([archive], tmp_path)
    (tmp_path / "set" / "masks" / "2.png").unlink()
    download([archive], tmp_path)
    assert tree_of(tmp_path) == tree and len(server.seen) == 2
    download([published(server, content=zipped({"set/list.txt": b"2\n"}))], tmp_path)
    assert (tmp_path / "set" / "list.txt").read_bytes() == b"2\n" and len(server.seen) == 3


@pytest.mark.parametrize("files", [{}, {"files": None}, {"files": 3}])
def test_a_receipt_that_says_too_little_is_none(server, tmp_path, files):
    archive = published(server)
    (tmp_path / ".downloads").mkdir()
    receipt = {"identity": archive.checksum, "into": ""} | files
    (tmp_path / ".downloads" / "x.zip.unpacked.json").write_text(json.dumps(receipt))
    download([archive], tmp_path)
    assert tree_of(tmp_path) == TREE


def test_keep(server, tmp_path):
    archive = published(server)
    download([archive], tmp_path, keep=True)
    assert (tmp_path / ".downloads" / "x.zip").read_bytes() == body(server, archive)
    assert waiting_in(tmp_path) == {"x.zip", "x.zip.unpacked.json"}


def test_put_there_by_hand(server, tmp_path):
    archive = published(server)
    (tmp_path / ".downloads").mkdir()
    (tmp_path / ".downloads" / "x.zip").write_bytes(body(server, archive))
    download([archive], tmp_path)
    assert tree_of(tmp_path) == TREE and not server.seen


def test_another_file_put_there_by_hand(server, tmp_path, told):
    archive = published(server)
    (tmp_path / ".downloads").mkdir()
    (tmp_path / ".downloads" / "x.zip").write_bytes(b"another")
    download([archive], tmp_path)
    assert tree_of(tmp_path) == TREE and "is not the published file" in told.text
    assert (tmp_path / ".downloads" / "x.zip.wrong").read_bytes() == b"another"


@pytest.mark.parametrize("slash", ["", "/"])
def test_mirror(server, tmp_path, slash):
    archive = published(server)
    server.files = {"/pub/data/x.zip": body(server, archive)}
    download([archive], tmp_path, mirror=f"http://127.0.0.1:{server.server_port}/pub/data{slash}")
    assert tree_of(tmp_path) == TREE
    assert [path for path, _, _ in server.seen] == ["/pub/data/x.zip"]


@pytest.mark.parametrize("as_url", [True, False])
def test_a_folder_as_mirror(server, tmp_path, as_url):
    archive = published(server, bytes=0)
    mirror = tmp_path / "my mirror"
    mirror.mkdir()
    (mirror / "x.zip").write_bytes(body(server, archive))
    download([archive], tmp_path / "root", mirror=mirror.as_uri() if as_url else str(mirror))
    assert tree_of(tmp_path / "root") == TREE and not server.seen
    (mirror / "x.zip").unlink()
    with pytest.raises(DataError, match=r"there is no .*my mirror/x.zip"):
        fetch(archive, tmp_path / "other", str(mirror))


def test_a_mirror_that_is_none(server, tmp_path):
    with pytest.raises(UsageError, match="neither a URL"):
        download([published(server)], tmp_path, mirror="mirror.example.org")


def test_a_tar_that_the_server_calls_an_encoding(server, tmp_path):
    server.more_headers = {"Content-Encoding": "gzip"}
    download([published(server, "x.tar.gz")], tmp_path)
    assert tree_of(tmp_path) == TREE


def test_progress_comes_out_at_the_total(capsys):
    with megabytes("x", 2_500_000, done=1_200_000) as reach:
        for count in (1_999_999, 2_499_999, 2_500_000):
            reach(count)
    assert capsys.readouterr().err.startswith("x: 3 of 3 MB")


# --- fault 29: cut off, or another file ---------------------------------------------------------


@pytest.mark.parametrize("dates_only", [False, True])
def test_cut_off_and_resumed(server, tmp_path, dates_only, told):
    server.cuts, server.dates_only = [200_000], dates_only
    archive = published(server)
    path = fetch(archive, tmp_path)
    assert path.read_bytes() == body(server, archive)
    (_, first, _), (_, second, version) = server.seen
    assert first is None and int(second.removeprefix("bytes=").removesuffix("-")) > 100_000
    assert version.startswith("Mon, " if dates_only else '"') and "retrying" in told.text


def test_cut_off_for_good_and_resumed_by_the_next_run(server, tmp_path):
    server.ranges, server.always_cut = False, 200_000
    archive = published(server)
    with pytest.raises(DataError, match="the connection ended early") as caught:
        download([archive], tmp_path)
    assert "after 200 kB of 300 kB" in str(caught.value) and len(server.seen) == 4
    assert "same command again to resume" in str(caught.value)
    assert waiting_in(tmp_path) == {"x.zip.partial", "x.zip.partial.json"}
    have = (tmp_path / ".downloads" / "x.zip.partial").read_bytes()
    assert have and body(server, archive).startswith(have)
    server.ranges, server.always_cut = True, None
    download([archive], tmp_path)
    assert ranges(server)[4:] == [f"bytes={len(have)}-"]
    assert tree_of(tmp_path) == TREE and waiting_in(tmp_path) == {"x.zip.unpacked.json"}


def test_a_connection_that_brings_more_each_time_is_not_given_up(server, tmp_path):
    content = random.Random(1).randbytes(8_000_000)
    server.always_cut = 1_200_000
    archive = published(server, content=content)
    assert fetch(archive, tmp_path).read_bytes() == content
    assert len(server.seen) > len(WAITS) + 1


def test_a_server_without_ranges(server, tmp_path):
    server.ranges, server.cuts = False, [200_000]
    archive = published(server)
    assert fetch(archive, tmp_path).read_bytes() == body(server, archive)
    assert len(server.seen) == 2


@pytest.mark.parametrize("heeds_if_range", [True, False])
@pytest.mark.parametrize("checksum", [True, False])
def test_the_file_changes_between_two_attempts(server, tmp_path, heeds_if_range, checksum):
    published(server, content=random.Random(2).randbytes(310_000))
    before = Archive(server.url("x.zip"), None, 0, 0)
    server.always_cut, server.ranges = 150_000, False
    with pytest.raises(DataError, match="cut off"):
        fetch(before, tmp_path)
    server.always_cut, server.ranges, server.heeds_if_range = None, True, heeds_if_range
    after = published(server) if checksum else published(server, checksum=None)
    assert fetch(after, tmp_path).read_bytes() == body(server, after)
    assert "bytes=150000-" in ranges(server)


def test_nothing_is_joined_where_nothing_would_tell(server, tmp_path):
    archive = published(server, checksum=None)
    (tmp_path / "x.zip.partial").write_bytes(b"of whatever")
    assert fetch(archive, tmp_path).read_bytes() == body(server, archive)
    assert ranges(server) == [None]


def test_stopped_when_all_was_there(server, tmp_path):
    """As after Ctrl-C while the checksum is computed: nothing is sent again."""
    archive = published(server)
    (tmp_path / "x.zip.partial").write_bytes(body(server, archive))
    assert fetch(archive, tmp_path).read_bytes() == body(server, archive)
    assert ranges(server) == [f"bytes={archive.bytes}-"]
    assert [path.name for path in tmp_path.iterdir()] == ["x.zip"]


def test_a_partial_file_longer_than_the_file(server, tmp_path):
    archive = published(server)
    (tmp_path / "x.zip.partial").write_bytes(bytes(400_000))
    assert fetch(archive, tmp_path).read_bytes() == body(server, archive)
    assert ranges(server) == ["bytes=400000-", None]


def test_wrong_checksum(server, tmp_path):
    archive = published(server)
    right, wrong = body(server, archive), zipped({"other": b"file"})
    server.files["/official/x.zip"] = wrong
    with pytest.raises(DataError, match="is not the published file") as caught:
        download([archive], tmp_path)
    assert caught.value.exit_code == 4 and "--mirror" in str(caught.value)
    for content in (right, wrong):
        assert hashlib.sha256(content).hexdigest() in str(caught.value)
    assert waiting_in(tmp_path) == {"x.zip.wrong"} and tree_of(tmp_path) == {}
    assert (tmp_path / ".downloads" / "x.zip.wrong").read_bytes() == wrong
    server.files["/official/x.zip"] = right
    download([archive], tmp_path)
    assert tree_of(tmp_path) == TREE and ranges(server) == [None, None]


def test_no_checksum_is_said_and_a_web_page_is_not_taken_again(server, tmp_path, told):
    archive = published(server, checksum=None)
    server.files["/official/x.zip"] = b"<!DOCTYPE html><p>Please log in"
    with pytest.raises(DataError, match="is a web page, not an archive"):
        download([archive], tmp_path)
    assert "no checksum is published" in told.text and waiting_in(tmp_path) == {"x.zip.wrong"}
    archive = published(server, checksum=None)
    download([archive], tmp_path)
    assert tree_of(tmp_path) == TREE


def test_not_found(server, tmp_path):
    archive = Archive(server.url("y.zip"), "md5:0", 5, 5)
    with pytest.raises(DataError, match=r"HTTP 404") as caught:
        download([archive], tmp_path)
    for part in (archive.url, "--mirror URL", f"{tmp_path}/.downloads/y.zip"):
        assert part in str(caught.value)
    assert len(server.seen) == 1 and waiting_in(tmp_path) == set()


def test_a_server_that_is_busy(server, tmp_path):
    server.statuses = [503, 429]
    archive = published(server)
    assert fetch(archive, tmp_path).read_bytes() == body(server, archive)
    server.statuses = [503] * 9
    with pytest.raises(DataError, match=r"cannot fetch .*HTTP 503"):
        fetch(archive, tmp_path / "other")


def test_a_host_that_does_not_answer(server, tmp_path):
    server.server_close()
    with pytest.raises(DataError, match=r"cannot fetch .*: Connection refused") as caught:
        download([Archive(server.url("x.zip"), None, 0, 0)], tmp_path)
    assert "--mirror URL" in str(caught.value)


# --- fault 39: stopped --------------------------------------------------------------------------

CHILD = """
    import resource, sys
    from pathlib import Path
    from skipbench.datasets.download import download
    from skipbench.records import Archive
    from skipbench.errors import SkipbenchError
    url, checksum, root, limit = sys.argv[1:]
    if int(limit):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit),) * 2)
    try:
        download([Archive(url, checksum, 1, 1)], Path(root))
    except SkipbenchError as error:
        print(error)
        sys.exit(error.exit_code)
"""


def start(tmp_path, archive, root, limit=0):
    arguments = [archive.url, archive.checksum, root, limit]
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(tmp_path),
    )  # fmt: skip


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_interrupted(server, tmp_path):
    archive, partial = published(server), tmp_path / ".downloads" / "x.zip.partial"
    server.cuts = [200_000]
    server.gate.clear()
    child = start(tmp_path, archive, tmp_path)
    wait_for(lambda: partial.exists() and partial.stat().st_size > 100_000)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=10)
    server.gate.set()
    assert child.returncode not in (0, 4, 7)
    assert waiting_in(tmp_path) == {"x.zip.partial", "x.zip.partial.json"}
    download([archive], tmp_path)
    assert ranges(server)[1:] != [None] and tree_of(tmp_path) == TREE


def test_two_processes_at_once(server, tmp_path, told):
    archive = published(server)
    server.gate.clear()
    first = start(tmp_path, archive, tmp_path)
    wait_for(lambda: server.seen)
    second = threading.Thread(target=download, args=([archive], tmp_path))
    second.start()
    wait_for(lambda: "waiting for another download" in told.text)
    server.gate.set()
    out, err = first.communicate(timeout=20)
    second.join()
    assert first.returncode == 0, (out, err)
    assert len(server.seen) == 1 and tree_of(tmp_path) == TREE
    assert "already downloaded and unpacked" in told.text


# --- faults 30 and 35: no room ------------------------------------------------------------------


def test_no_space_is_said_before_anything_is_fetched(server, tmp_path):
    first, second = published(server), published(server, "x.tar", unpacked_bytes=10**17)
    with pytest.raises(ResourceError, match=r"x.zip, x.tar needs 1e\+05 TB, .* free") as caught:
        download([first, second], tmp_path)
    assert caught.value.exit_code == 7 and str(tmp_path) in str(caught.value) and not server.seen


@pytest.mark.parametrize("expected", [0, 5])
def test_a_larger_file_than_expected(server, tmp_path, expected):
    server.announced = 10**17
    with pytest.raises(ResourceError, match=r"x.zip needs .* TB"):
        download([published(server, bytes=expected, unpacked_bytes=5)], tmp_path)
    assert len(server.seen) == (expected > 0) and waiting_in(tmp_path) == set()


def test_disk_full_while_fetching(server, tmp_path):
    archive = published(server)
    child = start(tmp_path, archive, tmp_path, limit=150_000)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 7 and "disk full while fetching x.zip" in out, (out, err)
    assert "it resumes" in out
    assert waiting_in(tmp_path) == {"x.zip.partial", "x.zip.partial.json"}
    have = (tmp_path / ".downloads" / "x.zip.partial").stat().st_size
    assert 0 < have <= 150_000
    download([archive], tmp_path)
    assert ranges(server)[1:] == [f"bytes={have}-"] and tree_of(tmp_path) == TREE


@pytest.mark.parametrize("file", ["x.zip", "x.tar.gz"])
def test_disk_full_while_unpacking(server, tmp_path, file):
    tree = {"a/small": b"1", "b/large": bytes(500_000)}
    archive = published(server, file, MAKERS[file](tree))
    child = start(tmp_path, archive, tmp_path, limit=100_000)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 7 and f"disk full while unpacking {file}" in out, (out, err)
    assert waiting_in(tmp_path) == {file} and tree_of(tmp_path) == {}
    download([archive], tmp_path)
    assert len(server.seen) == 1 and tree_of(tmp_path) == tree


def test_a_zip_larger_than_the_disk(tmp_path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a", b"abc")
        file.filelist[0].file_size = 10**17
    with pytest.raises(ResourceError, match=r"the content of x.zip needs 1e\+05 TB"):
        unpack(path, tmp_path / "into")
    assert not list((tmp_path / "into").iterdir())


def test_a_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "root").write_bytes(b"a file")
    with pytest.raises(ResourceError, match="cannot write in"):
        download([published(server)], tmp_path / "root")
    assert not server.seen


# --- fault 28: archives that reach out ----------------------------------------------------------


def zip_entry(name, mode=stat.S_IFREG | 0o644):
    entry = zipfile.ZipInfo(name)
    entry.create_system, entry.external_attr = 3, mode << 16
    return entry


def tar_entry(kind, link=""):
    entry = tarfile.TarInfo()
    entry.type, entry.linkname, entry.devmajor, entry.devminor = kind, link, 1, 3
    return entry


def encrypted(content):
    return content.replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01")


OUTSIDE = ["../x", "a/../../x", "C:/x", "c:x", "C:\\x", "a\\..\\..\\x"]
BAD_ZIPS = {name: zipped({"good": b"1", zip_entry(name): b"x"}) for name in OUTSIDE} | {
    "link": zipped({"good": b"1", zip_entry("link", stat.S_IFLNK | 0o777): "/etc/passwd"}),
    "fifo": zipped({"good": b"1", zip_entry("fifo", stat.S_IFIFO | 0o644): b""}),
    "device": zipped({"good": b"1", zip_entry("device", stat.S_IFCHR | 0o644): b""}),
    "n\0l": zipped({"good": b"1", "nul": b"x"}).replace(b"nul", b"n\0l"),
    "secret": encrypted(zipped({zip_entry("secret"): b"x"})),
    "good": zipped({"good": b"1", "good/more": b"x"}),
    "good/more": zipped({"good/more/": b"", "good/more": b"1"}),
}
BAD_TARS = {name: {"good": b"1", name: b"x"} for name in OUTSIDE} | {
    "link": {"good": b"1", "link": tar_entry(tarfile.SYMTYPE, "/etc"), "link/x": b"x"},
    "inner": {"good": b"1", "inner": tar_entry(tarfile.SYMTYPE, "good")},
    "hard": {"good": b"1", "hard": tar_entry(tarfile.LNKTYPE, "good")},
    "far": {"good": b"1", "far": tar_entry(tarfile.LNKTYPE, "../../outside")},
    "fifo": {"good": b"1", "fifo": tar_entry(tarfile.FIFOTYPE)},
    "device": {"good": b"1", "device": tar_entry(tarfile.CHRTYPE)},
    "block": {"good": b"1", "block": tar_entry(tarfile.BLKTYPE)},
    "good": {"good": b"1", "good/more": b"x"},
}


def assert_refused(tmp_path, file, content, member):
    (tmp_path / "outside").write_bytes(b"mine")
    path, into = tmp_path / file, tmp_path / "in" / "to"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        unpack(path, into)
    assert caught.value.exit_code == 4
    assert f"{path}: the member {member!r} " in str(caught.value)
    assert tree_of(tmp_path) == {"outside": b"mine", file: content}
    assert not list(into.iterdir()) and list(into.parent.iterdir()) == [into]


@pytest.mark.parametrize("member", BAD_ZIPS)
def test_bad_zips(tmp_path, member):
    assert_refused(tmp_path, "x.zip", BAD_ZIPS[member], member)


@pytest.mark.parametrize("file", ["x.tar", "x.tar.gz"])
@pytest.mark.parametrize("member", BAD_TARS)
def test_bad_tars(tmp_path, file, member):
    assert_refused(tmp_path, file, MAKERS[file](BAD_TARS[member]), member)


@pytest.mark.parametrize("file", ["x.zip", "x.tar", "x.tar.gz"])
@pytest.mark.parametrize("slashes", ["", "/"])
def test_absolute_names(tmp_path, file, slashes):
    name = f"{slashes}{tmp_path}/escaped"  # where it does no harm if this test fails
    assert_refused(tmp_path, file, MAKERS[file]({"good": b"1", name: b"x"}), name)


@pytest.mark.parametrize("file", MAKERS)
@pytest.mark.parametrize("part", [0, 0.001, 0.5, 0.9, 0.985])
def test_archives_cut_short(tmp_path, file, part):
    content = MAKERS[file](TREE)
    path = tmp_path / file
    path.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(DataError, match=rf"{file} is damaged or cut short"):
        unpack(path, tmp_path / "into")
    assert not list((tmp_path / "into").iterdir())


@pytest.mark.parametrize("file", ["x.zip", "x.tar.gz"])
def test_flipped_bits(tmp_path, file):
    content = bytearray(MAKERS[file](TREE))
    content[len(content) // 2] ^= 1
    (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        unpack(tmp_path / file, tmp_path / "into")
    assert not list((tmp_path / "into").iterdir())


def test_a_damaged_header_is_not_the_end_of_a_tar(tmp_path):
    content = bytearray(tarred(TREE))
    content[content.index(b"set/list.txt")] ^= 1
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        unpack(tmp_path / "x.tar", tmp_path / "into")
    assert not list((tmp_path / "into").iterdir())


@pytest.mark.parametrize("file", ["x.zip", "x.tar"])
def test_merged_with_what_is_there(tmp_path, file):
    into = tmp_path / "into"
    (into / "set" / "images").mkdir(parents=True)
    (into / "set" / "images" / "0.jpg").write_bytes(b"before")
    (into / "set" / "list.txt").write_bytes(b"0\n")
    (tmp_path / file).write_bytes(MAKERS[file](TREE))
    unpack(tmp_path / file, into)
    assert tree_of(into) == TREE | {"set/images/0.jpg": b"before"}


def test_a_file_where_a_folder_belongs(tmp_path):
    (tmp_path / "into").mkdir()
    (tmp_path / "into" / "set").write_bytes(b"mine")
    (tmp_path / "x.zip").write_bytes(zipped(TREE))
    with pytest.raises(ResourceError, match=r"into/set should be a folder but is a file"):
        unpack(tmp_path / "x.zip", tmp_path / "into")
    assert tree_of(tmp_path / "into") == {"set": b"mine"}


def test_leftovers_of_a_killed_run_are_cleared(server, tmp_path):
    leftover = tmp_path / ".x.zip.unpacking" / "set" / "half.jpg"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half")
    download([published(server)], tmp_path)
    assert tree_of(tmp_path) == TREE and not (tmp_path / ".x.zip.unpacking").exists()


@pytest.mark.parametrize("file", ["x.zip", "x.tar"])
def test_modes_are_plain_and_junk_stays_out(tmp_path, file):
    junk = {"__MACOSX/set/._1.jpg": b"junk", "set/._list.txt": b"junk"}
    if file == "x.zip":
        content = zipped({zip_entry("run", stat.S_IFREG | 0o4000): b"1"} | junk)
    else:
        content = tarred({"run": b"1"} | junk)
        content = content.replace(b"0000644\0", b"0004000\0", 1)
        total = sum(content[:148]) + 8 * 32 + sum(content[156:512])
        content = content[:148] + f"{total:06o}\0 ".encode() + content[156:]
    (tmp_path / file).write_bytes(content)
    unpack(tmp_path / file, tmp_path / "into")
    assert tree_of(tmp_path / "into") == {"run": b"1"}
    assert not (tmp_path / "into" / "__MACOSX").exists()
    mode = (tmp_path / "into" / "run").stat().st_mode
    assert not mode & stat.S_ISUID and mode & stat.S_IRUSR


def test_neither_zip_nor_tar(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"what" * 1000)
    with pytest.raises(DataError, match=r"x.bin is damaged"):
        unpack(tmp_path / "x.bin", tmp_path / "into")


def test_an_old_python(tmp_path, monkeypatch):
    monkeypatch.delattr(tarfile, "data_filter")
    with pytest.raises(ResourceError, match=r"3\.11\.4"):
        unpack(tmp_path / "x.tar", tmp_path)


def test_a_receipt_that_is_damaged(server, tmp_path):
    archive = published(server)
    download([archive], tmp_path)
    receipt = tmp_path / ".downloads" / "x.zip.unpacked.json"
    assert json.loads(receipt.read_text())["identity"] == archive.checksum
    receipt.write_text("{")
    download([archive], tmp_path)
    assert len(server.seen) == 2 and tree_of(tmp_path) == TREE


def test_what_the_command_line_loads_first_is_light():
    code = (
        "import sys, skipbench.datasets.download; print({'requests', 'torch'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"
