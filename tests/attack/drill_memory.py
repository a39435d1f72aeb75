"""An image of a running process, as a debugger with every right writes one: every page that is there, also those that a core
file would leave out. And of these the pages with its keys: those that it has wiped in a child (MADV_WIPEONFORK)."""
import array
import os

PAGE = 4096
RESERVED_BYTES = 1 << 36  # so much in one piece is a sanitizer's shadow
SHARED = "/memfd:"  # of which the kernel forgets in a process what it can find again; a read brings it back
STEP = 1 << 20
PAGE_TABLE_STEP = 1 << 28
PRESENT = 1 << 62  # in memory or in swap


def mappings(pid):
    """(first, end, name, whether it is for keys, whether a core file has it) of each in which there is anything."""
    first = end = there = 0
    name = ""
    with open(f"/proc/{pid}/smaps") as file:
        for line in file:
            words = line.split()
            if words[0][-1] != ":":
                first, end = (int(word, 16) for word in words[0].split("-"))
                there, name = 0, words[5] if len(words) > 5 else ""
            elif words[0] in ("Rss:", "Swap:"):
                there += int(words[1])
            elif words[0] == "VmFlags:" and (there > 0 or name.startswith(SHARED)) and end - first < RESERVED_BYTES:
                yield first, end, name, "wf" in words[1:], "dd" not in words[1:]


def present(pagemap, first, end):
    """The runs of pages that were ever touched."""
    begun = None
    for at in range(first, end, PAGE_TABLE_STEP):
        stop = min(at + PAGE_TABLE_STEP, end)
        entries = array.array("Q", os.pread(pagemap.fileno(), (stop - at) // PAGE * 8, at // PAGE * 8))
        if max(entries) < PRESENT:  # most of what a sanitizer reserves
            if begun is not None:
                yield begun, at
                begun = None
            continue
        for i, entry in enumerate(entries):
            if (entry >= PRESENT) != (begun is not None):
                if begun is not None:
                    yield begun, at + i * PAGE
                    begun = None
                else:
                    begun = at + i * PAGE
    if begun is not None:
        yield begun, end


def image(pid, whole, keys, core=os.devnull):
    """Writes three files: everything, the pages for keys, what a core file has. Bytes of the first two, and of those that not even a
    debugger could read."""
    sizes = {"whole": 0, "keys": 0, "unreadable": 0}
    with open(f"/proc/{pid}/mem", "rb", 0) as memory, open(f"/proc/{pid}/pagemap", "rb", 0) as pagemap, \
            open(whole, "wb") as whole_file, open(keys, "wb") as keys_file, open(core, "wb") as core_file:
        for first, end, name, for_keys, in_core in mappings(pid):
            for begin, stop in [(first, end)] if name.startswith(SHARED) else present(pagemap, first, end):
                for at in range(begin, stop, STEP):
                    size = min(STEP, stop - at)
                    try:
                        data = os.pread(memory.fileno(), size, at)
                    except OSError:
                        sizes["unreadable"] += size
                        continue
                    whole_file.write(data)
                    sizes["whole"] += len(data)
                    if for_keys:
                        keys_file.write(data)
                        sizes["keys"] += len(data)
                    if in_core:
                        core_file.write(data)
    return sizes
