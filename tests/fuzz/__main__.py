"""Thousands of damaged files, read in processes with a limit of time and memory:

    python -m fuzz [--seed N] [--count N] [--only WORD] [--out FOLDER]

Prints the cases by kind; what is found is left in --out, the file with the error beside it.
"""

import argparse
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import torch
from fuzz.cases import kinds
from fuzz.mutate import damaged, documents

from skipbench.errors import SkipbenchError

SECONDS = 5
MEMORY = 2 * 1024**3
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect")
WRITES = ("os.rename", "os.mkdir", "os.remove", "os.link", "os.symlink", "os.rmdir", "shutil.move")


class TooLong(BaseException):
    pass


def too_long(*signal):
    raise TooLong


def contents(kind, name, seed, count):
    if not isinstance(kind.seeds[0], bytes):
        made = documents(kind.seeds, seed, count)
        return [json.dumps(one).encode() if kind.wrap is bytes else kind.wrap(one) for one in made]
    randoms = [random.Random(f"{name} {seed} {n}") for n in range(count)]
    seeds = kind.seeds * count
    return [kind.wrap(damaged(one, seeds[n], kind.words)) for n, one in enumerate(randoms)]


def outcome(kind, folder, forbidden):
    """ "accepted", "refused", or what is wrong."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        kind.accept(folder / kind.file)
        found = "accepted"
    except SkipbenchError as error:
        good = error.exit_code != 1 and str(error) and str(error).count("\n") < kind.lines
        found = "refused" if good else f"a message with exit code {error.exit_code}: {error}"
    except BaseException:
        found = traceback.format_exc()
    signal.setitimer(signal.ITIMER_REAL, 0)
    return f"not allowed: {forbidden}" if forbidden else found


def watch(folder, forbidden):
    """Note commands, connections and writing elsewhere."""

    def hook(event, arguments):
        if event in FORBIDDEN:
            forbidden.append(event)
        elif event in WRITES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            path = arguments[0]
            if isinstance(path, int) or Path(os.fsdecode(path)).absolute().is_relative_to(folder):
                return
            forbidden.append((event, path))

    sys.addaudithook(hook)


def work(kind, cases, folder, pipe):
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what libjpeg and libpng say
    os.environ["SKIPBENCH_CACHE"] = str(folder / "cache")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    signal.signal(signal.SIGALRM, too_long)
    watch(folder, forbidden := [])
    for content in cases:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        os.chdir(folder)
        for name, data in {**kind.beside, kind.file: content}.items():
            (folder / name).write_bytes(data)
        forbidden.clear()
        pipe.send(outcome(kind, folder, forbidden))


def outcomes(kind, cases, folder):
    """Of each case; one that ends its process, or hangs in C code, is found too."""
    fork, done = multiprocessing.get_context("fork"), 0
    while done < len(cases):
        receive, send = fork.Pipe(duplex=False)
        process = fork.Process(target=work, args=(kind, cases[done:], folder, send))
        process.start()
        send.close()
        alive = True
        while alive and done < len(cases):
            try:
                alive = receive.poll(3 * SECONDS)
                yield receive.recv() if alive else "a hang"
            except EOFError:
                alive = False
                yield "its process crashed"
            done += 1
        process.kill()
        process.join()


def fuzz(name, seed, count, out):
    """Number of cases by outcome, and the folders of what was found."""
    kind, found, tally = kinds()[name], [], Counter()
    cases = contents(kind, name, seed, count)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made).resolve() / "here"
        for n, what in enumerate(outcomes(kind, cases, folder)):
            tally[what if what in ("accepted", "refused") else "found"] += 1
            if what not in tally:
                found.append(Path(out) / f"{re.sub('[^A-Za-z]+', '-', name)}-{seed}-{n}")
                found[-1].mkdir(parents=True, exist_ok=True)
                (found[-1] / kind.file).write_bytes(cases[n])
                (found[-1] / "error.txt").write_text(what, errors="backslashreplace")
    return tally, found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=400, help="cases of each kind")
    parser.add_argument("--only", default="", help="kinds whose name has this word")
    parser.add_argument("--out", default="fuzz-findings")
    given = parser.parse_args()
    total = Counter()
    for name in [name for name in kinds() if given.only in name]:
        start = time.monotonic()
        tally, found = fuzz(name, given.seed, given.count, given.out)
        total += tally
        print(f"{name:26} {counts(tally)}  {time.monotonic() - start:.1f} s", flush=True)
        for place in found:
            print(f"  {place}: {(place / 'error.txt').read_text().splitlines()[-1]:.150}")
    print(f"{'all':26} {counts(total)}")
    return 1 if total["found"] else 0


def counts(tally):
    return f"{tally.total():6} cases " + " ".join(
        f"{tally[what]:6} {what}" for what in ("refused", "accepted", "found")
    )


if __name__ == "__main__":
    sys.exit(main())
