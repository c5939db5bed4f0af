"""The possible contents of a disk after a power cut, from file_trace.cpp's record of a program.

The model is the weakest that POSIX allows. The bytes of a file are on the disk once it is synced; until then each write
may be missing, cut short or zeros. The names in a folder are on the disk once the folder is synced; until then any of
the changes may be missing, but no change is there without those that it depends on.
"""
import copy
import os
import pathlib


class File:
    def __init__(self, content=b""):
        self.synced = content
        self.writes = []  # since then: (offset, bytes)

    def content(self, writes=None):
        """The content with all writes, or with the first so many."""
        content = self.synced
        for offset, data in self.writes[:writes]:
            content = content[:offset].ljust(offset, b"\0") + data + content[offset + len(data) :]
        return content

    def sync(self):
        self.synced, self.writes = self.content(), []

    def after_cut(self, kind, rng):
        """A possible content after a cut. kind: that of write_state."""
        whole = self.content()
        if kind in ("everything", "nothing") or not self.writes:
            return whole if kind == "everything" else self.synced
        how = rng.choice(["all", "some writes", "cut in a write", "blocks of zeros"])
        if how == "all":
            return whole
        if how == "some writes":  # or none
            return self.content(rng.randrange(len(self.writes)))
        if how == "cut in a write":
            return whole[: rng.randint(min(len(self.synced), len(whole)), len(whole))]
        blocks = [(i, whole[i : i + 512]) for i in range(0, len(whole), 512)]
        lost = [self.synced[i : i + 512].ljust(len(block), b"\0")[: len(block)] for i, block in blocks]
        return b"".join(rng.choice([old, block]) for old, (_, block) in zip(lost, blocks))


class Disk:
    """Begins with the contents of the folder root, all of it synced; apply() adds the program's changes."""

    def __init__(self, root):
        self.nodes = {}  # file, or folder (None), by a number of ours: the system gives an inode's number again
        self.current = {}  # the number of ours of an inode
        self.first_names = {}  # of an inode, in the folder where it was made
        self.names = []  # changes of names, in order: ([((folder, name), node or None), ..], nodes concerned)
        self.synced_names = []  # whether each is on the disk
        self.entries = {}  # (folder, name): node, as the program sees it
        self.said = 0  # bytes of standard output
        self.root = self.add(os.stat(root).st_ino, None)
        for folder, folders, files in os.walk(root):
            parent = self.current[os.stat(folder).st_ino]
            for name in [*folders, *files]:
                path = pathlib.Path(folder, name)
                node = self.add(os.stat(path).st_ino, None if path.is_dir() else File(path.read_bytes()))
                self.change([((parent, name), node)], [node])
        self.synced_names = [True] * len(self.names)

    def add(self, inode, node):
        number = len(self.nodes)
        self.nodes[number] = node
        self.current[inode] = number
        return number

    def change(self, entries, nodes):
        self.names.append((entries, set(nodes)))
        self.synced_names.append(False)
        self.entries.update(entries)

    def apply(self, operation, *fields, data):
        """Applies one line of the trace. data: the file of the written bytes, read from its current position."""
        if operation == "said":
            self.said = int(fields[0])
        elif operation in ("create", "mkdir"):
            folder = self.current[int(fields[0])]
            node = self.add(int(fields[2]), File() if operation == "create" else None)
            self.first_names[int(fields[2])] = fields[1]
            self.change([((folder, fields[1]), node)], [node])
        elif operation == "unlink":
            entry = (self.current[int(fields[0])], fields[1])
            self.change([(entry, None)], [self.entries[entry]])
        elif operation == "rename":
            before, after = (self.current[int(fields[0])], fields[1]), (self.current[int(fields[2])], fields[3])
            self.change([(before, None), (after, self.entries[before])], [self.entries[before], self.entries.get(after)])
        elif operation == "sync":
            self.sync(self.current[int(fields[0])])
        else:
            inode, offset, size = map(int, fields)
            self.nodes[self.current[inode]].writes.append((offset, data.read(size)))

    def sync(self, node):
        if self.nodes[node] is not None:
            self.nodes[node].sync()
            return
        for i, (entries, _) in enumerate(self.names):
            self.synced_names[i] |= any(folder == node for (folder, _), _ in entries)

    def kept_names(self, kind, rng):
        """The changes of names that survive the cut."""
        if kind in ("nothing", "everything"):
            return [synced or kind == "everything" for synced in self.synced_names]
        if kind == "prefix":
            least = max((i + 1 for i, synced in enumerate(self.synced_names) if synced), default=0)
            end = rng.randint(least, len(self.names))
            return [i < end for i in range(len(self.names))]
        kept, lost_entries, lost_nodes = [], set(), set()
        for (entries, nodes), synced in zip(self.names, self.synced_names):
            places = {place for place, _ in entries}
            keep = synced or (rng.random() < 0.7 and not places & lost_entries and not nodes & lost_nodes)
            kept.append(keep)
            if not keep:
                lost_entries |= places
                lost_nodes |= nodes - {None}
        return kept

    def write_state(self, root, kind, rng):
        """Writes the state after a cut into the empty folder root. kind: the part of the unsynced changes that
        survives: "nothing", "everything", a "prefix" of the changes of names, or a "subset"; the last two with any bytes."""
        entries = {}
        for (places, _), keep in zip(self.names, self.kept_names(kind, rng)):
            entries.update(places if keep else ())
        folders = {self.root: pathlib.Path(root)}
        waiting = [(place, node) for place, node in sorted(entries.items()) if node is not None]
        while reachable := [(place, node) for place, node in waiting if place[0] in folders]:
            waiting = [(place, node) for place, node in waiting if place[0] not in folders]
            for (folder, name), node in reachable:
                path = folders[folder] / name
                if self.nodes[node] is None:
                    path.mkdir()
                    folders[node] = path
                else:
                    path.write_bytes(self.nodes[node].after_cut(kind, rng))


class Trace:
    """The trace of a program that runs in root: created before it starts, read when it has ended."""

    def __init__(self, root, path):
        self.path = pathlib.Path(path)
        for file in (path, f"{path}.data"):
            pathlib.Path(file).touch()  # a program may change nothing
        self.before = Disk(root)
        self.environment = {"FILE_TRACE_ROOT": str(root), "FILE_TRACE": str(path)}

    def operations(self):
        return [line.split("\t") for line in self.path.read_text().splitlines()]

    def disk_after(self, operations, is_synced=lambda name: True):
        """The disk after the first so many operations. is_synced: False for the names of files and folders ("" for the
        root; the name at creation) whose syncs are left out."""
        disk = copy.deepcopy(self.before)
        with open(f"{self.path}.data", "rb") as data:
            for operation, *fields in self.operations()[:operations]:
                if operation != "sync" or is_synced(disk.first_names.get(int(fields[0]), "")):
                    disk.apply(operation, *fields, data=data)
        return disk
