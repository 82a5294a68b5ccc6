"""The tree of files in an archive: `Tree` is a plan in memory, and a `Sink` writes each entry of the plan.

The plan stores every link of the archive so far, and decides where each entry is written. The sink follows no link. A
link may point to a later entry, so all links are checked at the end. A link that leads out of the tree is rejected.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from borglet.packages.archives.limits import ArchiveCost, ArchiveRefused
from borglet.packages.archives.tarstream import EntryKind, TarEntry

Path = tuple[str, ...]

# The number of links that Linux follows in one path.
MOST_LINKS = 40
# The most steps for one archive, which take some seconds: components of followed links, and entries under whiteouts.
MOST_STEPS = 5_000_000
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Sink:
    """The interface for writing a tree of files. This base class writes nothing. The paths that callers pass never lead
    through a link.
    """

    def make_directory(self, path: Path) -> None:
        pass

    def write_file(self, path: Path, *, executable: bool, content: Iterable[bytes]) -> None:
        for _ in content:
            pass

    def make_link(self, path: Path, target: str) -> None:
        pass

    def make_hard_link(self, path: Path, existing: Path) -> None:
        pass

    def remove(self, path: Path, *, directory: bool) -> None:
        pass

    def finish_directory(self, path: Path) -> None:
        """Make a directory read-only, after all its content is written."""


@dataclass(slots=True)
class ArchiveNode:
    """One file, directory or link of a `Tree`. A tree may have 100,000 nodes, so a node is small."""

    kind: EntryKind
    layer: int
    target: str = ""
    size: int = 0
    executable: bool = False
    sha256: bytes = b""


@dataclass(slots=True)
class DirectoryNode(ArchiveNode):
    children: dict[str, ArchiveNode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TreeDigests:
    """Two digests of a tree (SHA-256, hex). `listing`: the digest of the paths, kinds, sizes and link targets of all
    entries. `contents`: the digest of the same values and of the bytes of all files.
    """

    listing: str
    contents: str


class Tree:
    """The plan of the files, directories and links that unpacking an archive will create. Add entries in the order in
    which the archive has them. `layered`: the archive is an image, whose later layers replace entries of earlier
    layers.
    """

    def __init__(self, sink: Sink, account: ArchiveCost, *, layered: bool = False) -> None:
        self._sink, self._account, self._layered = sink, account, layered
        self._limits = account.limits
        self._root = DirectoryNode(EntryKind.DIRECTORY, 0)
        self.layer = 0
        self._steps = 0

    # -- entries; each raises `ArchiveRefused`

    def add(self, entry: TarEntry, content: Iterable[bytes]) -> None:
        """Add an entry of an archive. `content`: the bytes of a file, empty for a directory or link."""
        if entry.kind is EntryKind.DIRECTORY:
            self.add_directory(entry.name)
        elif entry.kind is EntryKind.SYMBOLIC_LINK:
            self.add_link(entry.name, entry.target)
        elif entry.kind is EntryKind.HARD_LINK:
            self.add_hard_link(entry.name, entry.target.lstrip("/") if self._layered else entry.target)
        else:
            self.add_file(entry.name, entry.size, content, executable=entry.executable)

    def add_directory(self, name: str) -> None:
        path = self._path(name)
        if path:
            parent, path = self._parent(path, name)
            self._directory(parent, path, name)

    def add_file(self, name: str, size: int, content: Iterable[bytes], *, executable: bool) -> None:
        parent, path = self._place(name)
        node = ArchiveNode(EntryKind.FILE, self.layer, size=size, executable=executable)
        digest = hashlib.sha256()

        def hashed() -> Iterator[bytes]:
            for piece in content:
                digest.update(piece)
                yield piece

        self._sink.write_file(path, executable=executable, content=hashed())
        node.sha256 = digest.digest()
        parent.children[path[-1]] = node

    def add_link(self, name: str, target: str) -> None:
        parent, path = self._place(name)
        self._check_text(name, target, "the link's target")
        if target.startswith("/"):
            if not self._layered:
                raise ArchiveRefused(f"{name!r}: a link to {target!r} points outside the package; let it point inside")
            # An absolute link starts at the image's root. A relative one works wherever the image is mounted.
            target = "/".join([*[".."] * (len(path) - 1), *target.split("/")[1:]]) or "."
        parent.children[path[-1]] = ArchiveNode(EntryKind.SYMBOLIC_LINK, self.layer, target=target)
        self._sink.make_link(path, target)

    def add_hard_link(self, name: str, target: str) -> None:
        parent, path = self._place(name)
        wanted = self._path(target, of=name)
        owner, existing = self._parent(wanted, name) if wanted else (self._root, wanted)
        node = owner.children.get(existing[-1]) if existing else None
        if node is None or node.kind is not EntryKind.FILE:
            found = "not an earlier entry" if node is None else f"a {node.kind}"
            raise ArchiveRefused(
                f"{name!r}: the hard link to {target!r}, which is {found}, must point to a file that comes earlier in"
                " the archive"
            )
        self._sink.make_hard_link(path, existing)
        parent.children[path[-1]] = ArchiveNode(
            EntryKind.FILE, self.layer, size=node.size, executable=node.executable, sha256=node.sha256
        )

    def white_out(self, name: str) -> None:
        """Remove the entry `name` of earlier layers, if it exists."""
        path = self._path(name)
        if not path:
            raise ArchiveRefused(
                f"{name!r}: a whiteout cannot remove the root (whiteouts remove files of earlier layers); build the"
                " image again"
            )
        self._remove_lower(*self._parent(path, name))

    def white_out_content(self, name: str) -> None:
        """Remove all entries of earlier layers from the directory `name`."""
        path = self._path(name)
        node = self._root
        if path:
            parent, path = self._parent(path, name)
            node = self._directory(parent, path, name)
        for child in list(node.children):
            self._remove_lower(node, (*path, child))

    def finish(self) -> TreeDigests:
        """Check the links, make everything read-only, and return the digests. Raises `ArchiveRefused` if a link leads
        out of the tree or forms a loop.
        """
        listing, contents = hashlib.sha256(), hashlib.sha256()
        for path, node in self._walk():
            if node is None:
                self._sink.finish_directory(path)
                continue
            if node.kind is EntryKind.SYMBOLIC_LINK:
                self._follow(path[:-1], node.target, "/".join(path))
            line, content = lines_of(path, node.kind, node.size, node.executable, node.target, node.sha256.hex())
            listing.update(line)
            contents.update(content)
        return TreeDigests(listing.hexdigest(), contents.hexdigest())

    # -- the places of entries

    def _path(self, name: str, *, of: str = "") -> Path:
        """Return the components of the path `name`. The root has none. If `name` is the target of a link, `of` is the
        name of the link.
        """
        self._check_text(of or name, name, "the link's target" if of else "the path")
        if name.startswith("/"):
            raise ArchiveRefused(f"{of or name!r}: {name!r} is an absolute path; pack it with a relative path")
        path = tuple(part for part in name.split("/") if part not in ("", "."))
        if ".." in path:
            raise ArchiveRefused(f"{of or name!r}: {name!r} contains '..'; pack paths without it")
        self._check_depth(path, of or name)
        return path

    def _check_text(self, name: str, text: str, what: str) -> None:
        if not text:
            raise ArchiveRefused(f"{name!r}: {what} is empty; pack it again")
        if _CONTROL.search(text):
            raise ArchiveRefused(f"{name!r}: {what} {text[:100]!r} contains a control character; remove this character")
        raw = text.encode("utf-8", "surrogatepass")
        if len(raw) > self._limits.path_bytes:
            raise ArchiveRefused(
                f"{name[:100]!r}…: {what} has {len(raw)} bytes, and the limit is {self._limits.path_bytes}; shorten it"
            )
        if len(raw) > 255 and any(len(part) > 255 for part in raw.split(b"/")):
            raise ArchiveRefused(
                f"{name[:100]!r}…: a component of {what} has more than 255 bytes, which is the limit; shorten it"
            )

    def _place(self, name: str) -> tuple[DirectoryNode, Path]:
        """Return the parent directory and the path of a new entry that is not a directory. An entry of an earlier layer
        at this path is removed.
        """
        path = self._path(name)
        if not path:
            raise ArchiveRefused(f"{name!r}: only a directory can be the root of a package; pack a directory")
        parent, path = self._parent(path, name)
        known = parent.children.get(path[-1])
        if known is not None:
            if known.layer == self.layer:
                raise ArchiveRefused(
                    f"{name!r}: the archive has this entry twice, or a file where a directory is needed; remove one of"
                    " them"
                )
            self._remove(parent, path)
        return parent, path

    def _parent(self, path: Path, name: str) -> tuple[DirectoryNode, Path]:
        """Return the parent directory of `path`, and the real path after all links in `path` are followed. Create
        missing directories. `name`: the path as written in the archive, for errors.
        """
        node = self._root
        real: Path = ()
        for part in path[:-1]:
            child = node.children.get(part)
            if child is not None and child.kind is EntryKind.SYMBOLIC_LINK:
                if not self._layered:
                    raise ArchiveRefused(
                        f"{name!r}: the path goes through the link {'/'.join((*real, part))!r}; pack it under its real"
                        " path"
                    )
                found = self._follow(real, child.target, name)
                self._check_depth(found, name)
                node, real = self._root, ()
                for step in found:
                    real = (*real, step)
                    node = self._directory(node, real, name, implied=True)
                continue
            real = (*real, part)
            node = self._directory(node, real, name, implied=True)
        path = (*real, path[-1])
        self._check_depth(path, name)
        return node, path

    def _check_depth(self, path: Path, name: str) -> None:
        if len(path) > self._limits.depth:
            raise ArchiveRefused(
                f"{name!r}: its path has more than {self._limits.depth} components; move it to a higher directory"
            )

    def _directory(self, parent: DirectoryNode, path: Path, name: str, *, implied: bool = False) -> DirectoryNode:
        known = parent.children.get(path[-1])
        if isinstance(known, DirectoryNode):
            known.layer = known.layer if implied else max(known.layer, self.layer)
            return known
        if known is not None:
            if known.layer == self.layer:
                raise ArchiveRefused(
                    f"{name!r}: the archive has {'/'.join(path)!r} as a {known.kind} and as a directory; remove one of"
                    " them"
                )
            self._remove(parent, path)
        if implied:
            self._account.entry(name)
        made = DirectoryNode(EntryKind.DIRECTORY, self.layer)
        parent.children[path[-1]] = made
        self._sink.make_directory(path)
        return made

    def _follow(self, base: Path, target: str, name: str) -> Path:
        """Return the path to which `target` leads from the directory `base`, after all links are followed.

        Raises `ArchiveRefused` if a link leads out of the tree or if the links form a loop.
        """
        real = list(base)
        nodes: list[ArchiveNode | None] = [self._root]
        for part in base:
            nodes.append(_child(nodes[-1], part))
        todo = target.split("/")[::-1]
        links = 0
        while todo:
            part = todo.pop()
            self._step(name)
            if part in ("", "."):
                continue
            if part == "..":
                if not real:
                    raise ArchiveRefused(
                        f"{name!r}: the link to {target!r} points outside the package; let it point inside"
                    )
                real.pop()
                nodes.pop()
                continue
            child = _child(nodes[-1], part)
            if child is not None and child.kind is EntryKind.SYMBOLIC_LINK:
                links += 1
                if links > MOST_LINKS:
                    raise ArchiveRefused(
                        f"{name!r}: the link to {target!r} forms a loop, or leads through more than {MOST_LINKS} links;"
                        " remove it"
                    )
                todo += child.target.split("/")[::-1]
                continue
            real.append(part)
            nodes.append(child)
        return tuple(real)

    def _step(self, name: str, doing: str = "following the links", of: str = "links") -> None:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise ArchiveRefused(f"{name!r}: {doing} of this archive takes too long; build it with fewer {of}")

    # -- removal

    def _remove_lower(self, parent: DirectoryNode, path: Path) -> None:
        """Remove the entry of earlier layers at `path`. Entries below `path` that belong to the present layer stay."""
        self._step("/".join(path), "applying the whiteouts", "whiteouts")
        node = parent.children.get(path[-1])
        if node is None:
            return
        if isinstance(node, DirectoryNode):
            for child in list(node.children):
                self._remove_lower(node, (*path, child))
        if node.layer < self.layer and not (isinstance(node, DirectoryNode) and node.children):
            self._forget(parent, path)

    def _remove(self, parent: DirectoryNode, path: Path) -> None:
        node = parent.children[path[-1]]
        if isinstance(node, DirectoryNode):
            for child in list(node.children):
                self._remove(node, (*path, child))
        self._forget(parent, path)

    def _forget(self, parent: DirectoryNode, path: Path) -> None:
        node = parent.children.pop(path[-1])
        self._sink.remove(path, directory=node.kind is EntryKind.DIRECTORY)

    def _walk(self) -> Iterator[tuple[Path, ArchiveNode | None]]:
        """Yield the path and the node of each entry except the root. Parents come before children, and names are
        sorted. After all entries of a directory, yield the path of the directory again, with None.
        """
        inside: list[tuple[Path, DirectoryNode, Iterator[str]]] = [((), self._root, iter(sorted(self._root.children)))]
        while inside:
            path, directory, names = inside[-1]
            for name in names:
                self._account.checkpoint()
                node, below = directory.children[name], (*path, name)
                yield below, node
                if isinstance(node, DirectoryNode):
                    inside.append((below, node, iter(sorted(node.children))))
                    break
            else:
                yield path, None
                inside.pop()


def _child(node: ArchiveNode | None, name: str) -> ArchiveNode | None:
    return node.children.get(name) if isinstance(node, DirectoryNode) else None


def lines_of(path: Path, kind: EntryKind, size: int, executable: bool, target: str, sha256: str) -> tuple[bytes, bytes]:
    """Return two lines that describe one entry of a tree. The first is hashed for the digest `listing` of
    `TreeDigests`, the second for the digest `contents`. `path` and `target` must not contain control characters.
    """
    if kind is EntryKind.DIRECTORY:
        line = "d"
    elif kind is EntryKind.SYMBOLIC_LINK:
        line = f"l\t{target}"
    else:
        line = f"{'x' if executable else 'f'}\t{size}"
    text = "/".join(path)
    return f"{text}\t{line}\n".encode(), f"{text}\t{line}\t{sha256}\n".encode()
