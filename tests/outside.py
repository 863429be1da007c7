"""`unshare -n python tests/outside.py COMMAND ...`: runs COMMAND in a network of its own and prints whom it asked.

The network is this process's namespace: its loopback works, and everything else is routed to the loopback as well,
where a packet socket sees it before the kernel drops it. So a name that is asked for, or an address that is connected
to, is seen; nobody answers.
"""

import os
import socket
import struct
import subprocess
import sys
import threading
import time

ETH_P_ALL = 3  # linux/if_ether.h
OWN = "192.0.2.2"  # an address for documentation (RFC 5737): packets to elsewhere need one to come from
SETUP = (
    "ip link set lo up",
    f"ip addr add {OWN}/32 dev lo",
    f"ip route add default dev lo src {OWN}",
)
seen: set[str] = set()


def destination(frame: bytes) -> tuple[str, int]:
    """Address and port of a packet behind its Ethernet header; no address if it is not IPv4."""
    kind = frame[12:14]
    if kind == b"\x08\x00":
        start = 14 + 4 * (frame[14] & 15)
        return socket.inet_ntoa(frame[30:34]), struct.unpack("!H", frame[start + 2 : start + 4])[0]
    return "", 0


def watch(packets: socket.socket) -> None:
    while True:
        frame = packets.recv(65535)
        address, port = destination(frame)
        is_local = address.startswith("127.") or address in ("", OWN)
        if not is_local or port == 53:  # a name is asked for
            seen.add(f"{address} port {port}")


if __name__ == "__main__":
    if [name for _, name in socket.if_nameindex()] != ["lo"]:
        sys.exit("error: this changes the routes of the network that it runs in; run it with `unshare -n`")
    for command in SETUP:
        subprocess.run(command.split(), check=True, stderr=subprocess.DEVNULL)
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    threading.Thread(target=watch, args=(raw,), daemon=True).start()
    status = subprocess.run(sys.argv[1:]).returncode
    time.sleep(0.5)  # for the last packets
    print(f"asked outside: {', '.join(sorted(seen)) or 'nobody'}", flush=True)
    os._exit(status)
