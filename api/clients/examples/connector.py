"""A connector in small: a conversation's blocks go out when it rests and come back when it goes on. In place of an engine
there is a pool whose pages it fills itself. connector.py SOCKET FD_SOCKET KEY_FILE; connector.c does the same."""
import mmap
import pathlib
import sys

import kvrun

BLOCKS, BLOCK_BYTES = 4, 1 << 16
SLOTS = 2 * BLOCKS
MODEL = kvrun.Model("example", "1")


def drop_session(session_id: str) -> None:
    print(f"{session_id} was erased: forget what is left of it")


def hash_of_block(block: int) -> bytes:
    """What your engine computes from the tokens of a block and all before it; here a number will do."""
    return bytes([block]).ljust(32, b"\0")


def page(pages: mmap.mmap, slot: int) -> bytes:
    return pages[slot * BLOCK_BYTES:(slot + 1) * BLOCK_BYTES]


def converse(client: kvrun.Client, pool: int, pages: mmap.mmap) -> int:
    session = client.session_open(MODEL, external_id="conversation-1")
    hashes = [hash_of_block(block) for block in range(BLOCKS)]
    for block in range(BLOCKS):  # the prefill; final from here on
        pages[block * BLOCK_BYTES:(block + 1) * BLOCK_BYTES] = bytes([block + 1]) * BLOCK_BYTES
    moved = client.offload(session, pool, hashes, range(BLOCKS), durable=True)
    print(f"{moved.stored + moved.present} of {BLOCKS} blocks are stored {moved.cause}")
    # The pages are free for others now, if moved.hold is 0. Some day the conversation goes on, in other pages.
    moved = client.restore(session, pool, hashes, range(BLOCKS, SLOTS))  # session_erased: compute all, in a new session
    print(f"{moved.contiguous_blocks} of {BLOCKS} blocks came back {moved.cause}")
    same = all(page(pages, block) == page(pages, BLOCKS + block) for block in range(moved.contiguous_blocks))
    print("their bytes are", "the same" if same else "OTHERS")
    return 0 if same else 1


def main(socket_path: str, fd_socket_path: str, key_file: str) -> int:
    key = pathlib.Path(key_file).read_text().strip()
    with kvrun.Client(socket_path, key, fd_socket_path=fd_socket_path) as client:
        client.register("example, gpu 0", "other", "1", MODEL, revoked=drop_session)
        fd = kvrun.memory(SLOTS * BLOCK_BYTES)
        pages = mmap.mmap(fd, SLOTS * BLOCK_BYTES)
        pool = client.pool_register(kvrun.Pool(fd, SLOTS * BLOCK_BYTES, "f16, 32 layers", "1", 16, SLOTS, BLOCK_BYTES))
        rc = converse(client, pool, pages)
        stats = client.stats()
        print(f"{stats.calls_answered} calls answered, {stats.calls_missed} missed")
        client.unregister()
        return rc


sys.exit(main(*sys.argv[1:]))
