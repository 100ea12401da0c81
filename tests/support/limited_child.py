# SPDX-License-Identifier: MIT
"""What a child that runs somebody's code may do: tries to write a large file, to take much memory, to use other files, the
network and other processes. With a task that says so it hangs."""

import json
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path


def tried(do, *arguments):
    try:
        return do(*arguments)
    except (OSError, MemoryError) as error:
        return type(error).__name__


def main(hang=False, beside="", ended=0):
    if hang:
        time.sleep(60)
    found = {"network": os.readlink("/proc/self/ns/net"), "memory": tried(lambda: len(bytearray(8 << 30)))}
    with tempfile.TemporaryFile(buffering=0) as file:
        found["large"] = tried(lambda: sum(file.write(bytes(1 << 19)) for _ in range(4)))
    found["own"] = tried(Path("own.txt").write_text, "own")
    if beside:
        other = Path(beside)
        found["read"] = tried(other.read_text)
        found["listed"] = tried(os.listdir, other.parent)
        found["written"] = tried(other.with_name("new.txt").write_text, "new")
        found["removed"] = tried(other.unlink)
        found["emptied"] = tried(os.truncate, other, 0)
        found["by another program"] = os.system(f"cat {beside} > {beside}.copy 2> /dev/null")
    if ended:
        found["ended"] = tried(os.kill, ended, signal.SIGTERM)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        found["connected"] = tried(one.connect, ("192.0.2.1", 9))
    print(json.dumps(found))


if __name__ == "__main__":
    main(**{key: value for task in json.load(sys.stdin) for key, value in task.items()})
