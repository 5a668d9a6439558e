#!/usr/bin/env bash
# Run a command with a disk of its own, mounted at $DISK, that writes no more than so many MB a second.
#
#     benchmarks/checkpoint/disk.sh 250 sh -c 'python benchmarks/checkpoint/run.py --parts stall --folder "$DISK"'
#
# The disk is a file in memory behind a loop device with ext4. Needs root, 6 GB of memory, and cgroup v1's blkio at
# /sys/fs/cgroup/blkio, because version 2 limits no writes of the page cache in the root group.
set -euo pipefail

rate=$1
shift
limit=/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device
image=$(mktemp /dev/shm/disk.XXXXXX)
DISK=$(mktemp -d)
export DISK
truncate -s 6G "$image"
loop=$(losetup -f --show "$image")
number=$(cat "/sys/block/${loop##*/}/dev")

remove() {
    echo "$number 0" > "$limit"
    umount "$DISK" 2> /dev/null || true
    losetup -d "$loop"
    rm -r "$image" "$DISK"
}
trap remove EXIT

mkfs.ext4 -q "$loop"
mount "$loop" "$DISK"
echo "$number $((rate * 1000000))" > "$limit"
"$@"
