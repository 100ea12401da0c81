#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# usage: node.sh NAME FOLDER [SHARED…]
# The first process of a node: gives it a name, a /tmp and a /dev/shm of its own, and runs its Slurm daemon.
# Without a /tmp of its own, two nodes of a job would meet in files that MPI libraries make there.
set -euo pipefail

NAME=$1
FOLDER=$2
OWN_TMP=$FOLDER/spool/$NAME.tmp

hostname "$NAME"
mkdir -p "$OWN_TMP" "$FOLDER/spool/$NAME"
chmod 1777 "$OWN_TMP"
for shared in "${@:2}"; do
    case $shared in /tmp/*)
        mkdir -p "$OWN_TMP/${shared#/tmp/}"
        mount --bind "$shared" "$OWN_TMP/${shared#/tmp/}"
        ;;
    esac
done
mount --rbind "$OWN_TMP" /tmp
mount -t tmpfs tmpfs /dev/shm

# Not exec: as the first process, a shell collects those that lost their parents, and slurmd does not.
slurmd -D &
wait
