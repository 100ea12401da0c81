# SPDX-License-Identifier: MIT
"""What a child that runs somebody's code may do: tries to write a large file, and to take much memory. With any task it hangs."""

import json
import os
import sys
import tempfile
import time

if __name__ == "__main__":
    if json.load(sys.stdin):
        time.sleep(60)
    found = {"network": os.readlink("/proc/self/ns/net")}
    with tempfile.TemporaryFile(buffering=0) as file:
        try:
            written = sum(file.write(bytes(1 << 19)) for _ in range(4))
        except OSError:
            written = -1
    try:
        found["memory"] = len(bytearray(8 << 30))
    except MemoryError:
        found["memory"] = -1
    print(json.dumps({**found, "written": written}))
