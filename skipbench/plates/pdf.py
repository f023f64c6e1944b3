"""PDF 1.4 written out by hand: each page one lossless picture, no fonts that could be missing."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import BinaryIO

from skipbench.errors import ResourceError


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file that appears when all of it is written; if nothing was, it does not."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.{get_ident()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        if size:
            partial.replace(path)
    except OSError as error:
        raise ResourceError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def png_pixels(png: bytes) -> bytes:
    """The compressed pixels of a PNG: a PDF's, if it is told that PNG's predictors were used."""
    parts, at = [], 8
    while at < len(png):
        size = int.from_bytes(png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            parts.append(png[at + 8 : at + 8 + size])
        at += size + 12
    return b"".join(parts)


class Pdf:
    """Objects 1 and 2, the catalogue and the list of pages, come last: only then are they known."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.offsets = {0: 0}
        self.leaves: list[int] = []

    def add(self, size: tuple[int, int], dpi: float, pixels: bytes) -> None:
        if not self.leaves:
            self.file.write(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
        (columns, rows), first = size, 3 * len(self.leaves) + 3
        wide, tall = (f"{side / dpi * 72:.4f}" for side in size)
        self._put(
            first,
            f"/Type /XObject /Subtype /Image /Width {columns} /Height {rows} "
            "/ColorSpace /DeviceRGB /BitsPerComponent 8 /Filter /FlateDecode "
            f"/DecodeParms << /Predictor 15 /Colors 3 /Columns {columns} >>",
            pixels,
        )
        self._put(first + 1, "", f"q {wide} 0 0 {tall} 0 0 cm /Page Do Q".encode())
        self._put(
            first + 2,
            f"/Type /Page /Parent 2 0 R /MediaBox [0 0 {wide} {tall}] "
            f"/Resources << /XObject << /Page {first} 0 R >> >> /Contents {first + 1} 0 R",
        )
        self.leaves.append(first + 2)

    def _put(self, number: int, entries: str, stream: bytes | None = None) -> None:
        self.offsets[number] = self.file.tell()
        entries += "" if stream is None else f" /Length {len(stream)}"
        self.file.write(f"{number} 0 obj\n<< {entries} >>\n".encode())
        if stream is not None:
            self.file.write(b"stream\n" + stream + b"\nendstream\n")
        self.file.write(b"endobj\n")

    def end(self) -> None:
        if not self.leaves:
            return
        kids = " ".join(f"{leaf} 0 R" for leaf in self.leaves)
        self._put(1, "/Type /Catalog /Pages 2 0 R")
        self._put(2, f"/Type /Pages /Kids [{kids}] /Count {len(self.leaves)}")
        start, count = self.file.tell(), len(self.offsets)
        self.file.write(f"xref\n0 {count}\n0000000000 65535 f \n".encode())
        for number in range(1, count):
            self.file.write(f"{self.offsets[number]:010} 00000 n \n".encode())
        self.file.write(f"trailer\n<< /Size {count} /Root 1 0 R >>\n".encode())
        self.file.write(f"startxref\n{start}\n%%EOF\n".encode())
