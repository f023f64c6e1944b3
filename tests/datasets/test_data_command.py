"""`skipbench data` and `--dataset`, as a user meets them."""

import hashlib
import io
import json
import shlex
import shutil
import signal
import subprocess
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trees
from conftest import clean_environment, command
from PIL import Image

from skipbench import datasets
from skipbench.datasets import open_dataset, source
from skipbench.datasets.common.verify import SAMPLE, verify
from skipbench.errors import DataError, ResourceError, UsageError

pytestmark = pytest.mark.usefixtures("nowhere_else")


@pytest.fixture
def voc07(tmp_path):
    """The validation split of VOC2007, whole."""
    return trees.whole_voc07_val(tmp_path)[0]


# -- list


def test_list(cli, tmp_path):
    trees.voc(tmp_path / "data")
    shown = cli("data", "list")
    assert shown.exit_code == 0
    assert "PASCAL VOC2012: data/VOCdevkit/VOC2012" in shown.stdout
    assert (
        "train 3 of 1,464 with masks · val 2 of 1,449 with masks · train_aug – of 10,582"
        in shown.stdout
    )
    assert "ADE20K: not found" in shown.stdout and "shapes" in shown.stdout
    assert "SKIPBENCH_DATA" in shown.stderr


def test_list_json(cli, tmp_path):
    trees.ade20k(tmp_path / "x")
    rows = json.loads(cli("data", "list", "--data-root", tmp_path / "x", "--json").stdout)
    by_name = {row["name"]: row for row in rows}
    assert by_name["ade20k"]["found"] and not by_name["voc"]["found"]
    assert by_name["cocostuff"]["classes"] == "171 or 27 classes" and not by_name["voc"]["classes"]
    splits = by_name["ade20k"]["splits"]
    assert splits["val"] == {"images": 2, "official": 2000, "labels": "masks"}


def test_list_and_verify_of_what_stands_out(cli, tmp_path):
    trees.duts(tmp_path / "data")
    shown = cli("data", "list")
    assert "DUTS: data/DUTS" in shown.stdout and "ECSSD: not found" in shown.stdout
    assert "test 3 of 5,019 with masks · train 2 of 10,553 with masks" in shown.stdout
    (report,) = verify("duts", "test", full=True).splits
    assert not report.damaged and report.looked_into == 3 and not report.notes
    trees.grey_png(next((tmp_path / "data").rglob("*.png")), np.zeros((9, 11), np.uint8))
    assert any(split.damaged for split in verify("duts", full=True).splits)


def test_list_of_a_root_that_cannot_be(cli):
    shown = cli("data", "list", "--data-root", "x" * 300)
    assert shown.exit_code == 0 and "(no such folder)" in shown.stderr


def test_list_when_only_half_is_there(cli, tmp_path):
    """Images without annotations, masks without images, an empty ImageSets."""
    folder = trees.coco20k(tmp_path / "data")
    (folder / "annotations" / "instances_train2014.json").unlink()
    devkit = tmp_path / "data" / "VOCdevkit" / "VOC2012"
    (devkit / "JPEGImages").mkdir(parents=True)
    (devkit / "ImageSets").mkdir()
    shown = cli("data", "list")
    assert shown.exit_code == 0
    assert "train – of 19,817 with boxes" in shown.stdout and "val – of 1,449" in shown.stdout


# -- verify


def test_a_sound_data_set(voc07, tmp_path, cli):
    report = verify("voc07", "val", root=tmp_path, full=True)
    assert report.sound and report.splits[0].looked_into == 213
    assert any("no pixel of aeroplane" in note for note in report.splits[0].notes)
    shown = cli("data", "verify", "voc07", "--split", "val", "--data-root", tmp_path)
    assert shown.exit_code == 0 and "213 of 213 images" in shown.stdout and "sound" in shown.stdout


