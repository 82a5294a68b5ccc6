"""Tests of unpacking OCI image layouts: the order of layers, whiteouts, digests, and what is rejected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from borglet.packages.archives.disk import digests_of
from borglet.packages.archives.limits import ArchiveRefused
from borglet.packages.archives.oci import ARCHITECTURES
from borglet.packages.archives.unpacking import OCI, inspect
from tests.real.packages.archives import (
    INDEX,
    LAYER,
    Layout,
    archive,
    contents,
    file,
    folder,
    hard_link,
    header,
    image_of,
    link,
    unpacked,
)

HERE = {"os": "linux", "architecture": ARCHITECTURES.get(os.uname().machine, os.uname().machine)}
THERE = {"os": "linux", "architecture": "s390x"}


def test_layers_are_applied_in_order_with_their_whiteouts(tmp_path: Path) -> None:
    base = (file("bin/sh", b"old", mode=0o755), file("etc/gone"), file("etc/kept", b"kept"), file("var/a/b/c"))
    image = image_of(
        base,
        (file("bin/sh", b"new", mode=0o755), file("etc/.wh.gone", b""), file("var/a/.wh..wh..opq", b"")),
        (file("var/a/new", b"n"), file(".wh..wh.plnk", b""), file("never/.wh.there", b"")),
    )
    found = unpacked(image, tmp_path / "tree", OCI)
    assert contents(tmp_path / "tree") == {
        "bin": None,
        "bin/sh": (b"new", True),
        "etc": None,
        "etc/kept": (b"kept", False),
        "never": None,
        "var": None,
        "var/a": None,
        "var/a/new": (b"n", False),
    }
    assert found.digests == digests_of(tmp_path / "tree", contents=True)


def test_a_whiteout_hides_only_what_lies_below_its_layer(tmp_path: Path) -> None:
    image = image_of(
        (file("d/old"), file("e/old"), file("f", b"file")),
        (file("d/new", b"n"), file("d/.wh..wh..opq", b""), file("e/new", b"n"), file(".wh.e", b""), folder("f")),
    )
    unpacked(image, tmp_path / "tree", OCI)
    found = contents(tmp_path / "tree")
    assert sorted(found) == ["d", "d/new", "e", "e/new", "f"]
    assert found["f"] is None


def test_entries_go_through_links_of_the_image_and_stay_in_it(tmp_path: Path) -> None:
    """Unpack entries below links of a lower layer, such as /lib to /usr/lib. Absolute links mean the image's root."""
    image = image_of(
        (folder("usr/lib"), link("lib", "usr/lib"), link("usr/abs", "/lib"), link("etc/mtab", "/proc/mounts")),
        (file("lib/libc.so", b"c"), file("usr/abs/libm.so", b"m"), hard_link("libd.so", "lib/libc.so")),
    )
    unpacked(image, tmp_path / "tree", OCI)
    found = contents(tmp_path / "tree")
    assert found["usr/lib/libc.so"] == found["libd.so"] == (b"c", False)
    assert found["usr/lib/libm.so"] == (b"m", False)
    assert (found["usr/abs"], found["etc/mtab"]) == ("../lib", "../proc/mounts")


def test_the_image_of_this_machine_is_chosen_also_from_an_index_in_the_index(tmp_path: Path) -> None:
    layout = Layout()
    here = layout.image(layout.layer(file("here"), compressed=True), platform=HERE)
    there = layout.image(layout.layer(file("there")), platform=THERE)
    nested = layout.blob(layout.index(here, there), INDEX)
    unpacked(layout.tar(nested), tmp_path / "tree", OCI)
    assert sorted(contents(tmp_path / "tree")) == ["here"]
    with pytest.raises(ArchiveRefused, match=r"lists 0 images .*; make one package"):
        inspect(layout.tar(there), OCI)
    with pytest.raises(ArchiveRefused, match=r"lists 2 images .*; make one package"):
        inspect(layout.tar(here, here), OCI)


def test_a_blob_that_is_not_what_its_digest_says_is_refused() -> None:
    layout = Layout()
    layer = layout.layer(file("a"))
    image = layout.image(layer)
    layout.blobs[str(layer["digest"])] = layout.blobs[str(layer["digest"])][:-1] + b"!"
    with pytest.raises(ArchiveRefused, match=r"blobs/sha256/.*declares 2048 bytes and digest"):
        inspect(layout.tar(image), OCI)
    for each in (layer, image):
        del layout.blobs[str(each["digest"])]
        with pytest.raises(ArchiveRefused, match=r"blobs/sha256/.*: this file is missing"):
            inspect(layout.tar(image), OCI)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((file("../x"),), r"layer 1 of 1: '\.\./x': '\.\./x' contains '\.\.'"),
        ((header("dev/null", b"3"),), "layer 1 of 1: 'dev/null': it is a character device"),
        ((link("a", "../../x"),), r"'a': the link to '\.\./\.\./x' points outside"),
        ((link("a", "/../../x"),), "points outside"),
        ((link("a", ".."), file("a/x")), r"'a/x': the link to '\.\.' points outside"),
        ((link("a", "b"), link("b", "a"), file("a/x")), "'a/x': the link to 'b' forms a loop"),
        ((file("a"), file("a")), "'a': the archive has this entry twice"),
        ((hard_link("h", "../x"),), r"'h': '\.\./x' contains '\.\.'"),
        ((link("l", "x"), hard_link("h", "l")), "'h': the hard link to 'l', which is a symbolic link"),
        ((file("../.wh.x", b""),), r"contains '\.\.'"),
        ((file(".wh..", b""),), "'.': a whiteout cannot remove the root"),
        ((file(".wh...", b""),), r"'\.\.': '\.\.' contains '\.\.'"),
    ],
)
def test_hostile_layers_are_refused(tmp_path: Path, parts: tuple[bytes, ...], message: str) -> None:
    with pytest.raises(ArchiveRefused, match=message):
        unpacked(image_of(parts), tmp_path / "tree", OCI)
    assert os.listdir(tmp_path) == ["tree"]


def test_input_that_is_not_a_layout_or_has_layers_of_another_kind_is_refused() -> None:
    layout = Layout()
    layer = {**layout.layer(file("a")), "mediaType": f"{LAYER}+zstd"}
    with pytest.raises(
        ArchiveRefused, match=r"cannot unpack the format '.*layer\.v1\.tar\+zstd'; use tar or tar with gzip"
    ):
        inspect(layout.tar(layout.image(layer)), OCI)
    with pytest.raises(ArchiveRefused, match=r"'index\.json': this file is missing"):
        inspect(archive(file("a")), OCI)
    with pytest.raises(ArchiveRefused, match="it is a symbolic link, and an image layout"):
        inspect(Layout().tar(extra=link("blobs/sha256/x", "/etc/passwd")), OCI)
    with pytest.raises(ArchiveRefused, match="the image layout has this entry twice"):
        inspect(Layout().tar(extra=file("./index.json")), OCI)
    with pytest.raises(ArchiveRefused, match="a digest must be sha256"):
        inspect(Layout().tar({"mediaType": INDEX, "digest": "../../etc/passwd", "size": 1}), OCI)
