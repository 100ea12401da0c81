#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# usage: cluster.sh FOLDER [SHARED…]
# The first process of a cluster: runs in namespaces of its own (cluster.py makes them), starts everything, and waits.
# When it ends, the kernel ends all other processes in them and removes the network and the mounts.
# FOLDER holds what cluster.py wrote. SHARED are folders that every node sees; all but /tmp and /dev/shm is shared anyway.
set -euo pipefail

FOLDER=$1
SHARED=("$@")
HERE=$(dirname -- "${BASH_SOURCE[0]}")
export SLURM_CONF=$FOLDER/etc/slurm.conf

main() {
    hide_the_machines_own
    start_network
    munged --key-file="$FOLDER/etc/munge.key" --socket="$FOLDER/run/munge.socket" --pid-file="$FOLDER/run/munged.pid" \
        --log-file="$FOLDER/log/munged.log" --seed-file="$FOLDER/run/munged.seed"
    slurmctld
    start_nodes
    wait
}

# A /run of our own also hides the sockets of a Slurm, a munge or a name service that the machine may have.
hide_the_machines_own() {
    mount -t tmpfs tmpfs /run
    mount --bind "$FOLDER/etc/hosts" /etc/hosts
    hostname login
}

start_network() {
    local name address
    ip link set lo up
    ip link add cluster type bridge
    ip addr add 10.77.0.10/24 dev cluster
    ip link set cluster up
    while read -r name address; do
        ip netns add "$name"
        ip link add "to-$name" type veth peer name eth0 netns "$name"
        ip link set "to-$name" master cluster up
        ip -n "$name" addr add "$address/24" dev eth0
        ip -n "$name" link set lo up
        ip -n "$name" link set eth0 up
    done <"$FOLDER/etc/nodes"
}

start_nodes() {
    local name
    while read -r name _; do
        nsenter --net="/run/netns/$name" unshare --uts --ipc --mount --pid --fork --mount-proc --kill-child \
            "$HERE/node.sh" "$name" "${SHARED[@]}" </dev/null &
    done <"$FOLDER/etc/nodes"
}

main