def test_without_full_a_spread_of_images_is_looked_into(voc07, tmp_path):
    truncated = voc07 / "JPEGImages" / "000001.jpg"
    truncated.write_bytes(truncated.read_bytes()[:300])
    quick = verify("voc07", "val", root=tmp_path)
    assert quick.sound and SAMPLE / 2 < quick.splits[0].looked_into <= SAMPLE
    full = verify("voc07", "val", root=tmp_path, full=True)
    assert len(full.splits[0].problems) == 1 and "000001.jpg" in full.splits[0].problems[0]


def test_every_fault_is_found_and_named(voc07, tmp_path, cli):
    masks = voc07 / "SegmentationClass"
    (masks / "000003.png").unlink()
    (voc07 / "JPEGImages" / "000004.jpg").unlink()
    trees.palette_png(masks / "000005.png", np.zeros((9, 11), np.uint8))
    trees.palette_png(masks / "000006.png", np.full((30, 44), 99, np.uint8))
    (masks / "000007.png").write_bytes(b"")
    trees.palette_png(masks / "000008.png", np.full((30, 44), 255, np.uint8))
    (report,) = verify("voc07", "val", root=tmp_path, full=True).splits
    found = "\n".join(report.problems)
    for fault in (
        "212 images; the official split has 213",
        "image is missing: 000004",
        "000003.jpg: its mask is missing",
        "000005.png: the mask is 9×11",
        "000006.png: 1,320 pixels have the value 99",
        "000007.png: not a readable image",
    ):
        assert fault in found
    assert len(report.problems) == 6
    assert "masks with no labelled pixel, which are not scored: 1" in report.notes
    shown = cli("data", "verify", "voc07", "--split", "val", "--full", "--data-root", tmp_path)
    assert shown.exit_code == 4 and "000005.png" in shown.stdout
    assert "voc07: damaged: val; incomplete: val" in shown.stderr
    answer = cli("data", "verify", "voc07", "--full", "--json", "--data-root", tmp_path)
    content = json.loads(answer.stdout)
    assert answer.exit_code == 4 and not content["sound"]
    assert {s["split"] for s in content["splits"]} == {"train", "val", "trainval"}


@pytest.mark.parametrize("name", ["voc07", "coco20k", "shapes"])
def test_processes_find_what_threads_find(voc07, tmp_path, name):
    trees.palette_png(voc07 / "SegmentationClass" / "000006.png", np.full((30, 44), 99, np.uint8))
    trees.coco20k(tmp_path)
    split = "train" if name == "coco20k" else "val"
    threads = verify(name, split, root=tmp_path, full=True)
    processes = verify(name, split, root=tmp_path, full=True, processes_from=1)
    assert processes == threads and processes.splits[0].looked_into > 1


