"""Property tests of package archives: a packed tree is restored exactly, and bad archives write nothing outside."""

from __future__ import annotations

import gzip
import io
import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from borglet.packages.archives.build import pack
from borglet.packages.archives.disk import digests_of, remove_tree
from borglet.packages.archives.limits import ArchiveLimits, ArchiveRefused
from borglet.packages.archives.unpacking import OCI, TAR, TAR_GZIP, unpack
from tests.examples import examples
from tests.real.packages.archives import Layout, archive, contents, extended, file, folder, hard_link, header, link, pax

LETTERS = st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/")
NAMES = st.text(LETTERS, min_size=1, max_size=40).filter(lambda name: name not in (".", ".."))
TREES = st.recursive(
    st.one_of(st.binary(max_size=1500), st.tuples(st.binary(max_size=9))),
    lambda below: st.dictionaries(NAMES, below, max_size=4),
    max_leaves=12,
)
# These names lead through each other, out of the folder, and to themselves.
CROOKED = st.lists(st.sampled_from(["a", "b", "c", "..", ".", ""]), min_size=1, max_size=4).map("/".join)
ENTRIES = st.one_of(
    st.builds(file, CROOKED, st.binary(max_size=20)),
    st.builds(folder, CROOKED),
    st.builds(link, CROOKED, CROOKED),
    st.builds(lambda name, target: link(name, "/" + target), CROOKED, CROOKED),
    st.builds(hard_link, CROOKED, CROOKED),
    st.builds(lambda name, kind: header(name, kind), CROOKED, st.sampled_from([b"3", b"4", b"6", b"S"])),
    st.builds(lambda path, name: extended(pax(path=path)) + file(name), CROOKED, CROOKED),
    st.builds(lambda folder, name: file(f"{folder}/.wh.{name}", b""), CROOKED, CROOKED),
)
SMALL = ArchiveLimits(unpacked_bytes=2**20, entries=100, ratio_free_bytes=2**21)


def write(root: Path, tree: object) -> None:
    if isinstance(tree, dict):
        root.mkdir()
        for name, below in tree.items():
            write(root / name, below)
    elif isinstance(tree, tuple):
        root.write_bytes(tree[0])
        root.chmod(0o755)
    else:
        assert isinstance(tree, bytes)
        root.write_bytes(tree)


@settings(max_examples=examples(60), deadline=None)
@given(tree=st.dictionaries(NAMES, TREES, max_size=4), format_=st.sampled_from([TAR, TAR_GZIP]))
def test_a_packed_tree_comes_back(tree: dict[str, object], format_: str) -> None:
    with tempfile.TemporaryDirectory() as folder_name:
        root = Path(folder_name)
        write(root / "source", tree)
        out = io.BytesIO()
        pack(root / "source", out, format_=format_)
        (root / "tree").mkdir()
        found = unpack(out, format_, root / "tree")
        assert contents(root / "tree") == contents(root / "source")
        assert found.digests == digests_of(root / "tree", contents=True)
        remove_tree(root / "tree")


def check(raw: bytes, format_: str) -> None:
    """Unpack an archive and check that nothing outside its folder changed and no link inside points outside.

    An archive that is rejected counts as correct too.
    """
    with tempfile.TemporaryDirectory() as folder_name:
        root = Path(folder_name)
        (root / "a").write_bytes(b"mine")  # the file that names with ".." would overwrite
        target = root / "b"
        target.mkdir()
        try:
            found = unpack(io.BytesIO(raw), format_, target, limits=SMALL)
        except ArchiveRefused:
            pass
        else:
            assert found.digests == digests_of(target, contents=True)
            for base, folders, files in os.walk(target):
                for name in folders + files:
                    real = os.path.realpath(os.path.join(base, name))
                    assert real == str(target) or real.startswith(f"{target}/"), (base, name, real)
        assert sorted(os.listdir(root)) == ["a", "b"]
        assert (root / "a").read_bytes() == b"mine"
        assert (root / "a").stat().st_nlink == 1
        remove_tree(target)


@settings(max_examples=examples(300), deadline=None)
@given(parts=st.lists(ENTRIES, max_size=8), compressed=st.booleans())
def test_crooked_archives_never_reach_outside(parts: list[bytes], compressed: bool) -> None:
    raw = archive(*parts).read()
    check(gzip.compress(raw, mtime=0) if compressed else raw, TAR_GZIP if compressed else TAR)


@settings(max_examples=examples(200), deadline=None)
@given(layers=st.lists(st.lists(ENTRIES, max_size=5), min_size=1, max_size=3))
def test_crooked_images_never_reach_outside(layers: list[list[bytes]]) -> None:
    layout = Layout()
    check(layout.tar(layout.image(*[layout.layer(*parts) for parts in layers])).read(), OCI)


@settings(max_examples=examples(300), deadline=None)
@given(
    parts=st.lists(ENTRIES, min_size=1, max_size=4),
    damage=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=6),
    format_=st.sampled_from([TAR, TAR_GZIP, OCI]),
)
def test_damaged_archives_are_refused_or_harmless(
    parts: list[bytes], damage: list[tuple[int, int]], format_: str
) -> None:
    layout = Layout()
    raw = bytearray(layout.tar(layout.image(layout.layer(*parts))).read() if format_ == OCI else archive(*parts).read())
    if format_ == TAR_GZIP:
        raw = bytearray(gzip.compress(bytes(raw), mtime=0))
    for place, value in damage:
        raw[place % len(raw)] = value
    check(bytes(raw), format_)
