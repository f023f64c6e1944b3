"""A few hundred damaged files, the same each time. `make fuzz` takes thousands."""

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def run(folder, *command):
    """In a process of its own, as memory is limited by process."""
    paths = os.pathsep.join([str(HERE.parent), str(HERE.parents[1])])
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, cwd=folder,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_damaged_files_are_refused_or_read_as_other_programs_read_them(tmp_path):
    done = run(tmp_path, "-m", "fuzz", "--count", "12")
    assert done.returncode == 0, done.stdout + done.stderr
    total, found = re.search(r"^all +(\d+) cases.* (\d+) found$", done.stdout, re.M).groups()
    assert int(total) >= 300 and found == "0"


PLANTED = """
import ctypes, os
from fuzz import __main__, cases

bugs = {
    "traceback": lambda path: {}["key"],
    "hang": lambda path: [None for _ in iter(int, 1)],
    "memory": lambda path: bytearray(3 << 30),
    "file": lambda path: (path.parent.parent / "x").write_bytes(b""),
    "command": lambda path: os.system("true"),
    "crash": lambda path: ctypes.string_at(0),
    "number": lambda path: found[-1].xyxy.__iadd__(1),
}
read, __main__.SECONDS = cases.read_xml, 0.3
for name, bug in bugs.items():
    cases.read_xml = lambda path: (found.append(read(path)), bug(path), found[-1])[2]
    found = []
    print(name, __main__.fuzz("VOC XML", 0, 30, name)[0]["found"])
"""


def test_planted_bugs_are_found(tmp_path):
    done = run(tmp_path, "-c", PLANTED)
    counts = dict(line.split() for line in done.stdout.splitlines())
    assert len(counts) == 7 and min(map(int, counts.values())) > 0, done.stdout + done.stderr
    for bug, count in counts.items():
        assert len(list((tmp_path / bug).glob("VOC-XML-0-*/x.xml"))) == int(count)