def test_a_process_that_dies_is_an_error(voc07, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(ResourceError, match="died"):
        verify("voc07", "val", root=tmp_path, full=True, processes_from=1)


def test_ctrl_c_ends_it_and_its_processes(voc07, tmp_path):
    """As at a terminal: the signal comes while images are decoded."""
    names = [f"{i:06d}" for i in range(213)] * 40
    folder = tmp_path / "many"
    for i, name in enumerate(names):
        for part, file in (("images", f"{name}.jpg"), ("masks", f"{name}.png")):
            made = "JPEGImages" if part == "images" else "SegmentationClass"
            target = folder / part / file.replace(".", f"_{i}.")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.hardlink_to(voc07 / made / file)
    trees.write_lines(folder / "classes.txt", [str(i) for i in range(21)])
    running = subprocess.Popen(
        command("data", "verify", f"folder:{folder}", "--full"),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(tmp_path),
    )
    deadline = time.monotonic() + 30
    while len(children := _children(running.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=10)
    assert running.returncode == 130 and said.endswith("skipbench: interrupted\n"), said
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def _children(pid):
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []


def test_many_problems_are_not_all_printed(tmp_path, cli):
    trees.coco20k(tmp_path)
    shown = cli("data", "verify", "coco20k", "--data-root", tmp_path)
    assert shown.exit_code == 4 and len(shown.stdout.splitlines()) < 20
    assert "all 19,816 problems" in shown.stdout


def test_boxes_are_looked_at(tmp_path):
    trees.coco20k(tmp_path, extra_boxes=[(396626, (30, 20, 50, 50), 1, False)])
    (report,) = verify("coco20k", root=tmp_path).splits
    assert any("a box [30.0, 20.0, 80.0, 70.0] outside its 40×24" in o for o in report.problems)
    assert "boxes around crowds, which are left out: 1" in report.notes


def test_clearing_the_cache_clears_the_indexes(tmp_path, cli):
    trees.coco20k(tmp_path)
    verify("coco20k", root=tmp_path)
    assert list((tmp_path / "cache").rglob("*.npz"))
    assert cli("cache", "clear", "--yes").exit_code == 0
    assert not list((tmp_path / "cache").rglob("*.npz"))


def test_boxes_of_another_picture_size(tmp_path):
    folder = trees.coco20k(tmp_path)
    trees.photo(folder / "train2014" / "COCO_train2014_000000560992.jpg", (300, 440))
    (report,) = verify("coco20k", root=tmp_path).splits
    assert any("300×440 pixels, its boxes are for 30×44" in line for line in report.damaged)


def test_coco_annotations_are_looked_at(tmp_path):
    folder = trees.coco(tmp_path)
    assert not verify("coco", "val", root=tmp_path).splits[0].damaged
    path = folder / "annotations" / "instances_val2017.json"
    path.write_text(path.read_text()[:300])
    (damage,) = verify("coco", "val", root=tmp_path).splits[0].damaged
    assert "not JSON" in damage


def test_masks_that_are_all_gone_are_damage(voc07, tmp_path):
    shutil.rmtree(voc07 / "SegmentationClass")
    report = verify("voc07", root=tmp_path)
    val = next(s for s in report.splits if s.split == "val")
    assert len(val.damaged) == 1 and "none of its images has a label" in val.damaged[0]
    assert "SegmentationClass" in val.damaged[0]


def test_a_list_that_names_nothing_is_a_fault(voc07, tmp_path):
    lists = voc07 / "ImageSets" / "Segmentation"
    trees.write_lines(lists / "train.txt", [])
    report = verify("voc07", root=tmp_path)
    train = next(s for s in report.splits if s.split == "train")
    assert "train.txt is empty" in train.missing[0]
    folder = tmp_path / "mine"
    trees.photo(folder / "images" / "a.png", (24, 40))
    trees.write_lines(folder / "train.txt", ["a"])
    trees.write_lines(folder / "val.txt", [])
    report = verify(f"folder:{folder}")
    assert not report.sound and "val.txt is empty" in report.splits[1].missing[0]


def test_what_a_sample_lacks_is_not_called_absent(tmp_path):
    folder = tmp_path / "mine"
    for i in range(SAMPLE + 6):
        trees.photo(folder / "images" / f"{i:03d}.png", (6, 8))
        trees.grey_png(folder / "masks" / f"{i:03d}.png", np.zeros((6, 8), np.uint8))
    trees.write_lines(folder / "classes.txt", ["no", "yes"])
    (quick,) = verify(f"folder:{folder}").splits
    assert quick.looked_into == SAMPLE and not quick.notes
    (full,) = verify(f"folder:{folder}", full=True).splits
    assert full.looked_into == SAMPLE + 6 and full.notes == ("no pixel of yes: left out of means",)


def test_one_unreadable_split_does_not_hide_the_others(cli, tmp_path):
    folder = trees.voc(tmp_path / "data")
    (folder / "ImageSets/Segmentation/val.txt").unlink()
    (folder / "ImageSets/Segmentation/val.txt").mkdir()
    shown = cli("data", "list")
    assert shown.exit_code == 0 and "train 3 of 1,464" in shown.stdout
    assert "cannot read" in shown.stderr and "shapes" in shown.stdout
    shown = cli("data", "verify", "voc")
    assert shown.exit_code == 4 and "train: 3 of 1,464" in shown.stdout


@pytest.mark.parametrize("name", ["a[/x]b", "d[red]x"])
def test_brackets_in_names_are_names(cli, tmp_path, name):
    trees.voc(tmp_path / name)
    for what in (("list",), ("verify", "voc")):
        shown = cli("data", *what, "--data-root", tmp_path / name)
        assert shown.exit_code in (0, 4) and name in shown.stdout, shown.output


def test_splits_that_are_not_there_are_said(tmp_path):
    shutil.rmtree(trees.ade20k(tmp_path) / "images" / "training")
    report = verify("ade20k", root=tmp_path)
    assert list(report.absent) == ["train"] and [s.split for s in report.splits] == ["val"]
    (asked,) = verify("ade20k", "train", root=tmp_path).splits
    assert asked.problems[0] == "none of its images exists"


def test_own_folder(tmp_path, cli):
    folder = trees.own_folder(tmp_path)
    assert cli("data", "verify", f"folder:{folder}", "--full").exit_code == 0
    (folder / "masks" / "val" / "p1.png").unlink()
    shown = cli("data", "verify", f"folder:{folder}")
    assert shown.exit_code == 4 and "p1.jpg" in shown.stdout


def test_unknown_things(tmp_path, cli):
    assert cli("data", "verify", "vok").exit_code == 2
    assert cli("data", "verify", "voc", "--data-root", tmp_path).exit_code == 4
    trees.voc(tmp_path)
    with pytest.raises(UsageError, match="no split 'vall'"):
        verify("voc", "vall", root=tmp_path)


# -- show


@pytest.mark.parametrize("name", datasets.names())
def test_show(tmp_path, cli, name):
    folder = getattr(trees, name)(tmp_path / "data")
    spec = f"folder:{folder}" if name == "folder" else name
    shown = cli("data", "show", spec, "--out", tmp_path / "new" / "x.png", "--limit", 3)
    assert shown.exit_code == 0, shown.output
    picture = np.asarray(Image.open(tmp_path / "new" / "x.png").convert("RGB"))
    assert picture.shape[0] > 250 and picture.shape[1] > 250
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 50


@pytest.mark.parametrize("out", ["x.xyz", "noext", ".", "x.png/y.png"])
def test_show_into_what_is_no_picture(tmp_path, cli, out):
    (tmp_path / "x.png").write_text("a file")
    assert cli("data", "show", "shapes", "--limit", 1, "--out", out).exit_code in (2, 7)


def test_show_of_a_very_long_picture(tmp_path, cli):
    trees.photo(tmp_path / "mine" / "images" / "a.png", (2, 6000))
    shown = cli("data", "show", f"folder:{tmp_path / 'mine'}", "--out", "x.png")
    assert shown.exit_code == 0 and Image.open("x.png").width < 2000


# -- download (the archives themselves: tests/test_download.py)


@pytest.fixture
def published(server, voc07, tmp_path, monkeypatch):
    """VOC2007 val as a tar on the loopback server; the folder it was made of is gone."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(voc07.parent, "VOCdevkit")
    shutil.rmtree(voc07.parent)
    kind = source("voc07")
    checksum = f"sha256:{hashlib.sha256(buffer.getvalue()).hexdigest()}"
    archive = replace(kind.archives[0], checksum=checksum, bytes=len(buffer.getvalue()))
    monkeypatch.setattr(kind, "archives", (archive,))
    server.files[f"/mirror/{archive.file}"] = buffer.getvalue()
    return f"http://127.0.0.1:{server.server_port}/mirror"


def test_download(cli, published, server, tmp_path):
    command = ("data", "download", "voc07", "--split", "val", "--mirror", published)
    shown = cli(*command, "--data-root", tmp_path / "new")
    assert shown.exit_code == 0, shown.output
    assert "Flickr's terms of use" in shown.stderr and "VOCtrainval_06-Nov-2007.tar" in shown.stderr
    assert "voc07 val: complete" in shown.stdout
    assert len(open_dataset("voc07", "val", root=tmp_path / "new")) == 213
    assert "already complete" in cli(*command, "--data-root", tmp_path / "new").stdout
    assert len(server.seen) == 1


def test_download_that_lacks_something(cli, published, tmp_path):
    shown = cli("data", "download", "voc07", "--mirror", published, "--data-root", tmp_path / "new")
    assert shown.exit_code == 4 and "lack some of its files" in shown.stderr
    assert "val: complete" in shown.stdout and "trainval: incomplete" in shown.stdout


def test_a_mask_that_is_gone_is_downloaded_again(cli, published, server, tmp_path):
    """By the command in the message."""
    root = tmp_path / "new"
    command = ("data", "download", "voc07", "--split", "val", "--mirror", published)
    assert cli(*command, "--data-root", root).exit_code == 0
    (root / "VOCdevkit" / "VOC2007" / "SegmentationClass" / "000006.png").unlink()
    with pytest.raises(DataError) as error:
        open_dataset("voc07", "val", root=root)
    words = shlex.split(str(error.value).partition(": skipbench ")[2])
    assert cli(*words, "--mirror", published).exit_code == 0 and len(server.seen) == 2
    assert len(open_dataset("voc07", "val", root=root)) == 213


def test_verify_says_how_to_download_what_is_missing(cli, tmp_path):
    trees.voc(tmp_path / "data")
    shown = cli("data", "verify", "voc")
    assert shown.exit_code == 4
    assert "skipbench data download voc --split train --split val --split trainval" in shown.stderr


def test_verify_says_what_to_download_by_hand(cli, tmp_path):
    trees.cityscapes(tmp_path / "data", test=0)
    shown = cli("data", "verify", "cityscapes")
    assert shown.exit_code == 4 and "test: not found" in shown.stdout
    assert "Download what is missing: leftImg8bit_trainvaltest.zip and" in shown.stderr
    with pytest.raises(DataError, match=r"2 of 500 images.*\nDownload the rest \(leftImg8bit_"):
        open_dataset("cityscapes")
    with pytest.raises(DataError, match=r"Cityscapes \(cityscapes\) was not found(?s:.*)gtFine_t"):
        open_dataset("cityscapes", root=tmp_path / "nowhere")


def test_images_that_are_missing_are_one_cause(tmp_path):
    """Those that the list names, and the number that they make, are not told twice."""
    trees.coco20k(tmp_path)
    [report] = verify("coco20k", root=tmp_path).splits
    assert report.images == 2 and len(report.missing) == 19_816
    [cause] = report.causes
    assert cause.endswith("(the same in 19,814 more)")


def test_one_ambiguous_file_does_not_hide_the_other_splits(cli, tmp_path):
    folder = trees.own_folder(tmp_path)
    for name in ("instances_train.json", "captions_train.json", "instances_val.json"):
        trees.coco_json(folder / name, [(1, "p0.jpg", (30, 44))], [])
    shown = cli("data", "verify", f"folder:{folder}")
    assert shown.exit_code == 4 and "must end in train.json" in shown.stdout
    assert "val: 2 images, all checked: sound" in shown.stdout


def test_download_of_another_file_than_the_official_one(cli, server, tmp_path):
    """Against the checksum that is really published."""
    server.files["/m/VOCtrainval_06-Nov-2007.tar"] = b"something else"
    mirror = f"http://127.0.0.1:{server.server_port}/m"
    shown = cli("data", "download", "voc07", "--mirror", mirror, "--data-root", tmp_path / "new")
    assert shown.exit_code == 4
    assert "c52e279531787c972589f7e41ab4ae64" in shown.stderr
    assert hashlib.md5(b"something else").hexdigest() in shown.stderr
    assert not (tmp_path / "new" / "VOCdevkit").exists()


def test_download_without_room(cli, server, tmp_path):
    """The length the server tells is more than any disk has; nothing is written."""
    server.files["/m/VOCtrainval_06-Nov-2007.tar"] = b"x"
    server.announced = 10**17
    mirror = f"http://127.0.0.1:{server.server_port}/m"
    shown = cli("data", "download", "voc07", "--mirror", mirror, "--data-root", tmp_path / "new")
    assert shown.exit_code == 7 and "free" in shown.stderr
    left = [p for p in (tmp_path / "new").rglob("*") if p.is_file() and p.stat().st_size]
    assert not left


def test_download_where_one_cannot_write(cli, tmp_path):
    (tmp_path / "file").write_text("")
    shown = cli("data", "download", "voc07", "--data-root", tmp_path / "file" / "below")
    assert shown.exit_code == 7 and "cannot write" in shown.stderr


def test_download_of_masks_for_train_aug(cli, server, tmp_path, monkeypatch):
    """SBD's archive alone, where the images are there; its masks become PNG."""
    from scipy.io import savemat

    folder = trees.voc(tmp_path / "new")
    names = ["2007_000032", "2007_000039"]
    (folder / "SegmentationClass" / "2007_000039.png").unlink()
    buffer, mat = io.BytesIO(), io.BytesIO()
    savemat(mat, {"GTcls": {"Segmentation": trees.blocks((24, 40), [0, 9])}})
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        member = tarfile.TarInfo("benchmark_RELEASE/dataset/cls/2007_000039.mat")
        member.size = len(mat.getvalue())
        tar.addfile(member, io.BytesIO(mat.getvalue()))
    kind = source("voc")
    monkeypatch.setattr(kind, "train_aug", lambda: names)
    monkeypatch.setitem(kind.splits, "train_aug", replace(kind.splits["train_aug"], images=2))
    checksum = f"md5:{hashlib.md5(buffer.getvalue()).hexdigest()}"
    sbd = replace(kind.archives[1], checksum=checksum)
    monkeypatch.setattr(kind, "archives", (kind.archives[0], sbd))
    server.files["/m/benchmark.tgz"] = buffer.getvalue()
    mirror = f"http://127.0.0.1:{server.server_port}/m"
    command = ("data", "download", "voc", "--split", "train_aug", "--mirror", mirror)
    shown = cli(*command, "--data-root", tmp_path / "new")
    assert shown.exit_code == 0, shown.output
    assert [path for path, *_ in server.seen] == ["/m/benchmark.tgz"]
    data = open_dataset("voc", "train_aug", root=tmp_path / "new")
    assert set(np.unique(data[0].mask())) == {0, 1, 255}  # VOC's own
    assert set(np.unique(data[1].mask())) == {0, 9}


def test_a_data_set_in_another_root_is_not_fetched_again(cli, voc07, tmp_path, monkeypatch):
    monkeypatch.setenv("SKIPBENCH_DATA", f"{tmp_path / 'empty'}:{tmp_path}")
    shown = cli("data", "download", "voc07", "--split", "val")
    assert shown.exit_code == 0 and "already complete" in shown.stdout


def test_a_mirror_that_is_none_leaves_nothing_behind(cli, tmp_path):
    for mirror in ("/nope", "m" * 300):
        shown = cli("data", "download", "voc07", "--mirror", mirror)
        assert shown.exit_code == 2 and not (tmp_path / "data").exists()


def test_what_each_split_needs():
    def files(name, *splits):
        return [archive.file for archive in source(name).archives_for(None, splits)]

    assert files("voc", "train", "val") == ["VOCtrainval_11-May-2012.tar"]
    assert files("voc", "train_aug") == ["VOCtrainval_11-May-2012.tar", "benchmark.tgz"]
    for name in ("cocostuff", "cocoobject"):
        assert files(name, "val") == ["val2017.zip", "stuffthingmaps_trainval2017.zip"]
    assert files("coco20k", "train") == ["train2014.zip", "annotations_trainval2014.zip"]


def test_nothing_to_fetch(cli):
    shown = cli("data", "download", "shapes")
    assert shown.exit_code == 2 and "has no archives to download" in shown.stderr
    for name, where in (
        ("ecssd", "www.cse.cuhk.edu.hk"),
        ("duts", "saliencydetection.net/duts"),
        ("dutomron", "saliencydetection.net/dut-omron"),
        ("cityscapes", "leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip from www.city"),
        ("context", "VOCtrainval_03-May-2010.tar from host.robots.ox.ac.uk"),
    ):
        shown = cli("data", "download", name)
        assert shown.exit_code == 2 and where in shown.stderr


# -- --dataset


def test_extract_from_a_data_set(cli, tmp_path, ckpt):
    trees.voc(tmp_path / "data")
    options = ("--ckpt", ckpt, "--residual", "skip", "--size", "short:24", "--json")
    asked = cli("extract", "--dataset", "voc", "--split", "train", "--limit", 2, *options)
    assert asked.exit_code == 0, asked.output
    answer = json.loads(asked.stdout)
    assert answer["images"] == 2 and answer["dataset"]["names"] == ["2007_000032", "2007_000039"]
    assert answer["dataset"]["partial"] and answer["dataset"]["split"] == "train"
    data = open_dataset("voc", "train", limit=2)
    assert answer["dataset"]["fingerprint"] == data.fingerprint()


def test_extract_from_what_is_drawn(cli, ckpt):
    options = ("--ckpt", ckpt, "--residual", "skip", "--size", "40x56", "--json")
    asked = cli("extract", "--dataset", "shapes", "--train-images", 3, "--seed", 1, *options)
    assert asked.exit_code == 0, asked.output
    answer = json.loads(asked.stdout)
    assert answer["images"] == 3 and answer["dataset"]["sample"] == [3, 1]
    again = cli("extract", "--dataset", "shapes", "--train-images", 3, "--seed", 1, *options)
    assert "found in the cache" in again.stderr


@pytest.mark.parametrize("source", ["data set", "folder"])
def test_skip_bad(cli, tmp_path, ckpt, source):
    folder = trees.own_folder(tmp_path, splits=("train",), count=3)
    bad = folder / "images" / "train" / "p1.jpg"
    bad.write_bytes(bad.read_bytes()[:400])
    what = ("--dataset", f"folder:{folder}") if source == "data set" else (folder / "images",)
    options = ("--ckpt", ckpt, "--residual", "skip", "--size", "24x40", "--json")
    strict = cli("extract", *what, *options)
    assert strict.exit_code == 4 and "p1.jpg" in strict.stderr and "--skip-bad" in strict.stderr
    lenient = cli("extract", *what, *options, "--skip-bad", 1)
    assert lenient.exit_code == 0 and "left out: " in lenient.stderr
    answer = json.loads(lenient.stdout)
    assert answer["images"] == 2
    if source == "data set":
        assert answer["dataset"]["bad"] == ["train/p1"]
    bad2 = folder / "images" / "train" / "p2.jpg"
    bad2.write_bytes(b"")
    assert cli("extract", *what, *options, "--skip-bad", 1).exit_code == 4


def test_images_or_a_data_set_but_not_both(cli, pictures, ckpt):
    for what in ((), (pictures, "--dataset", "shapes")):
        shown = cli("extract", *what, "--ckpt", ckpt)
        assert shown.exit_code == 2 and "--dataset" in shown.stderr
    for option in (("--split", "val"), ("--train-images", 1), ("--data-root", "x")):
        shown = cli("extract", pictures, "--ckpt", ckpt, *option)
        assert shown.exit_code == 2 and "go with --dataset" in shown.stderr
    for option in (("--batch-size", "²"), ("--expect", "depth=²"), ("--size", "9" * 5000)):
        assert cli("extract", pictures, "--ckpt", ckpt, *option).exit_code == 2
